"""Looking for words in a stream that is passed on as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["Watch"]


class Watch:
    """Looks for words in a stream that is passed on as it is."""

    def __init__(self, words: Iterable[bytes]) -> None:
        listed = [word for word in words if word]
        self._pattern = re.compile(b"|".join(map(re.escape, listed)) or rb"(?!)")
        self._overlap = max(map(len, listed), default=1) - 1
        self._tail = b""

    def sees(self, data: bytes) -> bool:
        """Whether one of them ends in this piece."""
        data = self._tail + data
        self._tail = data[-self._overlap :] if self._overlap else b""
        return self._pattern.search(data) is not None
