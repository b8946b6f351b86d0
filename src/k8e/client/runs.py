"""Calls about background runs, and one run as an object."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping

from k8e._proto import sandbox_pb2 as pb
from k8e.client.errors import DeadlineExceeded
from k8e.client.execs import Command, exec_request, output_item
from k8e.client.network import denials
from k8e.client.resuming import Resuming
from k8e.client.transport import GATED_S, QUICK_S
from k8e.client.values import Chunk, Exit, RunInfo

__all__ = ["AsyncRun", "RunCalls"]


class RunCalls(Resuming):
    async def start_run(
        self,
        session_id: str,
        command: Command,
        timeout: float = 0,
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        stdin: bool = False,
    ) -> str:
        """Start a command in the background and return its run's id.

        With `stdin` its input stays open until `send_input` by that id says `eof`; else it reads end-of-file.
        """
        request = exec_request(session_id, command, timeout, workdir=workdir, env=env, user=user)
        return await self._started(request, stdin=stdin)

    async def poll_run(self, run_id: str) -> RunInfo:
        """How a background run is doing, with its output so far."""
        return run_info(await self._call(self._stub.PollRun, pb.PollRunRequest(run_id=run_id), timeout_s=QUICK_S))

    async def attach_run(
        self, run_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncIterator[Chunk | Exit]:
        """A run's output from the given offsets on, as it comes; leaving the loop does not stop the run."""

        def following(stdout: int, stderr: int) -> AsyncIterator[Chunk | Exit]:
            return self._run_output(pb.AttachRunRequest(run_id=run_id, stdout_offset=stdout, stderr_offset=stderr))

        first = functools.partial(following, stdout_offset, stderr_offset)
        async for item in self._resumed(first, following, stdout_offset, stderr_offset):
            yield item

    async def _run_output(self, request: pb.AttachRunRequest) -> AsyncIterator[Chunk | Exit]:
        async for message in self._each(self._stub.AttachRun(request)):
            yield output_item(message)

    async def kill_run(self, run_id: str, signal: int = 9) -> None:
        """Signal a run; 9 ends everything it started."""
        await self._call(self._stub.KillRun, pb.KillRunRequest(run_id=run_id, signal=signal), timeout_s=QUICK_S)

    async def runs(self, session_id: str) -> list[RunInfo]:
        """A session's background runs, oldest first, without their output."""
        request = pb.ListRunsRequest(session_id=session_id)
        return [run_info(each) async for page in self._pages(self._stub.ListRuns, request) for each in page.runs]

    async def _started(self, request: pb.ExecRequest, *, stdin: bool) -> str:
        request.background, request.with_stdin = True, stdin
        return (await self._call(self._stub.Exec, request, timeout_s=GATED_S)).run_id


class AsyncRun:
    """A background run; letting go of the object leaves the run alone."""

    def __init__(self, calls: RunCalls, run_id: str) -> None:
        self._calls = calls
        self.run_id = run_id

    async def poll(self) -> RunInfo:
        """How it is doing, with its output so far."""
        return await self._calls.poll_run(self.run_id)

    async def wait(self, timeout: float | None = None) -> RunInfo:
        """Wait for its end. Raises: DeadlineExceeded, and then the run goes on."""
        try:
            async with asyncio.timeout(timeout):
                async for _ in self.output():
                    pass
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"run {self.run_id} still runs after {timeout} s: wait again, poll it, or kill it"
            ) from error
        return await self.poll()

    async def kill(self, signal: int = 9) -> None:
        """Signal it; 9 ends everything it started."""
        await self._calls.kill_run(self.run_id, signal)

    async def output(self, *, stdout_offset: int = 0, stderr_offset: int = 0) -> AsyncIterator[Chunk | Exit]:
        """Its output from the given offsets on, as it comes, and one `Exit` at the end."""
        async for item in self._calls.attach_run(self.run_id, stdout_offset=stdout_offset, stderr_offset=stderr_offset):
            yield item


def run_info(message: pb.PollRunResponse) -> RunInfo:
    return RunInfo(
        run_id=message.run_id,
        session_id=message.session_id,
        status=message.status,
        exit_code=message.exit_code,
        stdout=message.stdout,
        stderr=message.stderr,
        duration_ms=message.duration_ms,
        truncated=message.truncated,
        reason=message.reason,
        signal=message.signal,
        detail=message.detail,
        stdout_bytes=message.stdout_bytes or message.stdout.encode(),
        stderr_bytes=message.stderr_bytes or message.stderr.encode(),
        egress_denied=denials(message.egress_denied),
        started_at=message.started_at,
        command=message.command,
    )
