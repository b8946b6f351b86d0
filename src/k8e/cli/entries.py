"""What `--manifest` and `--git-repo` put into a session's /workspace: files, directories, repositories.

Paths stay below /workspace, modes are octal, and git gets its arguments as a list: nothing here passes a shell.
"""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from k8e.client.errors import Conflict, InvalidRequest, NotFound, ServerFailed
from k8e.client.light.calls import Calls, deadline, encoded

__all__ = ["Directory", "Entry", "File", "Repository", "materialize", "parsed", "wanted"]

WORKSPACE = "/workspace"
CLONE_S = 120.0

_URL = re.compile(
    r"(https?|ssh|git|file)://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:[^\s-]\S*"
)
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*")
_MODE = re.compile(r"(0o)?[0-7]{3,5}")


class File(NamedTuple):
    path: str
    content: str
    mode: int | None


class Directory(NamedTuple):
    path: str


class Repository(NamedTuple):
    path: str
    url: str
    ref: str


Entry = File | Directory | Repository


def wanted(args: argparse.Namespace) -> list[Entry]:
    """The entries that a command's flags ask for. Raises: InvalidRequest."""
    entries: list[Entry] = []
    if args.manifest:
        try:
            text = Path(args.manifest).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"manifest: {error}") from error
        entries += parsed(text)
    if args.git_repo:
        entries.append(repository(args.git_path, args.git_repo, args.git_ref, "git-repo"))
    return entries


def parsed(text: str) -> list[Entry]:
    """A manifest's entries. Raises: InvalidRequest that names the entry."""
    import yaml

    try:
        # Every scalar stays text: 0755 and "0755" are the same mode, and no name turns into a number.
        found = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes nothing but text, lists and maps
    except yaml.YAMLError as error:
        raise InvalidRequest(f"manifest: is no YAML: {error}") from error
    listed = found.get("entries") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise InvalidRequest("manifest: has no list `entries`")
    return [entry(each, f"manifest: entries[{number}]") for number, each in enumerate(listed)]


def entry(found: object, where: str) -> Entry:
    if not isinstance(found, dict) or len(found) != 1:
        raise InvalidRequest(f"{where}: must be exactly one of file, dir and gitRepo")
    kind, fields = next(iter(found.items()))
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise InvalidRequest(f"{where}.{kind}: must be a map of texts")
    where = f"{where}.{kind}"
    match kind:
        case "file":
            check(fields, {"path", "content", "mode"}, where)
            return File(below(fields, where), fields.get("content", ""), mode(fields.get("mode"), where))
        case "dir":
            check(fields, {"path"}, where)
            return Directory(below(fields, where))
        case "gitRepo":
            check(fields, {"path", "repo", "ref"}, where)
            return repository(fields.get("path", ""), fields.get("repo", ""), fields.get("ref", "main"), where)
        case other:
            raise InvalidRequest(f"{where}: {other!r} is not one of file, dir and gitRepo")


def check(fields: Mapping[str, str], known: set[str], where: str) -> None:
    if unknown := sorted(fields.keys() - known):
        raise InvalidRequest(f"{where}: {unknown[0]!r} is not one of {', '.join(sorted(known))}")


def below(fields: Mapping[str, str], where: str) -> str:
    """A path as given, below /workspace and nowhere else."""
    path = fields.get("path", "")
    parts = path.split("/")
    if not path.strip("/") or ".." in parts or "\0" in path:
        raise InvalidRequest(f"{where}.path: {path!r} is not a path below {WORKSPACE}")
    joined = posixpath.normpath(posixpath.join(WORKSPACE, path))
    if not joined.startswith(WORKSPACE + "/"):
        raise InvalidRequest(f"{where}.path: {path!r} is not below {WORKSPACE}")
    return joined


def mode(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    if not _MODE.fullmatch(text) or int(text, 8) > 0o7777:
        raise InvalidRequest(f"{where}.mode: {text!r} is not an octal mode like 0755")
    return int(text, 8)


def repository(path: str, url: str, ref: str, where: str) -> Repository:
    if not _URL.fullmatch(url):
        raise InvalidRequest(f"{where}: {url!r} is not a git URL (https://…, ssh://…, user@host:path)")
    if not _REF.fullmatch(ref) or ".." in ref or ref.endswith((".lock", "/", ".")):
        raise InvalidRequest(f"{where}: {ref!r} is not the name of a branch or tag")
    return Repository(below({"path": path}, where), url, ref)


def materialize(calls: Calls, session_id: str, entries: Sequence[Entry]) -> None:
    """Make them, in their order. Raises: SandboxError."""
    for each in entries:
        match each:
            case File(path, content, perm):
                write(calls, session_id, path, content, perm)
            case Directory(path):
                calls.unary("MakeDirectory", {"session_id": session_id, "path": path})
            case Repository():
                clone(calls, session_id, each)


def write(calls: Calls, session_id: str, path: str, content: str, perm: int | None) -> None:
    request = {"session_id": session_id, "path": path, "content_bytes": encoded(content), "mode": "w"}
    calls.unary("WriteFile", request if perm is None else {**request, "perm": perm})


def clone(calls: Calls, session_id: str, repo: Repository) -> None:
    try:
        calls.unary("StatFile", {"session_id": session_id, "path": repo.path})
    except NotFound:
        pass
    else:
        raise Conflict(f"{repo.path} exists already; choose another path, or leave the repository out")
    place = posixpath.relpath(repo.path, WORKSPACE)
    argv = ["git", "clone", "--quiet", "--depth", "1", "--branch", repo.ref, "--", repo.url, place]
    request = {
        "session_id": session_id,
        "argv": [encoded(each) for each in argv],
        "env": {"GIT_TERMINAL_PROMPT": encoded("0")},
        "timeout_s": CLONE_S,
    }
    done = calls.unary("Exec", request, timeout_s=deadline(CLONE_S))
    if done.number("exit_code"):
        raise ServerFailed(f"cannot clone {repo.url}: {done.text('stderr').strip()[-500:] or done.text('status')}")
