"""Background runs: poll, attach, kill, list."""

from __future__ import annotations

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call, too_much_memory
from k8e.doors.service.encoding import FairWorker, LargeAnswer
from k8e.doors.service.execs import exit_message, offsets, output_message, with_output
from k8e.doors.service.network import denial_messages
from k8e.doors.service.paging import page
from k8e.doors.service.sessions import shown
from k8e.engine.engine import Engine
from k8e.engine.runs import RunView
from k8e.model import Outcome

__all__ = ["RunRpcs"]


class RunRpcs:
    def __init__(self, engine: Engine, worker: FairWorker) -> None:
        self._engine = engine
        self._worker = worker

    async def PollRun(self, call: Call, request: pb.PollRunRequest) -> pb.PollRunResponse | LargeAnswer:
        run_id = fields.run_id(request.run_id)
        if not call.reservation.grow(self._engine.polled_bytes(call.owner, run_id)):
            raise too_much_memory()
        run = await self._engine.poll_run(call.owner, run_id)
        # It may have printed more since it was asked how much.
        if not call.reservation.resize(len(run.stdout) + len(run.stderr)):
            raise too_much_memory()
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
        found = self._engine.list_runs(call.owner, fields.session_id(request.session_id))
        runs = [run for run in sorted(found, key=place_in_list) if place_in_list(run) > request.page_token]
        messages = await page(runs, run_message)
        more = place_in_list(runs[len(messages) - 1]) if len(messages) < len(runs) else b""
        return pb.ListRunsResponse(runs=messages, next_page_token=more)


def place_in_list(run: RunView) -> bytes:
    """What a list of runs is sorted by, oldest first, and goes on after."""
    return b"%020.6f %s" % (run.started_at, run.run_id.encode())


def run_message(run: RunView) -> pb.PollRunResponse:
    """All but the output."""
    message = pb.PollRunResponse(
        run_id=run.run_id,
        session_id=run.session_id,
        status=run.status,
        duration_ms=run.duration_ms,
        truncated=run.truncated,
        started_at=run.started_at,
        command=shown(run.command),
        egress_denied=denial_messages(run.egress_denied),
    )
    if run.outcome is not None:
        message.exit_code = run.outcome.exit_code
        message.reason = run.outcome.reason
        message.signal = run.outcome.signal
        message.detail = shown(run.outcome.detail)
    return message
