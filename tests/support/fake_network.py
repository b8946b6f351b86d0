"""A network as the doors' fake engine pretends it: it never reaches anything, but says what was asked.

A line `denied host:port` in a command's output stands for a connection that the command was denied.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from k8e.engine.packages import pip_install
from k8e.model import Argv, Decision, Denial, ExecResult, Outcome, SandboxId, Status, Verdict

__all__ = ["FakeCounts", "FakeNetwork", "denials"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCounts:
    allowed: int = 1
    denied: int = 2
    closed: int = 1
    bytes_sent: int = 10
    bytes_received: int = 20
    unclaimed: int = 0


def denials(output: bytes) -> tuple[Denial, ...]:
    found = re.findall(rb"^denied (\S+):(\d+)$", output, re.MULTILINE)
    return tuple(Denial(host.decode(), int(port), "not on the session's list") for host, port in found)


class FakeNetwork:
    async def told(self, *, limit: int, follow: bool) -> AsyncIterator[Decision]:
        """Two decisions of the past, and while somebody follows one that comes."""
        past = [_decision(Verdict.ALLOWED, 1.0), _decision(Verdict.CLOSED, 2.0)]
        for decision in past[-limit:]:
            yield decision
        if follow:
            await asyncio.sleep(0)
            yield _decision(Verdict.DENIED, 3.0)

    def installed(self, packages: Sequence[str]) -> ExecResult:
        """What would have been started. Raises: InvalidSpec."""
        what = pip_install(packages).what
        assert isinstance(what, Argv)
        outcome = Outcome(status=Status.COMPLETED, exit_code=0)
        return ExecResult(stdout=" ".join(what.argv).encode(), stderr=b"", outcome=outcome)


def _decision(verdict: Verdict, at: float) -> Decision:
    is_denied = verdict is Verdict.DENIED
    return Decision(
        at=at,
        sandbox=SandboxId("sb"),
        verdict=verdict,
        protocol="tls",
        name="a.example",
        address="203.0.113.9",
        port=443,
        rule="" if is_denied else "*.example",
        reason="not on the session's list" if is_denied else "",
        bytes_sent=3 if verdict is Verdict.CLOSED else 0,
        bytes_received=5 if verdict is Verdict.CLOSED else 0,
    )
