"""The agent's bundle: a relocatable Python and the agent, in one read-only directory for every sandbox.

- It needs nothing of the sandbox's image: interpreter, loader, libraries and standard library are its own.
- A bundle's name is a digest of what it is made from, and it appears by a rename: a directory with the right name
  is complete, and a running sandbox keeps the bundle that it was started with.
- All code in it is compiled with unchecked hashes, so the read-only copy is never compared with a source.
- What the agent imports at its start lies in the one file that starts it: under gVisor each file that is looked for
  costs a round trip, and there were four hundred of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import k8e
from k8e.errors import HostUnsupported
from k8e.setup import frozen

__all__ = ["INSIDE", "SOCKET", "Bundle", "Interpreter", "build", "digest", "find_interpreter"]

INSIDE = "/.k8e"
SOCKET = "/.k8e-run/agent.sock"

FORMAT = 2
"""Part of every digest: raise it when the builder itself changes what it writes."""

OLDEST = (3, 8)
PROBE_TIMEOUT_S = 20.0
COMPILE_TIMEOUT_S = 300.0

# What an agent can never need: tests, editors, graphics, installers, other people's packages.
UNWANTED = frozenset({
    "__pycache__", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "tests", "tkinter", "turtledemo", "unittest",
})  # fmt: skip
UNWANTED_EXTENSIONS = re.compile(
    r"^(_tkinter|_test|_xxtest|xxlimited|_ssl|_sqlite3|_curses|_dbm|_gdbm|readline|nis|ossaudiodev)"
)

_FACTS = """
import json, os, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "stdlib": os.path.dirname(os.__file__),
    "extensions": sysconfig.get_config_var("DESTSHARED") or "",
}))
"""

_COMPILE = """
import compileall, py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
done = compileall.compile_dir(sys.argv[1], ddir=sys.argv[2], quiet=1, legacy=True, invalidation_mode=mode, maxlevels=20)
sys.exit(not done)
"""

_MAIN = "import sys\nfrom k8e.agent.__main__ import main\nsys.exit(main())\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python of this host from which the bundle's own is copied."""

    executable: Path
    version: tuple[int, int, int]
    stdlib: Path
    extensions: Path

    @property
    def series(self) -> str:
        """Its directory's name, as in python3.11."""
        return f"python{self.version[0]}.{self.version[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A finished bundle on the host, and how to start the agent once it is mounted at `INSIDE`."""

    path: Path
    argv: tuple[str, ...]
    env: Mapping[str, str]


def _python(executable: Path | str, *arguments: str, timeout_s: float = PROBE_TIMEOUT_S) -> str:
    argv = [str(executable), "-I", "-S", "-B", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=timeout_s).stdout


def _inspect(executable: Path | str) -> Interpreter | None:
    try:
        facts = json.loads(_python(executable, "-c", _FACTS))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    major, minor, micro = facts["version"]
    if (major, minor) < OLDEST:
        return None
    stdlib = Path(facts["stdlib"])
    extensions = Path(facts["extensions"] or stdlib / "lib-dynload")
    return Interpreter(
        executable=Path(facts["executable"]), version=(major, minor, micro), stdlib=stdlib, extensions=extensions
    )


def find_interpreter() -> Interpreter:
    """The system's own Python if it is new enough, else the one that runs us. Raises: HostUnsupported."""
    for candidate in ("/usr/bin/python3", sys.executable):
        if found := _inspect(candidate):
            return found
    raise HostUnsupported("no usable Python for the agent's bundle: install python3 (3.8 or newer)")


def _agent_sources() -> list[tuple[str, bytes]]:
    """Every file of the agent's zip: its name inside, its content."""
    package = Path(k8e.__file__).parent
    # Not our own __init__: what it may import one day is not in the bundle.
    files = [("__main__.py", _MAIN.encode()), ("k8e/__init__.py", b"")]
    for room in ("agent", "wire"):
        found = sorted((package / room).rglob("*.py"))
        files += [(f"k8e/{p.relative_to(package)}", p.read_bytes()) for p in found if p.name != "aio.py"]
    return files


def _loose_sources() -> list[tuple[str, bytes]]:
    """Files that the image's own interpreter reads, so they stay source: the parking hook."""
    hook = Path(k8e.__file__).parent / "agent" / "park.py"
    return [("park.py", hook.read_bytes())] if hook.is_file() else []


def _python_digest(interpreter: Interpreter) -> str:
    seen = hashlib.sha256(f"{FORMAT} {interpreter.version}".encode())
    for path in (interpreter.executable, interpreter.stdlib / "os.py"):
        stat = path.stat()
        seen.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return seen.hexdigest()[:16]


def digest(interpreter: Interpreter) -> str:
    """The name of the bundle that this interpreter and this agent make."""
    seen = hashlib.sha256(_python_digest(interpreter).encode())
    for name, content in _agent_sources() + _loose_sources():
        seen.update(f"{name}\0{len(content)}\0".encode() + content)
    return seen.hexdigest()[:16]


def _is_wanted(directory: str, name: str) -> bool:
    if name in UNWANTED or name.startswith("config-"):
        return False
    return not (Path(directory).name == "lib-dynload" and UNWANTED_EXTENSIONS.match(name))


def _refused(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if not _is_wanted(directory, name)]


def _copy_python(interpreter: Interpreter, target: Path) -> None:
    library = target / "lib" / interpreter.series
    (target / "bin").mkdir(parents=True)
    shutil.copy2(interpreter.executable, target / "bin" / "python3")
    shutil.copytree(interpreter.stdlib, library, ignore=_refused)
    if not (library / "lib-dynload").exists():
        shutil.copytree(interpreter.extensions, library / "lib-dynload", ignore=_refused)


def _linked(binaries: Iterable[Path]) -> Iterator[Path]:
    """Every shared object that the binaries load, the loader itself included."""
    argv = ["ldd", *map(str, binaries)]
    try:
        listing = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False).stdout
    except OSError as error:
        raise HostUnsupported("ldd is missing: install libc-bin") from error
    for line in listing.splitlines():
        # An indented line is a dependency ("name => /path (0x…)" or "/path (0x…)"), any other names a binary.
        if line.startswith("\t") and (found := re.search(r"(/\S+) \(0x", line)):
            yield Path(found[1])


def _copy_libraries(target: Path) -> str:
    """Copy the closure beside the interpreter and return the loader's name."""
    loader = ""
    for library in _linked([target / "bin" / "python3", *target.glob("lib/python*/lib-dynload/*.so")]):
        if not (copy := target / "lib" / library.name).exists():
            shutil.copy2(library, copy)
        if library.name.startswith("ld-"):
            loader = library.name
    if not loader:
        raise HostUnsupported("the host's python3 is not a dynamic program; install Debian's python3")
    return loader


def _compile(interpreter: Interpreter, directory: Path, shown_as: str) -> None:
    """Compile with the bundle's own interpreter: the format belongs to its version; then drop the sources."""
    _python(interpreter.executable, "-c", _COMPILE, str(directory), shown_as, timeout_s=COMPILE_TIMEOUT_S)
    for source in directory.rglob("*.py"):
        source.unlink()


def _freeze(interpreter: Interpreter, sources: Path, target: Path) -> None:
    library = f"{INSIDE}/python/lib/{interpreter.series}"
    places = [str(interpreter.stdlib), library, str(sources), f"{INSIDE}/agent.pyz"]
    _python(interpreter.executable, "-c", frozen.PROGRAM, frozen.START, str(target), *places)


def _write(files: Iterable[tuple[str, bytes]], directory: Path) -> None:
    for name, content in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def _pack(directory: Path, archive: Path) -> None:
    # Stored, not deflated: reading is faster than inflating, and the page cache holds one copy for all sandboxes.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(directory.rglob("*.pyc")):
            packed.writestr(zipfile.ZipInfo(str(path.relative_to(directory))), path.read_bytes())


def _publish(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a directory under another name and rename it; of several makers at once one wins, with the same result."""
    if path.is_dir():
        return
    unfinished = path.parent / f".new-{secrets.token_hex(8)}"
    unfinished.mkdir(parents=True)
    try:
        fill(unfinished)
        # The sandbox's root is nobody outside: everything must be readable for others.
        for made in (unfinished, *unfinished.rglob("*")):
            made.chmod(0o755 if made.is_dir() or made.stat().st_mode & 0o100 else 0o644)
        unfinished.rename(path)
    except (OSError, subprocess.SubprocessError) as error:
        if not path.is_dir():
            raise HostUnsupported(f"cannot build the agent's bundle in {path.parent}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _fill_python(interpreter: Interpreter, target: Path) -> None:
    _copy_python(interpreter, target)
    loader = _copy_libraries(target)
    library = f"{INSIDE}/python/lib/{interpreter.series}"
    _compile(interpreter, target / "lib" / interpreter.series, library)
    (target / "loader").write_text(loader, encoding="utf-8")


def _fill(interpreter: Interpreter, python: Path, target: Path) -> None:
    # Links, not copies: bundles of different agents share one interpreter on the disk and in the page cache.
    shutil.copytree(python, target / "python", copy_function=os.link)
    staging = target / "staging"
    _write(_agent_sources(), staging)
    _freeze(interpreter, staging, target / "agent.pyc")
    _compile(interpreter, staging, f"{INSIDE}/agent.pyz")
    _pack(staging, target / "agent.pyz")
    shutil.rmtree(staging)
    _write(_loose_sources(), target)


def _load(path: Path) -> Bundle:
    loader = (path / "python" / "loader").read_text(encoding="utf-8")
    home = f"{INSIDE}/python"
    argv = (
        *(f"{home}/lib/{loader}", "--library-path", f"{home}/lib", f"{home}/bin/python3"),
        *("-S", "-s", "-B", f"{INSIDE}/agent.pyc", "--socket", SOCKET),
    )
    # UTF-8 mode at once: probing for a C.UTF-8 locale that an image may lack only costs time.
    return Bundle(path=path, argv=argv, env={"PYTHONHOME": home, "PYTHONUTF8": "1", "PYTHONCOERCECLOCALE": "0"})


def build(target: Path, *, before: Callable[[], None] = lambda: None) -> Bundle:
    """The bundle for this host and this agent below `target`; made if it is not there, after `before` was called.

    Raises: HostUnsupported.
    """
    interpreter = find_interpreter()
    path = target / digest(interpreter)
    if not path.is_dir():
        before()
        python = target / f"python-{_python_digest(interpreter)}"
        _publish(python, partial(_fill_python, interpreter))
        _publish(path, partial(_fill, interpreter, python))
    return _load(path)
