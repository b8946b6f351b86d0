"""The operations on commands: exec, attach, kill, terminals, and what is left of them."""

from __future__ import annotations

import binascii
import os

from . import command, fields, scripts, users
from .execs import Exec, Launch, set_size
from .fields import Refusal
from .link import Subscriber
from .runner import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from .link import Link
    from .loop import Loop
    from .parking import Parking
    from .runners import Runners
    from .service import Service

__all__ = ["Desk"]

_MAX_FINISHED = 512
"""Execs that ended and were not forgotten; past it the oldest goes, so a careless engine cannot fill the sandbox."""
_MAX_SPENT = 4096
"""Ids of execs that are no longer known; past it the oldest goes."""
_VENV = "/opt/venv"
_VENV_PYTHON = _VENV + "/bin/python3"


class _Follower(Subscriber):
    """A stream that only reads an exec."""

    def __init__(self, subject: Exec, link: Link, number: int) -> None:
        self._subject = subject
        self._link = link
        self._number = number

    def lost(self) -> None:
        self._subject.detach(self._link, self._number)


class _Reader(_Follower):
    """The stream that gives an exec its input, and whose acknowledgements make room for more of its output."""

    def data(self, offset: int, payload: bytes) -> None:
        self._subject.feed(offset, payload)

    def finished(self) -> None:
        self._subject.finish_input()

    def acked(self) -> None:
        self._subject.acked()


class Desk:
    """All execs of this sandbox, by the engine's ids."""

    def __init__(self, loop: Loop, runners: Runners, parking: Parking) -> None:
        self._loop = loop
        self._runners = runners
        self._parking = parking
        self._execs: Dict[str, Exec] = {}
        self._spent: Dict[str, None] = {}
        """Execs that ended and were forgotten, oldest first: a request that is repeated too late must not run twice."""

    def register(self, service: Service) -> None:
        """Offer the operations."""
        service.add_stream("exec", self._exec)
        service.add_stream("attach", self._attach)
        service.add_stream("follow", self._follow)
        service.add_call("program", self._program)
        service.add_call("input", self._input)
        service.add_call("kill", self._kill)
        service.add_call("resize", self._resize)
        service.add_call("foreground", self._foreground)
        service.add_call("forget", self._forget)
        service.add_call("execs", self._list)

    def by_runner(self) -> Dict[int, Exec]:
        """The execs that may have processes, by their runner's pid."""
        return {subject.runner_pid: subject for subject in self._execs.values() if subject.runner_pid}

    @property
    def witness_pids(self) -> List[int]:
        """Processes of ours in the sessions of terminals."""
        return [subject.witness_pid() for subject in self._execs.values() if subject.is_pty]

    def _find(self, args: Dict[str, Any]) -> Exec:
        subject = self._execs.get(fields.text(args, "id"))
        if subject is None:
            raise Refusal("not_found", "exec %s is unknown" % args["id"])
        return subject

    def _exec(self, link: Link, number: int, args: Dict[str, Any]) -> None:
        name = fields.text(args, "id")
        if name in self._spent:
            raise Refusal("conflict", "command %s has run already, and what it said is no longer kept" % name)
        subject = self._execs.get(name) or self._start(name, args)
        _check_same(subject, args)
        self._subscribe(subject, link, number, {})
        if subject.pid:
            # Known before anybody listened: a parked interpreter, or a request that was repeated.
            link.mux.event(number, "started", {"pid": subject.pid})
        link.flush()

    def _attach(self, link: Link, number: int, args: Dict[str, Any]) -> None:
        subject, offsets = self._find(args), fields.offsets(args)
        _check_same(subject, args)
        link.mux.resume(number, 0, subject.stdin_received)
        link.mux.event(number, "attached", {"running": subject.is_running, "stdin_offset": subject.stdin_received})
        self._subscribe(subject, link, number, offsets)

    def _follow(self, link: Link, number: int, args: Dict[str, Any]) -> None:
        subject, offsets = self._find(args), fields.offsets(args)
        link.subscribers[number] = _Follower(subject, link, number)
        try:
            subject.follow(link, number, offsets)
        except Refusal:
            del link.subscribers[number]
            raise

    def _subscribe(self, subject: Exec, link: Link, number: int, offsets: Dict[int, int]) -> None:
        link.subscribers[number] = _Reader(subject, link, number)
        subject.attach(link, number, offsets)

    def _start(self, name: str, args: Dict[str, Any]) -> Exec:
        launch = self._launch(args)
        subject = Exec(self._loop, self._runners, name, fields.text(args, "digest", ""))
        if args.get("argv") is None and args.get("shell") is None:
            self._start_code(subject, launch, str(args["language"]), str(args["code"]))
        else:
            subject.start(launch)
        self._remember(subject)
        return subject

    def _remember(self, subject: Exec) -> None:
        self._execs[subject.id] = subject
        finished = [name for name, known in self._execs.items() if not known.is_running]
        for name in finished[: max(0, len(finished) - _MAX_FINISHED)]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        del self._execs[name]
        self._spent[name] = None
        if len(self._spent) > _MAX_SPENT:
            del self._spent[next(iter(self._spent))]

    def _launch(self, args: Dict[str, Any]) -> Launch:
        env = command.default_env(os.path.isdir(_VENV))
        user = users.find(fields.text(args, "user", ""))
        if user is not None:
            env.update(HOME=user.home, USER=user.name)
        env.update(fields.mapping(args, "env"))
        launch = Launch(_argv(args), env, fields.text(args, "cwd", "") or "/workspace")
        launch.user = None if user is None else (user.uid, user.gid, user.groups)
        launch.stdin = fields.flag(args, "stdin")
        if args.get("pty") is not None:
            launch.size = fields.pair(_object(args, "pty"))
        if args.get("timeout_s") is not None:
            launch.timeout_s = fields.number(args, "timeout_s", 0)
        return launch

    def _program(self, args: Dict[str, Any]) -> Dict[str, Any]:
        """The file that a command would run; empty where there is none."""
        launch = self._launch(args)
        # As the command will look for it, from its own directory.
        here = os.path.join("/", launch.cwd)
        name, places = launch.argv[0], launch.env.get("PATH", os.defpath).split(":")
        try:
            path = find_program(
                os.path.join(here, name) if "/" in name else name, ":".join(os.path.join(here, each) for each in places)
            )
        except OSError:
            return {"path": "", "real": ""}
        return {"path": path, "real": os.path.realpath(path)}

    def _start_code(self, subject: Exec, launch: Launch, language: str, code: str) -> None:
        try:
            program = find_program(launch.argv[0], launch.env.get("PATH", ""))
        except OSError:
            subject.refuse(command.missing_language(language, launch.env))
            return

        def plainly() -> None:
            _start_plainly(subject, launch, language, code)

        is_parkable = language == "python" and program == _VENV_PYTHON
        if not (is_parkable and self._parking.start(subject, launch, code, plainly)):
            plainly()

    def _input(self, args: Dict[str, Any]) -> Dict[str, Any]:
        try:
            data = binascii.a2b_base64(fields.text(args, "data"))
        except ValueError as error:
            raise Refusal("invalid", "data is no base64") from error
        offset = fields.integer(args, "offset", 0)
        subject, is_last = self._find(args), fields.flag(args, "is_last")
        if fields.flag(args, "append"):
            is_taken, is_open = subject.append_input(data, is_last)
            return {"taken": is_taken, "open": is_open, "room": subject.has_input_room}
        taken, is_open = subject.take_input(offset, data, is_last)
        return {"offset": taken, "open": is_open, "room": subject.has_input_room}

    def _kill(self, args: Dict[str, Any]) -> None:
        subject, number = self._find(args), fields.integer(args, "signal", 9)
        _check_same(subject, args)
        if not 0 < number < 65:
            raise Refusal("invalid", "signal %d does not exist" % number)
        if number == 9:
            subject.kill()
        else:
            subject.signal(number)

    def _resize(self, args: Dict[str, Any]) -> None:
        subject = self._find(args)
        if not subject.is_pty:
            raise Refusal("conflict", "exec %s has no terminal now" % subject.id)
        set_size(subject.master, *fields.pair(args))

    def _foreground(self, args: Dict[str, Any]) -> Dict[str, Any]:
        subject = self._find(args)
        return {"pgid": subject.foreground(), "input_waiting": subject.is_input_awaited()}

    def _forget(self, args: Dict[str, Any]) -> None:
        subject = self._find(args)
        if subject.is_running:
            raise Refusal("conflict", "exec %s is running" % subject.id)
        self._drop(subject.id)

    def _list(self, args: Dict[str, Any]) -> Dict[str, Any]:
        return {"execs": [subject.view() for subject in self._execs.values()]}


def _check_same(subject: Exec, args: Dict[str, Any]) -> None:
    digest = fields.text(args, "digest", "")
    if digest and digest != subject.digest:
        raise Refusal("conflict", "%s is the name of another command" % subject.id)


def _object(args: Dict[str, Any], name: str) -> Dict[str, Any]:
    value = args[name]
    if not isinstance(value, dict):
        raise Refusal("invalid", "%s has the wrong type" % name)
    return value


def _argv(args: Dict[str, Any]) -> List[str]:
    if args.get("argv") is not None:
        argv: Optional[List[str]] = fields.texts(args, "argv")
    elif args.get("shell") is not None:
        argv = ["/bin/sh", "-c", fields.text(args, "shell")]
    else:
        code = args.get("code")
        if not isinstance(code, str):
            raise Refusal("invalid", "code is missing")
        argv = command.language_argv(fields.text(args, "language"), code)
        if argv is None:
            raise Refusal("invalid", "unknown language; known are %s" % ", ".join(command.LANGUAGES))
    if not argv:
        raise Refusal("invalid", "argv is empty")
    return argv


def _start_plainly(subject: Exec, launch: Launch, language: str, code: str) -> None:
    if command.PRIVATE_FILE in launch.argv:
        path = scripts.keep(code, command.LANGUAGES[language]["suffix"], launch)
        launch.argv = [path if part == command.PRIVATE_FILE else part for part in launch.argv]
    subject.start(launch)
