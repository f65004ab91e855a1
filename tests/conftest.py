"""Settings of all property tests: no time limit for an example, since a busy machine may be slow at any of them.

What was imported by the time that all tests are known is left out of garbage collections: each would walk it.
"""

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("genrm-trio", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("genrm-trio")


def pytest_collection_finish() -> None:
    """All tests are known."""
    gc.collect()
    gc.freeze()
