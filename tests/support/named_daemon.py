"""The egress daemon as a process, except that some names mean what a test says: `python -m tests.support.named_daemon`.

The names stand in a JSON file beside the daemon's own, read again at every question; all others are the host's. Every
question is written down. With few addresses for its sandboxes, they come round soon.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from k8e.egress import daemon, groups, spares
from k8e.egress.ruleset import FIRST_INDEX, LAST_INDEX
from k8e.egress.serving import plane
from k8e.egress.upstream import SystemResolver

__all__ = ["asked", "start", "tell"]

_ROOT = Path(__file__).resolve().parents[2]


def start(data_dir: Path, *, addresses: int = 0) -> subprocess.Popen[bytes]:
    """A daemon that serves; it goes by itself when the last client leaves and no sandbox is attached."""
    tell(data_dir, {})
    reader, writer = os.pipe()
    with (data_dir / "named.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.named_daemon", str(data_dir), str(writer), str(addresses)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=_ROOT,
            pass_fds=(writer,),
            start_new_session=True,
        )
    os.close(writer)
    with open(reader, "rb") as ready:  # noqa: PTH123 - a descriptor, not a path
        if ready.read(1) != b"y":
            raise RuntimeError((data_dir / "named.log").read_text()[-3000:])
    return process


def tell(data_dir: Path, names: Mapping[str, str]) -> None:
    """From now on these names have these addresses."""
    file = data_dir / "names.json"
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(dict(names)))
    fresh.replace(file)


def asked(data_dir: Path) -> list[str]:
    """Every name that some resolver outside was asked for, in order."""
    return (data_dir / "asked").read_text().split()


def _main() -> None:
    data_dir, ready, addresses = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if addresses:
        _have_few(addresses)
    system = SystemResolver()

    async def resolve(name: str) -> tuple[str, ...]:
        with (data_dir / "asked").open("a") as book:
            book.write(f"{name}\n")
        named: dict[str, str] = json.loads((data_dir / "names.json").read_text())
        return (named[name],) if name in named else await system(name)

    def say_ready() -> None:
        os.write(ready, b"y")
        os.close(ready)

    groups.leave_servers()
    daemon.run(data_dir, plane(data_dir, resolve=resolve), say_ready)


def _have_few(addresses: int) -> None:
    """As if all others had had their turn; none is prepared ahead, so that it is known which comes next."""
    vars(spares).update(LAST_INDEX=min(LAST_INDEX, FIRST_INDEX + addresses - 1), _SPARES=0)


if __name__ == "__main__":
    _main()
