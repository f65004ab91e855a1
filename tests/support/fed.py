"""Counts what the HTTP parsers of one side are given between two turns of the event loop: what bounds a long step."""

import h11
import pytest
import trio


class Fed:
    """What the parsers of a role got in bytes and gave in events, at most, since `watch` last had its turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.since = self.worst = 0
        self.events = self.most_events = 0
        give, take = h11.Connection.receive_data, h11.Connection.next_event

        def receive_data(parser: h11.Connection, data: bytes) -> None:
            if parser.our_role is role:
                self.since += len(data)
                self.worst = max(self.worst, self.since)
            give(parser, data)

        def next_event(parser: h11.Connection) -> object:
            if parser.our_role is role:
                self.events += 1
                self.most_events = max(self.most_events, self.events)
            return take(parser)

        monkeypatch.setattr(h11.Connection, "receive_data", receive_data)
        monkeypatch.setattr(h11.Connection, "next_event", next_event)

    async def watch(self) -> None:
        """Have a turn again and again, for ever."""
        while True:
            self.since = self.events = 0
            await trio.lowlevel.checkpoint()
