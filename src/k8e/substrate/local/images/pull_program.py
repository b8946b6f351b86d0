"""Running the program that pulls images (`pull`): a child with a low priority, ended when its time is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from k8e.errors import DiskFull, Exhausted, InvalidSpec, K8eError, SandboxFailed
from k8e.model import ImageProgress
from k8e.substrate.local.images.pull_job import Job
from k8e.substrate.local.images.shared_work import Heard

__all__ = ["run"]

_NICENESS = 10
_LINE_BYTES = 256 * 1024
_OTHER_LINES = 20


async def run(name: str, job: Job, *, timeout_s: float, environ: Mapping[str, str], heard: Heard) -> Mapping[str, Any]:
    """What the program found. Raises: what it says was wrong."""
    process = await asyncio.create_subprocess_exec(
        # Isolated: nothing is imported from the directory or the variables that the server was started with.
        sys.executable, "-I", "-m", "k8e.substrate.local.images.pull",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        limit=_LINE_BYTES, env=dict(environ), cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        async with asyncio.timeout(timeout_s):
            return await _conversation(process, name, job, heard)
    except TimeoutError:
        raise SandboxFailed(f"pull {name}", f"not done in {timeout_s:.0f} s (--pull-timeout)") from None
    except (OSError, ValueError) as error:
        raise SandboxFailed(f"pull {name}", error) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _conversation(process: asyncio.subprocess.Process, name: str, job: Job, heard: Heard) -> Mapping[str, Any]:
    stdin, stdout = cast("asyncio.StreamWriter", process.stdin), cast("asyncio.StreamReader", process.stdout)
    stdin.write(job.text().encode() + b"\n")
    last: Mapping[str, Any] = {}
    said: deque[str] = deque(maxlen=_OTHER_LINES)
    async for line in stdout:
        fields = _fields(line)
        if fields is None:
            # Whatever else it says is for whoever has to find out why it failed.
            said.append(line.decode("utf-8", "replace"))
            continue
        last = fields
        if "phase" in fields:
            heard(ImageProgress(phase=fields["phase"], done=fields.get("done", 0), total=fields.get("total", 0)))
    if await process.wait() == 0 and "digest" in last:
        return last
    raise _error(name, last, "".join(said), job)


def _fields(line: bytes) -> Mapping[str, Any] | None:
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def _error(name: str, last: Mapping[str, Any], log: str, job: Job) -> K8eError:
    text = str(last.get("error", "")) or f"its program ended without a word: {log.strip()[-400:]}"
    match last.get("kind"):
        case "invalid":
            return InvalidSpec(f"cannot pull {name}: {text}", field="image")
        case "full":
            return Exhausted(f"cannot pull {name}: {text}; end sessions of other images, or raise --kept-images")
        case "disk":
            return DiskFull(job.scratch, text)
    return SandboxFailed(f"pull {name}", text)
