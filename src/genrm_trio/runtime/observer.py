"""What the runtime tells whoever counts and logs. No-ops here; the ops room overrides them."""

from genrm_trio.core.cohort import Cohort
from genrm_trio.core.outcome import Answer


class Observer:
    """Hears what happened. Must not raise, block or call back."""

    def cohort_started(self, key: str) -> None:
        """A first member opened this cohort."""

    def cohort_ended(self, cohort: Cohort, seconds: float) -> None:
        """A cohort became terminal, this long after its first member came."""

    def cohort_crashed(self, key: str, error: Exception) -> None:
        """An unexpected error ended this cohort; its members were told so."""

    def shut_down(self, cohorts: int, waiters: int) -> None:
        """The server shut down with so many active cohorts, and answered so many waiting `/verify`."""

    def verified(self, answer: Answer) -> None:
        """A `/verify` has its answer."""

    def disconnected(self, key: str) -> None:
        """A waiting `/verify` of this cohort went away before its answer."""
