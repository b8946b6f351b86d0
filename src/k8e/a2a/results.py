"""How a run went, in words for people and as data for programs; pure."""

from __future__ import annotations

from collections.abc import Sequence

from a2a.types import Artifact, Part
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from k8e.a2a.harvest import Harvest
from k8e.client.values import EgressDenial, Exit

__all__ = ["is_success", "result_artifact", "told"]


def is_success(end: Exit) -> bool:
    return end.status == "completed" and end.exit_code == 0


def told(end: Exit | None, *, timeout_s: float) -> str:
    """Why a task failed; nothing where the output says it all."""
    if end is None or is_success(end):
        return ""
    if end.status == "timed_out":
        said = f"timed out after {timeout_s:g} s; everything it had started was killed"
    elif end.reason:
        said = f"{end.reason.replace('_', ' ')}: {end.detail}" if end.detail else end.reason.replace("_", " ")
    else:
        said = f"exit code {end.exit_code}"
    hosts = ", ".join(sorted({denial.host for denial in end.egress_denied}))
    return f"{said}; the network's rules did not let it reach {hosts}" if hosts else said


def result_artifact(
    end: Exit | None,
    *,
    session_id: str,
    is_recreated: bool,
    is_cut: bool,
    uploads: Sequence[str],
    harvest: Harvest,
    steps: tuple[int, int],
) -> Artifact:
    """The data part that ends every task that was worked on."""
    data: dict[str, object] = {"session_id": session_id}
    if end is not None:
        data |= {"exit_code": end.exit_code, "status": end.status, "duration_ms": end.duration_ms}
        data |= {"truncated": is_cut or end.truncated}
        data |= _where_set(reason=end.reason, signal=end.signal, detail=end.detail)
        data |= _where_set(egress_denied=[_denial(each) for each in end.egress_denied])
    if steps[1] > 1:
        data |= {"step": steps[0], "steps": steps[1]}
    data |= _where_set(
        session_recreated=is_recreated,
        uploaded=list(uploads),
        files=[
            {"path": _text(path), "size": size, "attached": path in harvest.attached} for path, size in harvest.written
        ],
        files_unlisted=harvest.unlisted,
        files_unknown=_text(harvest.trouble),
    )
    return Artifact(artifact_id="result", name="result", parts=[Part(data=ParseDict(data, Value()))])


def _where_set(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value}


def _denial(denial: EgressDenial) -> dict[str, object]:
    return {"host": _text(denial.host), "port": denial.port, "reason": _text(denial.reason)}


def _text(text: str) -> str:
    """Names that are not UTF-8 as protobuf can hold them."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
