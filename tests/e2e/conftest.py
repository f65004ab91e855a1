"""One program for the whole run that forks server processes, so that a test need not wait for imports."""

from collections.abc import Iterator

import pytest
from tests.support.server_process import forks


@pytest.fixture(scope="session", autouse=True)
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start it in the folder in which the folders of the tests lie, where `stage` looks for its socket."""
    with forks(tmp_path_factory.getbasetemp()):
        yield
