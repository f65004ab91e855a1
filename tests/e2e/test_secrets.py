"""No secret of the real process is in its log, in an answer or in its metrics, whoever hands one back to it.

What a client sends, such as a group's id, comes back to that client unchanged; only its log lines have it masked.
"""

from pathlib import Path
from typing import Any, Final

import trio
from tests.e2e.test_restarts import is_refused
from tests.support.fake_judge import Call, FakeJudge, Reply
from tests.support.gym import CONTROL, Controller, verify_body
from tests.support.peer import Reply as Answer
from tests.support.server_process import ServerProcess, servers, settings_for
from tests.support.verdicts import AnswerMark

SESSION: Final = "session-secret-5b1e"
DATA: Final = "data-token-90c4"
CLOSED: Final = "control-token-27ad"
KEY: Final = "sk-judge-key-e836"
WRONG: Final = "wrong-token-6d2f"
SECRETS: Final = (SESSION, DATA, CLOSED, KEY)


def echo(call: Call) -> Reply:
    """A judge that refuses its client's key and repeats it, in a header too."""
    sent = call.headers["authorization"]
    return Reply(401, body={"error": {"message": f"no such key: {sent}"}}, headers={"x-refused": sent})


class Asker:
    """Asks the server, and keeps what is answered."""

    def __init__(self, server: ServerProcess) -> None:
        self.peer = server.peer
        self.answers: list[Answer] = []

    async def ask(self, method: str, path: str, token: str, body: Any = None) -> Answer:
        reply = await self.peer.ask(method, path, body, {"authorization": f"Bearer {token}"})
        self.answers.append(reply)
        return reply

    async def cohort(self, group: str) -> None:
        """Two members of a cohort, which the judge fails."""
        async with trio.open_nursery() as nursery:
            for index in range(2):
                body = {**verify_body(AnswerMark("g", 0, index)), "_ng_group_id": group}
                nursery.start_soon(self.ask, "POST", "/verify", DATA, body)


async def test_no_secret_is_in_the_log_in_an_answer_or_in_the_metrics(tmp_path: Path) -> None:
    judge = FakeJudge(echo)
    async with judge.running():
        settings = settings_for(
            judge.url,
            session_secret=SESSION,
            data_auth_token=DATA,
            debug_logging=True,
            judge={"api_key": KEY},
            checkpoint={"control_auth_token": CLOSED},
        )
        async with servers(tmp_path, settings, tmp_path.parent / "forks") as house:
            server = await house.start()
            asker = Asker(server)
            for token in (WRONG, f"{DATA}x", CLOSED):
                is_refused(await asker.ask("POST", "/verify", token, b"{"), 401, "unauthorized")
            for token in (WRONG, f"{CLOSED}x", DATA):
                is_refused(await asker.ask("POST", f"{CONTROL}/prepare", token, b"{"), 401, "unauthorized")
            await asker.cohort("g")
            assert ["***" in reply.json["failure_reason"] for reply in asker.answers[-2:]] == [True] * 2
            resumed = await Controller(server.peer, CLOSED).once("resume", CLOSED)  # one argument taken for another
            assert resumed.status == 200
            asker.answers.append(resumed)
            await asker.ask("GET", "/metrics", DATA)
            assert asker.answers[-1].status == 200
            await Asker(server).cohort(" ".join(SECRETS))
            assert await server.terminate() == 0
            ended = await server.logged("cohort_ended")
            assert [line["cohort"] for line in ended] == [
                f"group_id::{group}::group_attempt::0" for group in ("g", "*** *** *** ***")
            ]
            assert [line["checkpoint_id"] for line in await server.logged("control_call")] == ["***"]
            log = server.log.read_text()
            assert "x-refused" in log, "the log for debugging has the headers of replies"
            assert WRONG not in log, "what a client offers for a token is not for a log either"
            shown = [text for text in (log, *map(repr, asker.answers)) if any(secret in text for secret in SECRETS)]
            assert not shown
