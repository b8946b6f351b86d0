"""What is to be written, held until a person has decided: whole, so that its digest can be in the question.

On our disk and not in the sandbox, where a program could change it between the answer and the write; without a name, so
that nothing is left of it whatever becomes of us.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from k8e.errors import Exhausted, StoreFailed
from k8e.model import GIB, MIB, OwnerId

__all__ = ["PER_OWNER_BYTES", "Spool", "Spools"]

PER_OWNER_BYTES: Final = GIB
_IN_MEMORY: Final = MIB
_PIECE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Spool:
    """One content, complete."""

    file: IO[bytes]
    size: int
    sha256: str

    async def chunks(self) -> AsyncIterator[bytes]:
        with _explained():
            await asyncio.to_thread(self.file.seek, 0)
        while piece := await asyncio.to_thread(self.file.read, _PIECE):
            yield piece


class Spools:
    def __init__(self, directory: Path, *, per_owner_bytes: int = PER_OWNER_BYTES) -> None:
        self._directory = directory
        self._most = per_owner_bytes
        self._held: Counter[OwnerId] = Counter()

    @contextlib.asynccontextmanager
    async def hold(self, owner: OwnerId, chunks: AsyncIterable[bytes]) -> AsyncIterator[Spool]:
        """The content for the length of a block. Raises: Exhausted when this owner's calls hold too much."""
        size, digest = 0, hashlib.sha256()
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, dir=str(self._directory)) as file:
            try:
                async for chunk in chunks:
                    if self._held[owner] + len(chunk) > self._most:
                        raise Exhausted(f"writes that wait for approval hold more than {self._most} bytes: decide one")
                    self._held[owner] += len(chunk)
                    size += len(chunk)
                    digest.update(chunk)
                    await _written(file, chunk)
                yield Spool(file, size, digest.hexdigest())
            finally:
                self._held[owner] -= size
                if not self._held[owner]:
                    del self._held[owner]


async def _written(file: IO[bytes], chunk: bytes) -> None:
    with _explained():
        await asyncio.to_thread(file.write, chunk)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """What is held is written when its buffer is full, or when it is read."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"hold a write until it is approved: {error.strerror}") from error
