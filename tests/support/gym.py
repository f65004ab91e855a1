"""NeMo Gym's side of the wire: rollouts as its agents and environment servers run them, and NeMo RL's controller.

They do what the contract says these clients do (chapters 3 and 10.7), and know no more than they are told.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio
from tests.support.peer import Dropped, Peer, Reply
from tests.support.verdicts import AnswerMark

CLOSE_FOLLOWS: Final = {"x-ng-close-follows": "1"}
CONTROL: Final = "/ng-control/v1/checkpoint"


def response_object(text: str) -> dict[str, Any]:
    """A Responses object with one message, with a little of what training adds to it."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "msg", "type": "message", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": "resp",
        "created_at": 1700000000.0,
        "model": "policy",
        "object": "response",
        "output": [{**message, "prompt_token_ids": [1, 2, 3], "generation_log_probs": [-0.5, -0.25]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def row(mark: AnswerMark) -> dict[str, Any]:
    """A row of the dataset as the trainer sends it around, without an answer yet."""
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"prompt of {mark.group}"}]},
        "_ng_group_id": mark.group,
        "_ng_group_attempt": mark.attempt,
        "_ng_rollout_index": mark.index,
        "agent_ref": {"type": "responses_api_agents", "name": "simple_agent"},
    }


def verify_body(mark: AnswerMark) -> dict[str, Any]:
    """The row with its answer."""
    return {**row(mark), "response": response_object(mark.text)}


@dataclass(frozen=True)
class Outcome:
    """What a rollout was told by a 200: its reward, or that the judge failed (then `reward` is None)."""

    reward: float | None
    failure: str | None = None

    @staticmethod
    def of(reply: Reply) -> "Outcome":
        """Read a `/verify` reply; anything but a whole 200 is an assertion error that shows it."""
        assert reply.status == 200, f"{reply.status} {reply.body[:500]!r}"
        body = reply.json
        if body["mask_sample"]:
            assert body["failure_kind"] == "judge_failed", body
            return Outcome(None, body["failure_reason"])
        return Outcome(body["reward"])


class Rollout:
    """One rollout: it seeds a session, verifies an answer, and closes, each under its episode's prefix.

    typed: run by an environment server, whose session id is its own; else by an agent, which gets a cookie.
    attempt: of the episode. mark: its answer. cookie: that of its seed reply, sent from then on.
    """

    def __init__(self, peer: Peer, mark: AnswerMark, *, attempt: int = 0, typed: bool = False, name: str = "") -> None:
        self.peer = peer
        self.mark = mark
        self.attempt = attempt
        self.typed = typed
        self.rollout_id = name or f"{mark.group}-{mark.index}"
        self.session_id = f"session-of-{self.rollout_id}-{attempt}"
        self.cookie: str | None = None

    @property
    def key(self) -> str:
        """Its capture key."""
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id

    @property
    def episode(self) -> dict[str, Any]:
        return {"rollout_id": self.rollout_id, "attempt": self.attempt}

    @property
    def next_key(self) -> str:
        """The key under which it goes on after a restore."""
        return f"{self.rollout_id}-a{self.attempt + 1}"

    def restored(self, peer: Peer) -> "Rollout":
        """The same rollout after a restore: next attempt, same session, same cookie, same answer."""
        again = Rollout(peer, self.mark, attempt=self.attempt + 1, typed=self.typed, name=self.rollout_id)
        again.session_id, again.cookie = self.session_id, self.cookie
        return again

    async def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Reply:
        """Post under the prefix, with the cookie, until some reply came."""
        sent = dict(headers or {})
        if self.cookie is not None:
            sent["cookie"] = f"agents_own=1; {self.cookie}"
        return await self.peer.insist("POST", f"/ng-rollout/{self.key}{path}", body, sent)

    async def seed(self) -> Reply:
        """Make the session; keeps the cookie of a 200."""
        reply = await self.post("/seed_session", self._seed_body())
        if reply.status == 200 and reply.cookies:
            name, value = next(iter(reply.cookies.items()))
            self.cookie = f"{name}={value}"
        return reply

    def _seed_body(self) -> dict[str, Any]:
        if not self.typed:
            return row(self.mark)
        task = {"taskset": "math", "task_id": self.mark.group}
        return {
            "resources_session_id": self.session_id,
            "episode_id": self.episode,
            "task_id": task,
            "task_data": row(self.mark),
        }

    async def verify(self, *, close_follows: bool = True) -> Reply:
        """Post the answer and wait for what the cohort comes to.

        An environment server's session stays open after the reply in any case; an agent has to say that it will close.
        """
        headers = CLOSE_FOLLOWS if close_follows and not self.typed else {}
        return await self.post("/verify", verify_body(self.mark), headers)

    async def close(self) -> Reply:
        """Say that the reply is recorded and nothing more will come."""
        return await self.post("/close_session", {"resources_session_id": self.session_id, "episode_id": self.episode})


class ControlFailed(AssertionError):
    """A control call did not get its 200."""

    def __init__(self, call: str, reply: Reply) -> None:
        super().__init__(f"{call}: {reply.status} {reply.body[:1000]!r}")
        self.reply = reply


class Controller:
    """NeMo RL's controller, as far as it talks to this server."""

    def __init__(self, peer: Peer, token: str, *, deadline_s: float = 20.0) -> None:
        self.peer = peer
        self.deadline_s = deadline_s
        self._headers = {"authorization": f"Bearer {token}"}

    async def reply(self, call: str, checkpoint_id: str, *, deadline_s: float | None = None, **more: object) -> Reply:
        """Make a call and return its reply, whatever it is. A failed connection is tried again until the deadline."""
        with trio.fail_after(max(self.deadline_s if deadline_s is None else deadline_s, 0) + 5):
            while True:
                try:
                    return await self.once(call, checkpoint_id, deadline_s=deadline_s, **more)
                except Dropped:
                    await trio.sleep(0.05)

    async def once(self, call: str, checkpoint_id: str, *, deadline_s: float | None = None, **more: object) -> Reply:
        """Make a call over one connection; raises Dropped."""
        allowed = self.deadline_s if deadline_s is None else deadline_s
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": time.time() + allowed, **more}
        return await self.peer.ask("POST", f"{CONTROL}/{call}", body, self._headers)

    async def call(self, call: str, checkpoint_id: str, **more: Any) -> Any:
        """Make a call that must succeed; returns its body. Raises ControlFailed."""
        reply = await self.reply(call, checkpoint_id, **more)
        if reply.status != 200:
            raise ControlFailed(call, reply)
        return reply.json

    async def status(self) -> Any:
        """What the server says of itself."""
        reply = await self.peer.ask("GET", f"{CONTROL}/status", headers=self._headers)
        if reply.status != 200:
            raise ControlFailed("status", reply)
        return reply.json

    async def prepare(self, checkpoint_id: str) -> Any:
        """Close admission; the server must get ready within the deadline."""
        body = await self.call("prepare", checkpoint_id)
        assert body["phase"] == "prepared", body
        return body

    async def commit(self, checkpoint_id: str, folder: Path, keys: Iterable[str] | None = None) -> Any:
        """Have everything written, or what belongs to these episodes."""
        scope = None if keys is None else list(keys)
        return await self.call("commit", checkpoint_id, checkpoint_dir=str(folder), episode_ids=scope)

    async def restore(self, checkpoint_id: str, folder: Path, keys: Iterable[str]) -> Any:
        """Have the saved attempts of these episodes restored."""
        return await self.call("restore", checkpoint_id, checkpoint_dir=str(folder), episode_ids=list(keys))

    async def resume(self, checkpoint_id: str) -> Any:
        """Open admission."""
        return await self.call("resume", checkpoint_id)

    async def retire(self, checkpoint_id: str, keys: Iterable[str]) -> Any:
        """Have these attempts refused and freed."""
        return await self.call("retire", checkpoint_id, episode_ids=list(keys))

    async def forget(self, checkpoint_id: str, rollout_ids: Iterable[str]) -> Any:
        """Have the marks of these rollouts dropped."""
        return await self.call("forget", checkpoint_id, rollout_ids=list(rollout_ids))
