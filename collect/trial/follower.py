"""The trial of a rank that follows: it switches when the leading rank says so."""

from __future__ import annotations

from typing import Any, Iterator

from .blocks import Blocks
from .switches import Switches


class Follower(Blocks):
    """Times the same blocks as the leader, and decides nothing."""

    def _continue(self) -> None:
        """Take nothing over: the leader has what earlier runs measured."""
        self._total = 0
        self.earlier = {}

    def _plan(self) -> Iterator[None]:
        yield
        self._begin()
        self.state["follows"] = True
        while self.agreement is not None and not self.agreement.over:
            published = self.agreement.next()
            if published is None:
                yield
                continue
            self._switch_number, switch = published
            while self.session.schedule.seen < switch["at"]:
                yield
            if switch.get("end"):
                return
            yield from self._follow(switch)

    def _follow(self, switch: dict[str, Any]) -> Iterator[None]:
        switches = self._made(switch["wanted"])
        switches.set(tuple(switch["on"]))
        for _ in range(switch["steps"]):
            yield
            switches.step()
        if switch["measured"]:
            self.block_steps = switch["measured"]
            yield from self._measure(tuple(switch["base"]))
            self.save()

    def _made(self, wanted: list[str]) -> Switches:
        """Return the switches of the leader's remedies."""
        if self.switches is None:
            assert self.program is not None  # noqa: S101 - for the type checker
            allow = bool(self.settings["allow"])
            self.switches = Switches(self.program, wanted[1:], allow=allow)
            self.state["remedies"] = self.switches.facts
        return self.switches

    def _check_time(self) -> None:
        """Go on: the leader ends the trial."""
