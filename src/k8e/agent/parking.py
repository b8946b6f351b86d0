"""Parked interpreters: running Python costs a message, not an interpreter start.

A parked interpreter is a freshly executed `python3` of the prebuilt environment that waits in `site` (see `park`),
before its main program. There are two forms, because a command line is fixed at exec: `python3 -c <placeholder>`,
whose text is overwritten in its memory, and `python3 <file in /workspace>`, whose file is written just before it goes
on. One of each waits; two while programs of that form keep coming. From there the interpreter itself reads, compiles and runs the program, so flags, hash seed, `__main__`, frames and exit are its own.

What still differs from a plain start is what the kernel fixed when the process began, and a program that looks for it can
tell: /proc/self/environ is the environment at parking, /proc/self/cmdline of `-c` ends with NULs, the process is older
than its program, and its memory and its table of descriptors have other sizes. Only the process itself could change the first
two, and gVisor has no call for it.

A plain start is made instead whenever the program would find something else than these: another python3 first on PATH, a variable that it
or its C library reads at start, another user, a terminal, an environment changed since parking, or a file in
another working directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket

from . import command, hook, scripts
from .loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .execs import Exec, Launch
    from .loop import Loop, Timer
    from .runners import Handle, Runners

    Stamp = Tuple[object, ...]

__all__ = ["Parking"]

_VENV = "/opt/venv"
_PYTHON = _VENV + "/bin/python3"
_WORKSPACE = "/workspace"
_REFILL_DELAY_S = 0.025
_PARK_TIMEOUT_S = 10.0
_PIPE_BYTES = 1024 * 1024
_F_SETPIPE_SZ = 1031
_RETRY_S = 1.0
_MANY_FAILURES = 3
"""In a row: nobody waits for an interpreter any more, and only once in a while one is tried."""
_SELDOM_S = 5.0
_CALM_S = 10.0
_INLINE, _FILE = "inline", "file"

_MATTERS = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_")
_MATTERS_EXACTLY = frozenset(
    ("LANG", "LANGUAGE", "LOCPATH", "HOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", hook.VARIABLE)
)

_PLACEHOLDER_LENGTH = 8192
_MAX_REGION = 64 * 1024 * 1024


class _Parked:
    """One interpreter that waits, or is on its way to."""

    def __init__(self, form: str, env: Dict[str, str], stamp: Stamp) -> None:
        self.form = form
        self.env = env
        self.stamp = stamp
        self.pid = 0
        self.is_ready = False
        self.patches: List[Tuple[int, bytes]] = []
        self.handle: Optional[Handle] = None
        self.line, self.child_line = socket.socketpair()
        self.outputs: Tuple[int, int] = (-1, -1)
        self.input = -1
        self.path = scripts.path_in(_WORKSPACE, ".py")
        self.placeholder = _placeholder()
        self.claim: Optional[Tuple[Exec, Launch, str, Callable[[], None]]] = None
        """Who waits for it to be ready, and what to do when it never is."""

    @property
    def argv(self) -> List[str]:
        if self.form == _INLINE:
            return ["python3", "-c", self.placeholder]
        return ["python3", self.path]


class Parking:
    """Keeps interpreters of each form waiting."""

    def __init__(self, loop: Loop, runners: Runners) -> None:
        self._loop = loop
        self._runners = runners
        self._parked: List[_Parked] = []
        self._wanted = {_INLINE: 1, _FILE: 1}
        self._calm: Dict[str, Timer] = {}
        self._waiters: List[Callable[[], None]] = []
        self._failures = 0
        self._is_pausing = False
        """Whether so many have failed that the next one has to wait."""
        self._site = _find_site()

    @property
    def pids(self) -> List[int]:
        """Interpreters that run nothing yet."""
        return [parked.pid for parked in self._parked if parked.pid]

    def when_ready(self, action: Callable[[], None]) -> None:
        """Call once an interpreter of each form waits, or it is clear that none will."""
        self._waiters.append(action)
        self._check_waiters()

    def refill(self) -> None:
        """Start what is missing."""
        for form, count in self._wanted.items():
            missing = count - sum(parked.form == form and parked.claim is None for parked in self._parked)
            for _ in range(missing if self._is_possible() else 0):
                self._park(form)
        self._check_waiters()

    def start(self, subject: Exec, launch: Launch, code: str, fallback: Callable[[], None]) -> bool:
        """Give the program to a parked interpreter, or say that a plain start is due."""
        form = _FILE if command.PRIVATE_FILE in launch.argv else _INLINE
        self._expect_more(form)
        parked = self._next(form)
        if parked is None or not _fits(parked, launch, code):
            self._loop.later(_REFILL_DELAY_S, self.refill)
            return False
        stamp = _stamp(self._site)
        if parked.stamp != stamp:
            self._discard_older(stamp)
            return False
        parked.claim = (subject, launch, code, fallback)
        if parked.is_ready:
            self._release(parked)
        return True

    def _discard_older(self, stamp: Stamp) -> None:
        for parked in [parked for parked in self._parked if parked.claim is None and parked.stamp != stamp]:
            self._discard(parked)

    def _next(self, form: str) -> Optional[_Parked]:
        free = [parked for parked in self._parked if parked.form == form and parked.claim is None]
        return min(free, key=lambda parked: not parked.is_ready, default=None)

    def _expect_more(self, form: str) -> None:
        """Programs come in a row: keep a second interpreter until they stop coming."""
        self._wanted[form] = 2
        if form in self._calm:
            self._calm[form].cancel()
        self._calm[form] = self._loop.later(_CALM_S, lambda: self._calm_down(form))

    def _calm_down(self, form: str) -> None:
        self._wanted[form] = 1
        for parked in [parked for parked in self._parked if parked.form == form and parked.claim is None][1:]:
            self._discard(parked)

    def _is_possible(self) -> bool:
        return bool(self._site) and not self._is_pausing

    def _check_waiters(self) -> None:
        ready = {parked.form for parked in self._parked if parked.is_ready}
        if not self._is_possible() or len(ready) == len(self._wanted):
            waiters, self._waiters = self._waiters, []
            for action in waiters:
                action()

    def _park(self, form: str) -> None:
        env = command.default_env(True)
        parked = _Parked(form, env, _stamp(self._site))
        self._parked.append(parked)
        out, child_out = _pipe()
        err, child_err = _pipe()
        parked.outputs = (out, err)
        child_in, parked.input = os.pipe()
        fds = [os.open(os.devnull, os.O_RDONLY), child_out, child_err, parked.child_line.fileno(), child_in]
        parked.handle = self._runners.take(lambda message: self._hear(parked, message))
        order = {"op": "spawn", "argv": parked.argv, "cwd": "/", "user": None, "tty": False}
        parked.handle.send(dict(order, env=dict(env, **{hook.VARIABLE: "199"})), fds)
        for fd in (*fds[:3], child_in):
            os.close(fd)
        parked.child_line.close()
        self._loop.watch(parked.line.fileno(), READ, lambda events: self._arrived(parked))
        self._loop.later(_PARK_TIMEOUT_S, lambda: None if parked.is_ready else self._give_up(parked))

    def _hear(self, parked: _Parked, message: Dict[str, Any]) -> None:
        if "started" in message:
            parked.pid = int(message["started"])
        elif "failed" in message:
            # Commands use up the process limit: not the interpreter's fault, so try again when they may have ended.
            self._give_up(parked, is_passing=int(message["failed"]) == errno.EAGAIN)
        elif "exited" in message:
            self._give_up(parked)
        elif "lost" in message:
            parked.handle = None
            self._give_up(parked)
        elif "empty" in message and parked.handle is not None:
            handle, parked.handle = parked.handle, None
            self._runners.give_back(handle)

    def _arrived(self, parked: _Parked) -> None:
        self._loop.unwatch(parked.line.fileno())
        try:
            is_there = parked.line.recv(1) == b"1"
            if is_there and parked.form == _INLINE:
                parked.patches = _find_placeholder(parked.pid, parked.placeholder)
                is_there = bool(parked.patches)
        except OSError:
            is_there = False
        if not is_there:
            self._give_up(parked)
            return
        self._failures = 0
        parked.is_ready = True
        if parked.claim is not None:
            self._release(parked)
        self._check_waiters()

    def _release(self, parked: _Parked) -> None:
        if parked.claim is None or parked.handle is None:
            return
        subject, launch, code, _ = parked.claim
        try:
            self._load(parked, launch, code)
            parked.line.sendall(_order(launch, code if parked.form == _INLINE else "", parked.env))
        except OSError:
            self._give_up(parked, is_passing=True)
            return
        self._parked.remove(parked)
        parked.line.close()
        if not launch.stdin:
            os.close(parked.input)
        subject.adopt(launch, parked.handle, parked.outputs, parked.input if launch.stdin else -1, parked.pid)
        self._loop.later(_REFILL_DELAY_S, self.refill)

    def _load(self, parked: _Parked, launch: Launch, code: str) -> None:
        if parked.form == _FILE:
            scripts.keep_at(parked.path, code, launch)
        else:
            _overwrite(parked.pid, parked.patches, code)

    def _give_up(self, parked: _Parked, is_passing: bool = False) -> None:
        """It died or never came: whoever waits for it gets a plain start."""
        if parked in self._parked:
            self._failures += not is_passing
            if self._failures >= _MANY_FAILURES and not self._is_pausing:
                self._is_pausing = True
                self._loop.later(_SELDOM_S, self._go_on)
            self._discard(parked, _RETRY_S)
            claim, parked.claim = parked.claim, None
            if claim is not None:
                claim[3]()
            self._check_waiters()

    def _go_on(self) -> None:
        """What made them fail, such as a package that ends every interpreter, may be over."""
        self._is_pausing = False
        self.refill()

    def _discard(self, parked: _Parked, retry_s: float = _REFILL_DELAY_S) -> None:
        self._parked.remove(parked)
        self._loop.unwatch(parked.line.fileno())
        parked.line.close()
        for fd in (*parked.outputs, parked.input):
            os.close(fd)
        if parked.handle is not None:
            self._runners.kill(parked.handle)
        self._loop.later(retry_s, self.refill)


def _find_site() -> str:
    """The environment's site-packages, if it has the hook and the hook's code is here."""
    library = _VENV + "/lib"
    try:
        names = os.listdir(library)
    except OSError:
        return ""
    for name in names:
        site = "%s/%s/site-packages" % (library, name)
        if os.path.exists("%s/%s" % (site, hook.NAME)) and os.path.exists(hook.PATH):
            return site
    return ""


def _stamp(site: str) -> Stamp:
    """Changes whenever a fresh interpreter might find something else than the parked one did."""
    found: List[object] = []
    for path in (site, _VENV + "/pyvenv.cfg", _PYTHON):
        try:
            status = os.stat(path)
            found.append((status.st_ino, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def _fits(parked: _Parked, launch: Launch, code: str) -> bool:
    if launch.size is not None or launch.user is not None or "\0" in code:
        return False
    if parked.form == _FILE and (
        os.path.normpath(launch.cwd) != _WORKSPACE or not scripts.is_writable(_WORKSPACE, launch)
    ):
        return False
    if parked.form == _INLINE and len(os.fsencode(code)) >= _PLACEHOLDER_LENGTH - 2:
        return False
    names = set(launch.env) | set(parked.env)
    if any(launch.env.get(name) != parked.env.get(name) and _matters(name) for name in names):
        return False
    return os.path.isdir(launch.cwd) and os.access(launch.cwd, os.X_OK)


def _matters(name: str) -> bool:
    return name.startswith(_MATTERS) or name in _MATTERS_EXACTLY


def _pipe() -> Tuple[int, int]:
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(reader, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass
    return reader, writer


def _order(launch: Launch, code: str, parked_env: Dict[str, str]) -> bytes:
    parts = [os.fsencode(launch.cwd), os.fsencode(code), b"1" if launch.stdin else b""]
    if list(launch.env.items()) == list(parked_env.items()):
        parts.append(b"")
    else:
        parts.append(b"1")
        parts += [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in launch.env.items()]
    body = b"\0".join(parts)
    return len(body).to_bytes(4, "big") + body


def _placeholder() -> str:
    head = "raise SystemExit('k8e: this interpreter was never given its program') # %s " % os.urandom(16).hex()
    return head + "." * (_PLACEHOLDER_LENGTH - len(head))


def _find_placeholder(pid: int, placeholder: str) -> List[Tuple[int, bytes]]:
    """Where the placeholder lies in a process: (address, kind), kind b"w" for wide text, b"n" for its command line."""
    found: List[Tuple[int, bytes]] = []
    wide, narrow = placeholder.encode("utf-32-le"), placeholder.encode("ascii")
    fd = os.open("/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, end, name in _regions(pid):
            needle, kind = (narrow, b"n") if name == "[stack]" else (wide, b"w")
            if name == "[stack]":
                start = max(start, end - 512 * 1024)
            found += [(start + at, kind) for at in _occurrences(_memory(fd, start, end), needle)]
    finally:
        os.close(fd)
    return found if any(kind == b"w" for _, kind in found) else []


def _regions(pid: int) -> List[Tuple[int, int, str]]:
    """Private writable anonymous memory; the heap alone where there is one."""
    found = []
    with open("/proc/%d/maps" % pid, encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.split(None, 5)
            name = parts[5].strip() if len(parts) > 5 else ""
            if parts[1].startswith("rw") and name in ("", "[heap]", "[stack]"):
                start, end = (int(text, 16) for text in parts[0].split("-"))
                if end - start <= _MAX_REGION:
                    found.append((start, end, name))
    heaps = [region for region in found if region[2] in ("[heap]", "[stack]")]
    return heaps if any(region[2] == "[heap]" for region in heaps) else found


def _memory(fd: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end:
        try:
            piece = os.pread(fd, end - start, start)
        except OSError:
            break
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def _occurrences(memory: bytes, needle: bytes) -> List[int]:
    found = []
    at = memory.find(needle)
    while at >= 0:
        found.append(at)
        at = memory.find(needle, at + len(needle))
    return found


def _overwrite(pid: int, patches: List[Tuple[int, bytes]], code: str) -> None:
    """Put the program where the placeholder was.

    SAFETY: the process waits in our own hook and is a child of our runner; what is overwritten is exactly the text
    that was found, never more than its length, so no other memory of it can change.
    """
    # The interpreter ends the text of -c with a newline.
    wide = (code + "\n\0").encode("utf-32-le", "surrogatepass")
    narrow = os.fsencode(code).ljust(_PLACEHOLDER_LENGTH, b"\0")
    fd = os.open("/proc/%d/mem" % pid, os.O_RDWR | os.O_CLOEXEC)
    try:
        for address, kind in patches:
            os.pwrite(fd, wide if kind == b"w" else narrow, address)
    finally:
        os.close(fd)
