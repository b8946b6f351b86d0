"""Output in bulk, through the SDK."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.lab import NO_POOL, Lab
from bench.rows import Row, at_least
from bench.series import Series
from bench.server import ServerUnderTest
from k8e.client import Chunk
from k8e.model import MIB, Runtime

__all__ = ["throughput"]

_LEAST = 150.0
_LOOKS = 5


def throughput(lab: Lab) -> Iterator[Row]:
    total = lab.scaled(512, 64) * MIB
    bare = lab.bare[Runtime.CONTAINER]
    with (
        lab.deployment.serving(*NO_POOL) as server,
        lab.session(server, Runtime.CONTAINER) as session_id,
    ):
        pairs = [(_read(server, session_id, total), bare.megabytes_per_s(total)) for _ in range(_LOOKS)]
    ours, theirs = (Series.of(list(each), unit="MB/s") for each in zip(*pairs, strict=True))
    yield at_least("stdout, container", ours, _LEAST, theirs=theirs, beside="a pipe from runc exec")


def _read(server: ServerUnderTest, session_id: str, total: int) -> float:
    began, seen = time.perf_counter(), 0
    for item in server.client.exec_output(session_id, ["head", "-c", str(total), "/dev/zero"]):
        if isinstance(item, Chunk):
            seen += len(item.data)
    took = time.perf_counter() - began
    if seen != total:
        raise AssertionError(f"{seen} of {total} bytes came out")
    return total / took / 1e6
