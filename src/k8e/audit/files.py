"""Where the trail lies: numbered files by their first record, a head beside them, and the key in another directory."""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from k8e import whole
from k8e.audit.chain import Broken, End, Head, check, head_text, read_head
from k8e.errors import StoreFailed

__all__ = ["BUSY", "MAIN", "Tail", "Trail", "first_seq"]

KEY_BYTES = 32
MAIN, BUSY = "audit", "audit-busy"
"""Everybody's trail, and the one of what single owners do beyond their share of it."""
_NAME = re.compile(r"audit-(\d{12})\.jsonl")


@dataclass(frozen=True, slots=True)
class Tail:
    """How the newest file ends."""

    end: End | None
    """The last whole record; None when there is none, or it is no record of ours."""
    whole_bytes: int
    cut_bytes: int
    """What a write that was cut short left behind."""


class Trail:
    """The files of one data directory."""

    def __init__(self, data_dir: Path, name: str = MAIN) -> None:
        self.directory = data_dir / name
        self.key_path = data_dir / "server" / f"{name}.key"
        self.head_path = self.directory / "head.json"

    def key(self) -> bytes | None:
        """The key, where there is one. Raises: StoreFailed when the file is something else, OSError."""
        try:
            key = self.key_path.read_bytes()
        except FileNotFoundError:
            return None
        if len(key) != KEY_BYTES:
            raise StoreFailed(f"{self.key_path} is not a key of {KEY_BYTES} bytes: put the right one back")
        return key

    def begin(self) -> bytes:
        """A new key, and a head that it seals; the head first, because a key without one means that it was taken."""
        key = secrets.token_bytes(KEY_BYTES)
        self.write_head(Head(), key)
        self.key_path.parent.mkdir(parents=True, exist_ok=True)
        whole.replace(self.key_path, key, mode=0o600, durable=True)
        return key

    def head(self, key: bytes) -> Head | None:
        """None when there is none. Raises: Broken when it is not ours, OSError."""
        try:
            return read_head(self.head_path.read_bytes(), key)
        except FileNotFoundError:
            return None

    def write_head(self, head: Head, key: bytes) -> None:
        whole.replace(self.head_path, head_text(head, key).encode(), mode=0o600, durable=True)

    def files(self) -> list[Path]:
        """Oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if _NAME.fullmatch(path.name))

    def file_from(self, seq: int) -> Path:
        return self.directory / f"audit-{seq:012}.jsonl"

    def open_to_append(self, path: Path) -> int:
        """A descriptor; a new file's name is on disk too, or a power loss would look like a removed file."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        directory = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return descriptor

    def tail(self, path: Path, key: bytes) -> Tail:
        """How a file ends."""
        data = path.read_bytes()
        complete = data[: data.rfind(b"\n") + 1]
        last = complete[complete.rfind(b"\n", 0, -1) + 1 :]
        return Tail(_end_of(last, key), len(complete), len(data) - len(complete))


def first_seq(path: Path) -> int:
    """The number of a file's first record."""
    return int(path.stem.rpartition("-")[2])


def _end_of(line: bytes, key: bytes) -> End | None:
    """The end that one line says it is, whatever came before it."""
    try:
        told = json.loads(line)
        before = End(int(told["seq"]) - 1, str(told["prev"]))
        return check(line, after=before, key=key)
    except (ValueError, KeyError, TypeError, Broken):
        return None
