"""What a command leaves behind: its text and the beginning of its output in the transcript, its end in the event log."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

from k8e.byte_budget import ByteReservation
from k8e.capture import Capture
from k8e.engine.events import EventLog
from k8e.engine.file_worker import FileWorker
from k8e.engine.observing import UNOBSERVED, Observer
from k8e.engine.secrets import mask
from k8e.engine.session import Session
from k8e.engine.transcript import Transcript
from k8e.lifecycle import Phase
from k8e.model import Argv, Code, Command, Outcome, Shell

__all__ = ["Recorder", "title"]

_TITLE_CHARS = 4096


class Recorder:
    """Collects while the command runs and writes once, at its end."""

    def __init__(
        self,
        session: Session,
        transcript: Transcript,
        files: FileWorker,
        events: EventLog,
        command: Command,
        *,
        reservation: ByteReservation,
        hidden: Sequence[str] = (),
        observer: Observer = UNOBSERVED,
    ) -> None:
        """What is `hidden` is written down as a mask; what `reservation` has no room for is left out."""
        self._reservation = reservation
        self._observer: Observer | None = observer
        self._began = time.perf_counter()
        self._session = session
        self._transcript = transcript
        self._files = files
        self._events = events
        self._hidden = _as_bytes(hidden)
        self._title = title(command, hidden)
        self._output = Capture(Transcript.PER_STREAM_BYTES, reservation.grow)

    def add(self, payload: bytes) -> None:
        self._output.add(payload)

    def leave(self) -> None:
        """Nothing more comes; said twice it counts once."""
        self._observe(None)
        self._reservation.close()

    def _observe(self, outcome: Outcome | None) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.executed(self._session.spec.runtime, outcome, took_s=time.perf_counter() - self._began)

    async def end(self, exec_id: str, outcome: Outcome) -> None:
        """When this returns it is written, if it can be."""
        self._observe(outcome)
        try:
            if self._session.phase is Phase.ACTIVE:
                await self._write(exec_id, outcome)
        finally:
            self.leave()

    async def _write(self, exec_id: str, outcome: Outcome) -> None:
        kept = self._output.value()
        dropped = self._output.total - len(kept)
        kept = mask(kept, self._hidden, was_cut=dropped > 0)
        note = b"\n[%d more bytes]" % dropped if dropped else b""
        text = b"$ %s\n%s%s" % (self._title.encode("utf-8", "replace"), kept, note)
        self._events.add(
            self._session.owner,
            self._session.session_id,
            "exec.ended",
            exec_id=exec_id,
            status=outcome.status,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            duration_ms=outcome.duration_ms,
        )
        line = text if text.endswith(b"\n") else text + b"\n"
        await self._files.run(functools.partial(self._transcript.append, line))


def title(command: Command, hidden: Sequence[str]) -> str:
    """The beginning of a command's text, with a mask in place of what is hidden."""
    text = mask(_text(command).encode("utf-8", "surrogateescape"), _as_bytes(hidden))
    return text.decode("utf-8", "replace")[:_TITLE_CHARS]


def _as_bytes(values: Sequence[str]) -> list[bytes]:
    return [value.encode("utf-8", "surrogateescape") for value in values]


def _text(command: Command) -> str:
    match command.what:
        case Argv(argv):
            return " ".join(argv)
        case Shell(text):
            return text
        case Code(language, text):
            return f"{language}: {text}"
