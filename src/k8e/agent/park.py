"""Runs inside the image's own interpreter, at the end of `site`: wait for a program, then become it.

Read as source by Python 3.8 and later. It imports nothing that a fresh interpreter would not import and
leaves nothing behind: no descriptor, variable, module or name.
"""


def _comes_again() -> bool:
    """Whether `site` will go through this directory once more: the later we park, the less is left to do."""
    import sys

    frames = [sys._getframe()]  # noqa: SLF001
    while frames[-1].f_back is not None:
        frames.append(frames[-1].f_back)
    return any(each.f_code.co_name == "venv" and each.f_globals.get("__name__") == "site" for each in frames)


def _customize() -> None:
    """Import the distribution's own `sitecustomize`, which comes next in any case.

    One that somebody installed is left to its time, when the program's environment is there.
    """
    import os
    import sys

    found = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize")
    if found is not None and found.origin and os.path.dirname(found.origin) == os.path.dirname(os.__file__):
        try:
            __import__("sitecustomize")
        except Exception:  # noqa: BLE001  # `site` tries again and reports it
            pass


def _read_input(pipe: int) -> None:
    """Have standard input from there, as if it had been there from the start."""
    import os
    import sys

    os.dup2(pipe, 0)
    io, old = sys.modules["io"], sys.stdin
    raw = io.FileIO(0, "rb", closefd=False)
    raw.name = "<stdin>"
    new = io.TextIOWrapper(
        io.BufferedReader(raw, raw._blksize),  # noqa: SLF001
        encoding=old.encoding,
        errors=old.errors,
        newline="\n",
    )
    new.mode = "r"
    sys.stdin = sys.__stdin__ = new  # type: ignore[misc]


def _park(read_input) -> None:  # type: ignore[no-untyped-def]  # there is no `typing` here
    import os
    import sys

    line = int(os.environ.pop("K8E_PARK"))
    os.write(line, b"1")
    head = os.read(line, 4)
    if len(head) < 4:
        os._exit(0)
    size, order = int.from_bytes(head, "big"), b""
    while len(order) < size:
        piece = os.read(line, size - len(order))
        if not piece:
            os._exit(0)
        order += piece
    os.close(line)
    cwd, code, has_input, changed, *environment = order.split(b"\0")
    if has_input:
        read_input(line - 1)
    os.close(line - 1)
    os.chdir(cwd)
    if changed:
        os.environ.clear()
        for item in environment:
            name, _, value = item.partition(b"=")
            os.environb[name] = value
        if b"TZ" in os.environb:
            sys.modules["time"].tzset()
    if code and hasattr(sys, "orig_argv"):
        sys.orig_argv[2] = os.fsdecode(code)


if not _comes_again():
    _customize()
    _park(_read_input)
del _park, _read_input, _customize, _comes_again
