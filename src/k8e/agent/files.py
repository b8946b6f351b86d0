"""The file operations: streamed, binary-safe, atomic where they replace, for every name that Linux allows."""

from __future__ import annotations

import errno
import os
import stat

from k8e.wire.outbox import WINDOW, Outbox

from . import fields
from .fields import Refusal, refusal_of
from .guards import Guard, inodes_above
from .link import Subscriber
from .places import place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple

    from .link import Link
    from .loop import Loop
    from .places import Place
    from .service import Service

__all__ = ["Files", "entry_of", "remove_tree"]

_READ_BYTES = 256 * 1024
_BATCH = 500
_PATH_BYTES = 4096
_BATCH_CHARACTERS = 100 * 1024
_FILE_MODE = 0o644
_TEMPORARY = b".k8e-tmp-"


class Files:
    """The operations, by name."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def register(self, service: Service) -> None:
        """Offer the operations."""
        service.add_stream("file.read", _open_read)
        service.add_stream("file.write", _open_write)
        service.add_stream("file.list", self._open_list)
        service.add_stream("file.watch", self._open_watch)
        service.add_call("file.stat", _stat)
        service.add_call("file.mkdir", _mkdir)
        service.add_call("file.move", _move)
        service.add_call("file.remove", _remove)
        service.add_call("file.gated", _gated)

    def _open_list(self, link: Link, number: int, args: Dict[str, Any]) -> None:
        listing = _Listing(self._loop, link, number, _entries(args))
        link.subscribers[number] = listing
        listing.acked()

    def _open_watch(self, link: Link, number: int, args: Dict[str, Any]) -> None:
        from .watch import Watch  # inotify is rare; its cost is paid by those who use it

        link.subscribers[number] = watch = Watch(self._loop, link, number, args)
        watch.begin()


def entry_of(path: bytes, status: os.stat_result, target: str = "") -> Dict[str, Any]:
    """How a file is told to the engine."""
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"))
    kind = next((name for test, name in kinds if test(status.st_mode)), "other")
    return {
        "path": os.fsdecode(path),
        "kind": kind,
        "size": status.st_size,
        "modified": status.st_mtime,
        "mode": stat.S_IMODE(status.st_mode),
        "target": target,
    }


class _Reading(Subscriber):
    """A file on its way out, as fast as the engine acknowledges."""

    def __init__(self, link: Link, number: int, fd: int, length: Optional[int]) -> None:
        self._link = link
        self._number = number
        self._fd = fd
        self._left = length
        self._outbox = Outbox(WINDOW)
        link.mux.attach(number, 1, self._outbox)
        self.acked()

    def acked(self) -> None:
        while self._fd >= 0 and self._outbox.room > 0:
            limit = min(_READ_BYTES, self._outbox.room)
            if self._left is not None:
                limit = min(limit, self._left)
            data = self._read(limit)
            if data is None:
                return
            if not data:
                self._finish()
            elif self._left is not None:
                self._left -= len(data)
            self._outbox.append(data)
        self._link.mux.wake(self._number)

    def _read(self, limit: int) -> Optional[bytes]:
        try:
            return os.read(self._fd, limit) if limit else b""
        except BlockingIOError:
            return b""
        except OSError as error:
            self.lost()
            refusal = refusal_of(error)
            self._link.fail(self._number, refusal.code, str(refusal))
            return None

    def _finish(self) -> None:
        self.lost()
        self._outbox.finish()
        self._link.mux.end(self._number, {})

    def lost(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_read(link: Link, number: int, args: Dict[str, Any]) -> None:
    offset = fields.integer(args, "offset", 0)
    length = None if args.get("length") is None else fields.integer(args, "length")
    if offset < 0 or (length is not None and length < 0):
        raise Refusal("invalid", "offset and length count from 0")
    with place_of(args) as place:
        # Before it is opened: that alone would wake whoever waits for a reader of a FIFO.
        mode = place.stat(follow=True).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
            raise Refusal("invalid", "%s is not a regular file" % os.fsdecode(place.path))
        # O_NONBLOCK: it may be another one by now, and opening a FIFO must not stop PID 1.
        fd = place.open(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = _regular(fd, place.path)
        if offset > status.st_size:
            length = 0  # the kernel refuses offsets that no file can have, and behind the end is nothing anyway
        else:
            os.lseek(fd, offset, os.SEEK_SET)
    except (OSError, Refusal):
        os.close(fd)
        raise
    link.mux.event(
        number, "stat", {"size": status.st_size, "mode": stat.S_IMODE(status.st_mode), "mtime": status.st_mtime}
    )
    link.subscribers[number] = _Reading(link, number, fd, length)


def _regular(fd: int, path: bytes) -> os.stat_result:
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise Refusal("invalid", "%s is not a regular file" % os.fsdecode(path))
    return status


class _Writing(Subscriber):
    """A file on its way in: a temporary neighbour until it is complete, or the file itself for an append."""

    def __init__(self, link: Link, number: int, place: Place, perm: Optional[int], is_append: bool) -> None:
        self._link = link
        self._number = number
        self._place = place
        self._temporary: Optional[Place] = None
        self._size = 0
        self._fd = -1
        if is_append:
            self._fd = place.open(os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, perm or _FILE_MODE)
            try:
                _check_names(place, _regular(self._fd, place.path))
            except (OSError, Refusal):
                os.close(self._fd)
                raise
        else:
            self._open_temporary(perm)

    def _open_temporary(self, perm: Optional[int]) -> None:
        old = _status(self._place)
        if old is not None and stat.S_ISDIR(old.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._place.path)
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise Refusal("invalid", "%s is not a regular file" % os.fsdecode(self._place.path))
        self._temporary = self._place.sibling(_TEMPORARY + os.urandom(8).hex().encode())
        self._fd = self._temporary.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        mode = perm if perm is not None else stat.S_IMODE(old.st_mode) if old is not None else _FILE_MODE
        if old is not None:
            _keep_owner(self._fd, old)
        os.fchmod(self._fd, mode & 0o7777)

    def data(self, offset: int, payload: bytes) -> None:
        if self._fd < 0:
            return
        view = memoryview(payload)
        try:
            while len(view):
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._fail(error)
            return
        self._size += len(payload)
        self._link.mux.ack(self._number, 0, offset + len(payload))

    def finished(self) -> None:
        if self._fd < 0:
            return
        try:
            self._commit()
        except OSError as error:
            self._fail(error)
            return
        self._link.subscribers.pop(self._number, None)
        self._link.mux.event(self._number, "written", {"size": self._size})
        self._link.end(self._number, {"size": self._size})
        self.lost()

    def _commit(self) -> None:
        os.close(self._fd)
        self._fd = -1
        if self._temporary is not None:
            source, target = self._temporary, self._place
            os.rename(source.name, target.name, src_dir_fd=source.dir_fd, dst_dir_fd=target.dir_fd)
            self._temporary = None

    def _fail(self, error: OSError) -> None:
        error.filename = self._place.path
        refusal = refusal_of(error)
        self.lost()
        self._link.fail(self._number, refusal.code, str(refusal))

    def lost(self) -> None:
        """Also the end of a good one: whatever is left over goes."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._temporary is not None:
            try:
                os.unlink(self._temporary.name, dir_fd=self._temporary.dir_fd)
            except OSError:
                pass
            self._temporary = None
        self._place.__exit__()


def _check_names(place: Place, status: os.stat_result) -> None:
    """More is written by appending than this place shows where the file has other names. Raises: Refusal."""
    if place.guard is not None and status.st_nlink > 1 and not place.guard.approves(place.path):
        raise Refusal("gated", os.fsdecode(place.path))


def _status(place: Place) -> Optional[os.stat_result]:
    try:
        return place.stat(follow=False)
    except FileNotFoundError:
        return None


def _keep_owner(fd: int, old: os.stat_result) -> None:
    try:
        os.fchown(fd, old.st_uid, old.st_gid)
    except OSError:
        pass  # not ours to give: the content still counts


def _open_write(link: Link, number: int, args: Dict[str, Any]) -> None:
    mode = fields.text(args, "mode", "w")
    if mode not in ("w", "a"):
        raise Refusal("invalid", "mode is w or a")
    perm = None if args.get("perm") is None else fields.integer(args, "perm")
    if args.get("root") is None and args.get("gates") is None:
        # Replace what a link points to, not the link.
        path = os.path.realpath(os.path.join("/workspace", fields.text(args, "path")))
        args = dict(args, path=path)
    place = place_of(args, parents=fields.flag(args, "parents", True))
    try:
        place.check()
        link.subscribers[number] = _Writing(link, number, place, perm, mode == "a")
    except (OSError, Refusal):
        place.__exit__()
        raise


def _stat(args: Dict[str, Any]) -> Dict[str, Any]:
    follow = fields.flag(args, "follow", True)
    with place_of(args, follow=follow) as place:
        status = place.stat(follow=follow)
        return entry_of(place.path, status, _target(place.name, place.dir_fd, status))


def _target(name: bytes, dir_fd: Optional[int], status: os.stat_result) -> str:
    if not stat.S_ISLNK(status.st_mode):
        return ""
    try:
        return os.fsdecode(os.readlink(name, dir_fd=dir_fd))
    except OSError:
        return ""


class _Listing(Subscriber):
    """A listing on its way out, a batch at a time, so that a huge tree neither blocks the loop nor fills memory."""

    def __init__(self, loop: Loop, link: Link, number: int, entries: Iterator[Dict[str, Any]]) -> None:
        self._loop = loop
        self._link = link
        self._number = number
        self._entries: Optional[Iterator[Dict[str, Any]]] = entries
        self._is_scheduled = False

    def acked(self) -> None:
        if self._entries is not None and not self._is_scheduled and self._link.mux.backlog(self._number) < WINDOW // 4:
            self._is_scheduled = True
            self._loop.later(0, self._step)

    def _step(self) -> None:
        self._is_scheduled = False
        if self._entries is None:
            return
        try:
            batch, is_last = _batch(self._entries)
        except OSError as error:
            self._entries = None
            refusal = refusal_of(error)
            self._link.fail(self._number, refusal.code, str(refusal))
            return
        self._link.mux.event(self._number, "entries", {"entries": batch})
        if is_last:
            self._entries = None
            self._link.end(self._number, {})
        else:
            self._link.flush()
            self.acked()

    def lost(self) -> None:
        self._entries = None


def _batch(entries: Iterator[Dict[str, Any]]) -> Tuple[List[Dict[str, Any]], bool]:
    """The next entries, few enough for one frame even if every byte of every name needs an escape."""
    batch: List[Dict[str, Any]] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += len(entry["path"]) + len(entry["target"])
        if len(batch) == _BATCH or size > _BATCH_CHARACTERS:
            return batch, False
    return batch, True


def _entries(args: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """The content of a directory; the first error is the request's, later ones are of files that vanished."""
    recursive, since = fields.flag(args, "recursive"), fields.number(args, "since", 0.0)
    with place_of(args) as top:
        path = b"/" + os.path.normpath(top.path).lstrip(b"/")
        after = _below(path, os.fsencode(fields.text(args, "after", "")))
        entries = _listed(top.open(os.O_RDONLY | os.O_DIRECTORY), path, recursive, since, after)
    next(entries)
    return entries


def _listed(fd: int, path: bytes, recursive: bool, since: float, after: List[bytes]) -> Iterator[Dict[str, Any]]:
    """The entries of a directory, which is closed when the generator is.

    The first item is empty, and taken at once: a generator that was never started closes nothing.
    """
    try:
        yield {}
        yield from _walk(fd, path, recursive, since, after)
    finally:
        os.close(fd)


def _below(top: bytes, after: bytes) -> List[bytes]:
    """The names from the top down to the entry after which a listing goes on."""
    prefix = top.rstrip(b"/") + b"/"
    if after and not after.startswith(prefix):
        raise Refusal("invalid", "page_token: the listing to go on with is another directory's")
    return after[len(prefix) :].split(b"/") if after else []


def _walk(fd: int, path: bytes, recursive: bool, since: float, after: List[bytes]) -> Iterator[Dict[str, Any]]:
    """Entries in the order of their names, parents first, as far as they can be named; from `after` on, without it."""
    first, rest = (after[0], after[1:]) if after else (b"", [])
    names = sorted(name for name in map(os.fsencode, os.listdir(fd)) if name >= first)
    for name in names:
        if len(path) + len(name) >= _PATH_BYTES:
            continue
        is_resumed = bool(after) and name == first
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            continue
        if status.st_mtime >= since and not is_resumed:
            yield entry_of(os.path.join(path, name), status, _target(name, fd, status))
        if recursive and stat.S_ISDIR(status.st_mode):
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except OSError:
                continue
            try:
                yield from _walk(below, os.path.join(path, name), recursive, since, rest if is_resumed else [])
            finally:
                os.close(below)


def _is_directory(place: Place) -> bool:
    try:
        return stat.S_ISDIR(place.stat(follow=True).st_mode)
    except OSError:
        return False


def _mkdir(args: Dict[str, Any]) -> None:
    parents = fields.flag(args, "parents", True)
    with place_of(args, parents=parents) as place:
        if not _is_directory(place):
            place.check()
        try:
            os.mkdir(place.name, dir_fd=place.dir_fd)
        except FileExistsError as error:
            if not parents or not stat.S_ISDIR(place.stat(follow=True).st_mode):
                error.filename = place.path
                raise


def _move(args: Dict[str, Any]) -> None:
    with place_of(args, "source", follow=False) as source, place_of(args, "target", follow=False) as target:
        for place in (source, target):
            place.check(above=True)
        try:
            os.rename(source.name, target.name, src_dir_fd=source.dir_fd, dst_dir_fd=target.dir_fd)
        except OSError as error:
            if error.errno != errno.EXDEV or (source.is_confined and source.guard is None):
                error.filename = source.path
                raise
            import shutil  # only a move between mounts needs it

            if source.is_confined:
                _move_between(source, target, shutil.copyfileobj)
            else:
                shutil.move(os.fsdecode(source.path), os.fsdecode(target.path))


def _move_between(source: Place, target: Place, copy: Callable[[BinaryIO, BinaryIO, int], None]) -> None:
    """One file, from a mount to another, by descriptors alone: what a link at the target's name leads to stays as it is.

    Raises:
        Refusal: it is something else than a file.
    """
    if not stat.S_ISREG(source.stat(follow=False).st_mode):
        raise Refusal("invalid", "between mounts only a file can be moved here: copy it inside the sandbox")
    with os.fdopen(source.open(os.O_RDONLY | os.O_NONBLOCK), "rb") as old:
        status = os.fstat(old.fileno())
        fresh = target.sibling(_TEMPORARY + os.urandom(8).hex().encode())
        try:
            with os.fdopen(fresh.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
                copy(old, new, _READ_BYTES)
                os.fchown(new.fileno(), status.st_uid, status.st_gid)
                os.fchmod(new.fileno(), stat.S_IMODE(status.st_mode))
            os.rename(fresh.name, target.name, src_dir_fd=fresh.dir_fd, dst_dir_fd=target.dir_fd)
        except BaseException:
            try:
                os.unlink(fresh.name, dir_fd=fresh.dir_fd)
            except OSError:
                pass  # it was not made, or has its new name
            raise
    os.unlink(source.name, dir_fd=source.dir_fd)


def _remove(args: Dict[str, Any]) -> None:
    recursive = fields.flag(args, "recursive")
    with place_of(args, follow=False) as place:
        if place.name == b"." or os.path.normpath(place.path) == b"/":
            raise Refusal("invalid", "path: the top directory cannot be removed")
        place.check(above=True)
        is_directory = stat.S_ISDIR(place.stat(follow=False).st_mode)
        try:
            if is_directory and recursive:
                remove_tree(place.name, place.dir_fd)
            elif is_directory:
                os.rmdir(place.name, dir_fd=place.dir_fd)
            else:
                os.unlink(place.name, dir_fd=place.dir_fd)
        except OSError as error:
            error.filename = error.filename or place.path
            raise


def remove_tree(name: bytes, dir_fd: Optional[int] = None) -> None:
    """Remove a directory and all below it, without following anything."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        for entry in os.listdir(fd):
            child = os.fsencode(entry)
            if stat.S_ISDIR(os.stat(child, dir_fd=fd, follow_symlinks=False).st_mode):
                remove_tree(child, fd)
            else:
                os.unlink(child, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=dir_fd)


def _gated(args: Dict[str, Any]) -> Dict[str, Any]:
    """Where a change that is asked for would really be, of its places those that are gated.

    Only a look: what it finds is looked at again, by descriptors, when the change is made.
    """
    guard, op = Guard(fields.texts(args, "gates"), []), fields.text(args, "op")
    found = []
    for name in ("source", "target") if op == "move" else ("path",):
        path = os.path.join(b"/workspace", os.fsencode(fields.text(args, name)))
        above = op in ("move", "remove")
        # These two are about a link itself, the others about what it points to.
        place = os.path.join(os.path.realpath(os.path.dirname(path.rstrip(b"/"))), os.path.basename(path.rstrip(b"/")))
        place = os.path.normpath(place) if above else os.path.realpath(path)
        if op == "mkdir" and os.path.isdir(place):
            continue
        if guard.holds(place, inodes_above(place), above=above) or (op == "append" and _has_other_names(place)):
            found.append(os.fsdecode(place))
    return {"paths": found}


def _has_other_names(path: bytes) -> bool:
    try:
        return os.stat(path).st_nlink > 1
    except OSError:
        return False
