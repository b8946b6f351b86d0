"""What becomes of a sandbox that runs out of memory, by what its agent answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from k8e.engine.substrate import Dead
from k8e.errors import SandboxFailed
from k8e.model import Claim, Death, SandboxId, Template
from k8e.substrate.machine import Machine
from k8e.substrate.machine_substrate import MachineSubstrate
from k8e.substrate.owners import SandboxOwners
from k8e.tasks import Tasks
from k8e.wire.aio import Credentials, Link, LinkLost, RemoteError

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
SANDBOX = SandboxId("sb-x")
_GATEWAY = "gw"
_KILLED = {"pid": 7}
_NOBODY = RemoteError("not_found", "there is no process to kill")


class _Starving:
    """A sandbox, and the link to its agent, that is out of memory once for each answer."""

    def __init__(self, answers: Sequence[dict[str, int] | Exception], owners_dir: Path) -> None:
        self.owners_dir = owners_dir
        owners = SandboxOwners(owners_dir, _GATEWAY)
        owners.make(SANDBOX)
        owners.close()
        self._answers = list(answers)
        self._gone = asyncio.Event()
        self.idle = asyncio.Event()
        self.relieved_times = 0
        self.is_lost = False

    async def tend(self) -> None:
        pass

    async def warm(self) -> Mapping[SandboxId, Template]:
        return {}

    async def survivors(self) -> frozenset[SandboxId]:
        return frozenset({SANDBOX})

    def alive(self, sandbox: SandboxId) -> bool:
        return not self._gone.is_set()

    async def dial(self, sandbox: SandboxId, credentials: Credentials) -> Link:
        return cast("Link", self)

    async def closed(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass

    async def call(self, op: str, args: dict[str, Any], *, timeout_s: float) -> dict[str, int]:
        assert op == "oom"
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def out_of_memory(self, sandbox: SandboxId) -> None:
        if not self._answers and not self._gone.is_set():
            self.idle.set()
        if not self._answers:
            await asyncio.Event().wait()

    async def relieved(self, sandbox: SandboxId) -> None:
        self.relieved_times += 1

    async def death(self, sandbox: SandboxId) -> Death:
        await self._gone.wait()
        return Death(detail="removed")

    async def destroy(self, sandbox: SandboxId) -> None:
        self._gone.set()


async def _fate(starving: _Starving) -> Death | None:
    """How it died, if it did."""
    deaths: list[Death] = []
    async with Tasks() as tasks:
        substrate = MachineSubstrate(cast("Machine", starving))
        await substrate.begin(tasks, gateway=_GATEWAY, usual=Claim(cpus=1, processes=1), check_room=lambda: None)

        async def listen() -> None:
            async for change in substrate.changes():
                if isinstance(change, Dead):
                    deaths.append(change.death)
                    starving.idle.set()

        tasks.start(listen(), name="listen")
        async with asyncio.timeout(PATIENCE_S):
            await starving.idle.wait()
        await substrate.close()
    return deaths[0] if deaths else None


@pytest.mark.parametrize("answers", [[_KILLED], [_KILLED, _KILLED], [_NOBODY], [_NOBODY, _KILLED, _NOBODY]])
async def test_it_lives_on_when_the_hog_is_gone(answers: list[dict[str, int] | Exception], tmp_path: Path) -> None:
    starving = _Starving(answers, tmp_path)
    assert await _fate(starving) is None
    assert starving.relieved_times == len(answers)


@pytest.mark.parametrize(
    "answers",
    [
        [_NOBODY, _NOBODY],
        [LinkLost("reset")],
        [TimeoutError()],
        [_KILLED, RemoteError("internal", "?")],
        [{"pid": 2**70}],
        [{}],
        [ValueError("the arguments do not fit")],
        [cast("dict[str, int]", ["7"])],
    ],
)
async def test_it_is_removed_for_memory_when_nobody_can_be_killed(
    answers: list[dict[str, int] | Exception], tmp_path: Path
) -> None:
    death = await _fate(_Starving(answers, tmp_path))
    assert death is not None
    assert death.oom


class _Surprising(_Starving):
    """Raises what no machine should: the first time that it is asked for its memory, and at each `relieved`."""

    def __init__(self, owners_dir: Path) -> None:
        super().__init__([_KILLED], owners_dir)
        self.has_raised = False

    async def out_of_memory(self, sandbox: SandboxId) -> None:
        if not self.has_raised:
            self.has_raised = True
            raise ValueError("a counter that is no number")
        await super().out_of_memory(sandbox)

    async def relieved(self, sandbox: SandboxId) -> None:
        raise ValueError("a limit that is no number")


async def test_whatever_its_driver_raises_its_memory_is_watched_and_it_does_not_stay_frozen(tmp_path: Path) -> None:
    surprising = _Surprising(tmp_path)
    death = await _fate(surprising)
    assert surprising.has_raised, "the control"
    assert death is not None
    assert death.oom


class _Stays(_Starving):
    """Its removal fails: for good, but with its processes dead by then, or twice with nothing done."""

    def __init__(self, owners_dir: Path, *, is_ended: bool, error: Exception) -> None:
        super().__init__([LinkLost("reset")], owners_dir)
        self._is_ended = is_ended
        self._error = error
        self.tries = 0

    async def destroy(self, sandbox: SandboxId) -> None:
        self.tries += 1
        if self._is_ended:
            self._gone.set()
        if self._is_ended or self.tries < 3:
            raise self._error
        self._gone.set()


@pytest.mark.parametrize("error", [SandboxFailed("destroy", "mounts remain"), ValueError("no path")], ids=repr)
@pytest.mark.parametrize("is_ended", [True, False], ids=["it is dead", "it goes on"])
async def test_its_death_is_told_also_when_its_removal_fails(tmp_path: Path, is_ended: bool, error: Exception) -> None:
    stays = _Stays(tmp_path, is_ended=is_ended, error=error)
    death = await _fate(stays)
    assert death is not None
    assert death.oom
    assert stays.tries == (1 if is_ended else 3)
