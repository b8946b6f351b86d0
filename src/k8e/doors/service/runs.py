"""Background runs: poll, attach, kill, list."""

from __future__ import annotations

import asyncio

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.engine import Engine, RunView
from k8e.doors.service import fields
from k8e.doors.service.call import Call, too_much_memory
from k8e.doors.service.encoding import LARGE_BYTES, FairWorker, LargeAnswer
from k8e.doors.service.execs import exit_message, offsets, output_message, with_output
from k8e.doors.service.network import denial_messages
from k8e.doors.service.sessions import shown
from k8e.model import Outcome

__all__ = ["RunRpcs"]


class RunRpcs:
    def __init__(self, engine: Engine, worker: FairWorker) -> None:
        self._engine = engine
        self._worker = worker

    async def PollRun(self, call: Call, request: pb.PollRunRequest) -> pb.PollRunResponse | LargeAnswer:
        run_id = fields.run_id(request.run_id)
        size = self._engine.polled_bytes(call.owner, run_id)
        if not call.reservation.grow(size):
            raise too_much_memory()
        if size > LARGE_BYTES:
            run = await asyncio.to_thread(self._engine.poll_run, call.owner, run_id)
        else:
            run = self._engine.poll_run(call.owner, run_id)
        return await with_output(self._worker, call, run_message(run), stdout=run.stdout, stderr=run.stderr)

    async def AttachRun(self, call: Call, request: pb.AttachRunRequest) -> None:
        run = self._engine.open_run(call.owner, fields.run_id(request.run_id), offsets(request))
        async for item in run:
            if isinstance(item, Outcome):
                await call.write(exit_message(item, truncated=run.truncated, denied=run.denied))
            else:
                await call.write(output_message(item))

    async def KillRun(self, call: Call, request: pb.KillRunRequest) -> pb.KillRunResponse:
        run_id = fields.run_id(request.run_id)
        await self._engine.kill_run(call.owner, run_id, fields.signal_number(request.signal))
        return pb.KillRunResponse(ok=True)

    async def ListRuns(self, call: Call, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        runs = self._engine.list_runs(call.owner, fields.session_id(request.session_id))
        return pb.ListRunsResponse(runs=[run_message(run) for run in runs])


def run_message(run: RunView) -> pb.PollRunResponse:
    """All but the output."""
    message = pb.PollRunResponse(
        run_id=run.run_id,
        session_id=run.session_id,
        status=run.status,
        duration_ms=run.duration_ms,
        truncated=run.truncated,
        egress_denied=denial_messages(run.egress_denied),
    )
    if run.outcome is not None:
        message.exit_code = run.outcome.exit_code
        message.reason = run.outcome.reason
        message.signal = run.outcome.signal
        message.detail = shown(run.outcome.detail)
    return message
