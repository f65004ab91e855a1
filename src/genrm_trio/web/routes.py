"""The data routes (contract 3, 5, 8, 9): each reads its body, asks the runtime, and words the reply.

A handler gets the request's Visit and returns a Reply. How it is routed, authorised, admitted and guarded is the
application's business.
"""

from collections.abc import Iterator
from functools import partial

import structlog
from quart import request

from genrm_trio.core.outcome import JSON, CohortFailed, JudgeFailed, Refused, Rewarded
from genrm_trio.judging.aggregate import Aggregate
from genrm_trio.judging.judge import JudgeError
from genrm_trio.judging.text import conversation
from genrm_trio.runtime.evaluation import Contender
from genrm_trio.runtime.server import Server, TooManyComparisons, Verification
from genrm_trio.web import errors
from genrm_trio.web.cookies import SessionName
from genrm_trio.web.errors import InvalidBody, LargeReply, Pieces, Problem, Reply, to_json
from genrm_trio.web.policy import WebPolicy
from genrm_trio.web.requests import Reading, request_body
from genrm_trio.web.speaking import gathered, in_pieces, spoken
from genrm_trio.web.verification import (
    Identified,
    VerifyReader,
    answer_id,
    default_fields,
    digest_under,
    needed_schemes,
)
from genrm_trio.web.visits import Visit
from genrm_trio.web.wire import Body, Echo, TooManyEntries, read_aggregate, read_close, read_compare, read_seed

PIECE_BYTES = 128 * 1024
"""A long reply is kept in pieces of this size."""

log = structlog.get_logger(__name__)


def ok(body: bytes) -> Reply:
    """A success."""
    return Reply(200, body)


class DataRoutes:
    """The handlers of one server."""

    def __init__(self, server: Server, policy: WebPolicy, reading: Reading) -> None:
        self._server = server
        self._policy = policy
        self._reader = VerifyReader(server.policy)
        self._reading = reading
        self._tables = Reading(policy.max_json_values)  # a table takes many seconds, for which no other body waits
        self._warned_of_omitted_attempt = False

    # -- verify ----------------------------------------------------------------------------------------

    async def verify(self, visit: Visit) -> Reply | LargeReply:
        """Hold the request until its cohort has an outcome (contract 5 and 6)."""
        asked = await self._reading.read_body(self._reader.read, request_body())
        if isinstance(asked, Reply):
            return asked
        if isinstance(asked, Echo):
            stale = self._server.use_session(visit.session_id, visit.episode)
            if stale is not None:
                return errors.control("stale_attempt", stale)
            return self._final(visit, asked.success(default_fields(self._server.policy)))
        if asked.attempt_omitted:
            self._warn_of_omitted_attempt(asked)
        verification = await self._verification(visit, asked)
        echo = asked.echo
        del asked
        answer = await self._server.verify(verification, at_shutdown=partial(visit.last_word, errors.shutting_down()))
        match answer:
            case Rewarded(fields=fields):
                return self._final(visit, echo.success(fields))
            case JudgeFailed(text=text):
                return self._final(visit, echo.masked(text))
            case CohortFailed():
                return errors.of_cohort_failure(answer)
            case Refused():
                return errors.of_refusal(answer, self._policy.retry_after_s)

    async def _verification(self, visit: Visit, asked: Identified) -> Verification:
        """What the runtime is asked. Between the last look at the slot's answer and the return nothing else runs."""
        digests: dict[str, str] = {}
        while True:
            known = self._server.known_answer(asked.cohort.key, asked.index)
            answer = answer_id(asked, known, digests)
            if answer is not None:
                return Verification(
                    cohort=asked.cohort,
                    index=asked.index,
                    prompt=asked.prompt,
                    answer=answer,
                    contender=asked.contender,
                    session=visit.session_id,
                    episode=visit.episode,
                )
            missing = needed_schemes(known) - digests.keys()
            digests |= await self._reading.read(digest_under(missing), asked.response)

    def _final(self, visit: Visit, pieces: Pieces) -> LargeReply:
        """A 2xx reply, which ends its session unless a close will follow (contract 3.4)."""
        follows = request.headers.get(self._policy.close_follows_header, "").strip().lower()
        typed = visit.session.typed or self._server.session_is_typed(visit.session_id)
        if follows in {"", "0", "false"} and not typed:
            visit.after_reply.append(lambda: self._server.end_session(visit.session_id, "verify", visit.episode))
        return LargeReply(pieces)

    def _warn_of_omitted_attempt(self, asked: Identified) -> None:
        if not self._warned_of_omitted_attempt:
            self._warned_of_omitted_attempt = True
            text = "a group id came without _ng_group_attempt, taken as 0; said once"
            log.warning("group_attempt_omitted", cohort=asked.cohort.key, text=text)

    # -- sessions --------------------------------------------------------------------------------------

    async def seed_session(self, visit: Visit) -> Reply:
        """Start, repeat or claim a session (contract 3.2)."""
        if self._policy.checkpoints:
            visit.headers["x-ng-checkpoint-verify"] = "replay"
        seed = await self._reading.read_body(read_seed, request_body())
        if visit.episode is not None and seed.episode not in {None, visit.episode}:
            text = f"episode_id differs from the path's {visit.episode.key!r}"
            raise InvalidBody(Problem("value_error", ("body", "episode_id"), text))
        if seed.session_id is not None:
            visit.session = SessionName(seed.session_id, typed=True)
        episode = visit.episode or seed.episode
        binds = visit.episode is not None
        match self._server.seed(visit.session_id, episode, binds=binds, typed=seed.typed):
            case "stale_attempt":
                visit.headers.clear()
                return errors.control("stale_attempt", f"attempt {episode.key if episode else ''} is retired or over")
            case "shutting_down":
                return errors.shutting_down()
            case "too_busy":
                after = self._policy.retry_after_s
                return errors.detail(503, "too_busy", "too many sessions are open", retry_after_s=after)
            case "bound" | "unbound" | "closed":
                reply: dict[str, JSON] = {}
                if seed.session_id is not None:
                    reply = {"resources_session_id": seed.session_id, "resources_tools": None, "sandbox_access": None}
                return ok(to_json(reply))

    async def close_session(self, visit: Visit) -> Reply:
        """End the cookie's session, known or not (contract 3.3)."""
        close = await self._reading.read_body(read_close, request_body())
        self._server.end_session(visit.session_id, "close", visit.episode)
        return ok(to_json({"resources_session_id": close.session_id}))

    # -- without a session -----------------------------------------------------------------------------

    async def compare(self, visit: Visit) -> Reply:
        """Judge answers at once, outside any cohort (contract 8)."""
        # Every answer but the second takes a comparison of its own at least, so more need not be read.
        bound = max(2, self._server.policy.max_comparisons)
        try:
            asked = await self._reading.read_body(partial(read_compare, most=bound), request_body())
        except TooManyEntries as error:
            return errors.detail(422, "invalid_request", f"{error}, and max_comparisons is {bound}")
        rubrics = self._server.policy.limits.rubrics
        if rubrics and not asked.rubric_ids:
            return errors.detail(422, "invalid_request", "expected_rubric_ids must not be empty in rubric mode")
        if len(asked.answers) < 2:
            score = self._server.policy.scoring.default_score
            alone: list[JSON] = [score for _ in asked.answers]
            return ok(to_json({"rewards": alone, "comparison_results": None, "metrics": None}))
        turns = conversation(asked.conversation)
        rubric_ids = asked.rubric_ids if rubrics else None
        contenders = [Contender(turns, answer, asked.principle, rubric_ids) for answer in asked.answers]
        try:
            scores = await self._server.compare(contenders)
        except JudgeError as error:
            return errors.detail(503, "judge_failed", error.text)
        except TooManyComparisons as error:
            return errors.detail(422, "invalid_request", f"response_objs: {error}")
        results: list[JSON] = [*scores.comparison_results]
        told: dict[str, JSON] = {"rewards": [*scores.rewards], "comparison_results": results, "metrics": scores.metrics}
        return ok(await spoken(told))

    async def aggregate(self, visit: Visit) -> Reply | LargeReply:
        """Statistics over finished rollouts (contract 9)."""
        most = self._policy.max_aggregate_numbers
        return LargeReply(await self._tables.read_body(partial(_aggregated, most=most), request_body()))

    async def reverify_mode(self, visit: Visit) -> Reply:
        """This server cannot verify a finished rollout again."""
        return ok(to_json("unsupported"))

    async def sandbox_access(self, visit: Visit) -> Reply:
        """There is no sandbox."""
        return Reply(404, to_json({"detail": "this server gives no sandbox access"}))


def _aggregated(body: Body, most: int) -> Pieces:
    return gathered(_metrics(Aggregate(read_aggregate(body, most))), PIECE_BYTES)


def _metrics(table: Aggregate) -> Iterator[bytes]:
    """The reply piece by piece: of the groups there is never more than one in memory."""
    yield b'{"group_level_metrics":['
    comma = b""
    for group in table.groups():
        yield comma
        yield from in_pieces(group)
        comma = b","
    yield b"],"
    agent = in_pieces(table.agent())
    next(agent)  # its opening brace is ours
    yield from agent
