"""Terminals, on every runtime: a real tty that can be typed into, resized, signalled and closed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable

import pytest

from k8e.errors import InvalidSpec, NotFound
from k8e.model import Outcome, OwnerId, Reason, TerminalSize
from tests.support.cells import OWNER, Cell

pytestmark = pytest.mark.anyio


_PROMPT = b"# "
_WAITING_FOR_CONTROL_C = b'python3 -c \'import signal as s; s.pthread_sigmask(0, {2}); print("rea" "dy"); s.sigwait({2}); print("cau" "ght")\'\n'


class _Screen:
    """Reads a terminal until it has shown what a test waits for."""

    def __init__(self, shown: AsyncIterator[bytes | Outcome]) -> None:
        self._shown = shown
        self.text = b""
        self.outcome: Outcome | None = None

    async def until(self, wanted: bytes) -> None:
        await self._until(lambda: wanted in self.text)

    async def until_prompt_after(self, wanted: bytes) -> None:
        """And until the shell reads again: what is typed while it cleans up after a signal may be thrown away."""
        await self._until(lambda: _PROMPT in self.text.rpartition(wanted)[2] and wanted in self.text)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(60):
                while not is_so():
                    item = await anext(self._shown)
                    assert not isinstance(item, Outcome), self.text
                    self.text += item
        except TimeoutError:
            pytest.fail(f"it shows no more than {self.text!r}")

    async def end(self) -> Outcome:
        async with asyncio.timeout(60):
            async for item in self._shown:
                if isinstance(item, Outcome):
                    return item
                self.text += item
        raise AssertionError("no outcome")


async def _open(cell: Cell, *argv: str) -> tuple[str, _Screen]:
    view = await cell.engine.create_terminal(OWNER, cell.id, argv=argv or ("/bin/bash", "--norc", "-i"))
    return view.terminal_id, _Screen(cell.engine.open_terminal(OWNER, view.terminal_id))


async def test_a_shell_is_interactive(cell: Cell) -> None:
    terminal, screen = await _open(cell)
    await cell.engine.write_terminal(OWNER, terminal, b"tty; echo $((6*7))\n")
    await screen.until(b"/dev/pts/")
    await screen.until(b"42\r\n")
    await cell.engine.write_terminal(OWNER, terminal, b"exit 5\n")
    assert (await screen.end()).exit_code == 5


async def test_a_resize_reaches_the_program(cell: Cell) -> None:
    terminal, screen = await _open(cell)
    await cell.engine.resize_terminal(OWNER, terminal, TerminalSize(rows=40, cols=132))
    await cell.engine.write_terminal(OWNER, terminal, b"stty size\n")
    await screen.until(b"40 132")
    await cell.engine.destroy_terminal(OWNER, terminal)


async def test_control_c_and_signals_reach_the_foreground_group(cell: Cell) -> None:
    terminal, screen = await _open(cell)
    # A program that waits for nothing else: bash at its prompt may keep what it has caught until the next key.
    await cell.engine.write_terminal(OWNER, terminal, _WAITING_FOR_CONTROL_C)
    await screen.until(b"ready")
    await cell.engine.write_terminal(OWNER, terminal, b"\x03")
    await screen.until_prompt_after(b"caught")
    shell_group, _ = await cell.engine.foreground(OWNER, terminal)
    await cell.engine.write_terminal(OWNER, terminal, b"sleep 1000\n")
    while (await cell.engine.foreground(OWNER, terminal))[0] == shell_group:
        await asyncio.sleep(0.01)
    # Its group has its turn a moment before it is what it will be, and until then a signal may be lost in the shell.
    async with asyncio.timeout(60):
        while b"sleep" not in (await cell.sh("cat /proc/[0-9]*/comm")).stdout:
            pass
    await cell.engine.signal_terminal(OWNER, terminal, signal.SIGINT)
    await screen.until_prompt_after(b"sleep 1000")
    await cell.engine.write_terminal(OWNER, terminal, b"echo ba''ck\n")
    await screen.until(b"back")
    await cell.engine.destroy_terminal(OWNER, terminal)


async def test_a_second_viewer_sees_what_was_shown(cell: Cell) -> None:
    terminal, screen = await _open(cell)
    await cell.engine.write_terminal(OWNER, terminal, b"echo mem''ory\n")
    await screen.until(b"memory")
    again = _Screen(cell.engine.open_terminal(OWNER, terminal))
    await again.until(b"memory")
    await cell.engine.destroy_terminal(OWNER, terminal, grace_s=1.0)


async def test_whoever_watches_a_terminal_that_is_closed_hears_its_end(cell: Cell) -> None:
    terminal, screen = await _open(cell, "/bin/sh", "-c", "echo rea''dy; exec sleep 1000")
    await screen.until(b"ready")
    await cell.engine.destroy_terminal(OWNER, terminal)
    outcome = await screen.end()
    assert (outcome.reason, outcome.signal, outcome.exit_code) == (Reason.KILLED, signal.SIGKILL, 137)


async def test_nobody_watching_does_not_block_the_program(cell: Cell) -> None:
    view = await cell.engine.create_terminal(
        OWNER, cell.id, argv=["/bin/sh", "-c", "head -c 20000000 /dev/zero; echo done > /workspace/done; sleep 1000"]
    )
    async with asyncio.timeout(60):
        while not (await cell.sh("cat /workspace/done 2>/dev/null")).stdout:
            pass
    await cell.engine.destroy_terminal(OWNER, view.terminal_id)


async def test_a_program_that_cannot_start_is_said_so(cell: Cell) -> None:
    with pytest.raises(InvalidSpec, match="no-such"):
        await cell.engine.create_terminal(OWNER, cell.id, argv=["/no-such"])


async def test_a_strangers_terminal_is_not_found(cell: Cell) -> None:
    terminal, _screen = await _open(cell)
    with pytest.raises(NotFound):
        await cell.engine.write_terminal(OwnerId("uid:777"), terminal, b"id\n")
    await cell.engine.destroy_terminal(OWNER, terminal)
    with pytest.raises(NotFound):
        await cell.engine.write_terminal(OWNER, terminal, b"id\n")
