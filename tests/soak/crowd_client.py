"""Many clients in one process, each with a session, its commands, files and background runs, until they are told to
stop or killed: `python -m tests.soak.crowd_client JOURNAL STOP CLIENTS SEED`.

Every answer is compared with what it must be. A server that is gone is waited for; anything else that is neither right
nor a stated limit is written down as wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from k8e.client import AsyncSandboxClient, Chunk, Exhausted, Exit, NotFound, SandboxError, Unreachable
from k8e.client.discovery import discover
from tests.soak.journal import Journal, Run

__all__ = ["Walker"]

_PAUSE_S = 0.2
_PATIENCE_S = 120
"""For a command: how many others this machine has to serve meanwhile is not its fault."""
_GVISOR_SHARE = 0.05
_MOST_RUNS = 3

T = TypeVar("T")
Step = Callable[["Walker"], Awaitable[None]]


class Walker:
    """One client: it knows what it was promised, across all connections."""

    def __init__(self, journal: Journal, stop: Path, source: random.Random) -> None:
        self._journal = journal
        self._stop = stop
        self._source = source
        self._client: AsyncSandboxClient
        self._sid = ""
        self._content = b""
        self._runs: list[Run] = []

    async def live(self) -> None:
        while not self._stop.exists():
            try:
                async with AsyncSandboxClient(target=discover()) as self._client:
                    await self._walk()
            except (Unreachable, OSError):
                # The server is gone, and with it the connection; the next one publishes its own address.
                await asyncio.sleep(_PAUSE_S)
            except Exhausted as limit:
                await asyncio.sleep(limit.retry_after_s or _PAUSE_S)

    async def _walk(self) -> None:
        while not self._stop.exists():
            if not self._sid:
                await self._create()
            await self._source.choices(_STEPS, _WEIGHTS)[0](self)

    async def _call(self, name: str, answer: Awaitable[T]) -> T:
        """Wait for an answer and write down what came of it."""
        begun, outcome = time.monotonic(), "ok"
        try:
            return await answer
        except SandboxError as error:
            outcome = type(error).__name__
            # The SDK asks again for an end, and the server that died may have brought it about before it could answer.
            is_repeated = name == "destroy" and isinstance(error, NotFound)
            if not isinstance(error, Unreachable | Exhausted) and not is_repeated:
                self._journal.write("wrong", f"{name} in {self._sid}: {error!r}")
            raise
        finally:
            self._journal.write("call", name, outcome, begun, time.monotonic())

    def _expect(self, name: str, found: object, wanted: object) -> None:
        if found != wanted:
            shown = " ".join(
                text if len(text) < 200 else f"{text[:50]}…{text[-150:]}" for text in map(repr, (found, wanted))
            )
            self._journal.write("wrong", f"{name} in {self._sid}: found and wanted are {shown}")

    async def _create(self) -> None:
        runtime = "gvisor" if self._source.random() < _GVISOR_SHARE else "container"
        self._sid = await self._call("create", self._client.create_session(runtime_class=runtime))
        self._content = b""
        self._journal.write("session", self._sid)

    async def replace(self) -> None:
        """End the session, once all of its runs have given what they must, and begin another."""
        while self._runs:
            await self.check()
        sid, self._sid = self._sid, ""
        self._journal.write("leaving", sid)
        with contextlib.suppress(NotFound):
            await self._call("destroy", self._client.destroy_session(sid))
        await self._create()

    async def command(self) -> None:
        lines = self._source.randrange(1, 2000)
        command = f"seq {lines} | tail -1; exit {lines % 200}"
        answer = await self._call("exec", self._client.exec(self._sid, command, timeout=_PATIENCE_S))
        self._expect("exec", (answer.stdout, answer.exit_code), (f"{lines}\n", lines % 200))

    async def python(self) -> None:
        number = self._source.randrange(10**9)
        code = f"print({number} + 1)"
        answer = await self._call("run", self._client.run(code, "python", timeout=_PATIENCE_S, session_id=self._sid))
        self._expect("run", (answer.stdout, answer.exit_code), (f"{number + 1}\n", 0))

    async def write(self) -> None:
        data = self._source.randbytes(self._source.randrange(50_000))
        try:
            await self._call("write", self._client.write_file(self._sid, "/workspace/file", data))
        except Unreachable:
            self._content = b""  # the old one or the new one; nobody knows
            raise
        self._content = data

    async def read(self) -> None:
        if self._content:
            found = await self._call("read", self._client.read_bytes(self._sid, "/workspace/file"))
            self._expect("read", found == self._content, True)

    async def look(self) -> None:
        view = await self._call("get", self._client.get(self._sid))
        self._expect("get", view.session_id, self._sid)

    async def start(self) -> None:
        if len(self._runs) >= _MOST_RUNS:
            await self.check()
            return
        planned = Run(self._sid, "", self._source.randrange(1, 500), self._source.randrange(1, 200))
        command = planned.command(self._source.uniform(0, 2))
        run_id = await self._call("start", self._client.start_run(self._sid, command))
        self._journal.write("run", self._sid, run_id, planned.lines, planned.code)
        self._runs.append(Run(self._sid, run_id, planned.lines, planned.code))

    async def check(self) -> None:
        if self._runs:
            run = self._runs[0]
            found = await self._call("attach", result(self._client, run.run_id))
            self._expect("attach", found, (run.output, run.code))
            self._journal.write("checked", run.run_id)
            self._runs.remove(run)


async def result(client: AsyncSandboxClient, run_id: str) -> tuple[bytes, int | None]:
    output, code = b"", None
    async for item in client.attach_run(run_id):
        match item:
            case Chunk():
                output += item.data
            case Exit():
                code = item.exit_code
    return output, code


_CHANCES: dict[Step, int] = {
    Walker.command: 38, Walker.python: 12, Walker.write: 11, Walker.read: 12, Walker.look: 8, Walker.start: 8,
    Walker.check: 7, Walker.replace: 4,
}  # fmt: skip
_STEPS, _WEIGHTS = list(_CHANCES), list(_CHANCES.values())


async def _crowd(journal: Journal, stop: Path, clients: int, seed: int) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            walker = Walker(journal, stop, random.Random(f"{seed}/{number}"))
            group.create_task(walker.live(), name=f"client {number}")


def _main() -> None:
    journal, stop, clients, seed = sys.argv[1:]
    asyncio.run(_crowd(Journal(Path(journal)), Path(stop), int(clients), int(seed)))


if __name__ == "__main__":
    _main()
