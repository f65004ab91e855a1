"""The rollout prefix: `/ng-rollout/<capture key>` in front of a path says whose request it is (contract 2).

It is taken off the raw path, before any percent decoding. A path that does not match is routed as it is.
"""

import re

from genrm_trio.core.identity import CAPTURE_KEY, MAX_PREFIX_ATTEMPT, EpisodeId, parse_capture_key

_PREFIX = re.compile(rb"/ng-rollout/(" + CAPTURE_KEY.pattern.encode("ascii") + rb")(?=/)")


def split_prefix(raw_path: bytes) -> tuple[EpisodeId | None, bytes]:
    """The episode that the raw path names, and the path that is left; None and the path itself without a prefix.

    A key that names a rollout id which is not allowed, or an attempt beyond all that a rollout can reach, is no prefix.
    """
    found = _PREFIX.match(raw_path)
    if found is None:
        return None, raw_path
    try:
        episode = parse_capture_key(found.group(1).decode("ascii"))
    except ValueError:
        return None, raw_path
    if episode.attempt > MAX_PREFIX_ATTEMPT:
        return None, raw_path
    return episode, raw_path[found.end() :]
