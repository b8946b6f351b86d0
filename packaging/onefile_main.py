"""The first thing that runs from the one-file program's zip: unpacks the rest into a Python environment.

Any Python may be made to run this file, so it is written for old ones; `onefile.sh` chooses the right one.
"""

import contextlib
import fcntl
import os
import shutil
import sys
import zipfile

BUILD, SERIES = "@BUILD@", "@SERIES@"
WORDS = ("--unpack-into",)

HERE = os.path.dirname(os.path.abspath(__file__))
"""The file itself: this module lies at the top of its zip."""


def die(text):
    sys.stderr.write("k8e: %s\n" % text)
    sys.exit(2)


def unpack(place):
    """Make the environment below `place`, once; it appears by a rename, so what is there is whole."""
    os.makedirs(place, mode=0o755, exist_ok=True)
    if os.stat(place).st_uid != os.geteuid():
        die("%s belongs to somebody else; set K8E_HOME to a directory of your own" % place)
    with open(os.path.join(place, "lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        target = os.path.join(place, BUILD)
        # Whoever had the lock before may have done it; and an interpreter that went away makes it useless.
        if os.path.exists(os.path.join(target, "stamp")) and os.path.exists(os.path.join(target, "bin", "python")):
            return
        sys.stderr.write("k8e: first start of this version: unpacking into %s\n" % target)
        unfinished = os.path.join(place, "new")
        for old in (unfinished, target):
            shutil.rmtree(old, ignore_errors=True)
        fill(unfinished)
        os.rename(unfinished, target)


def fill(target):
    os.makedirs(os.path.join(target, "bin"))
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    os.symlink(base, os.path.join(target, "bin", "python"))
    with open(os.path.join(target, "pyvenv.cfg"), "w") as file:
        file.write("home = %s\ninclude-system-site-packages = false\n" % os.path.dirname(base))
    library = os.path.join(target, "lib", "python" + SERIES)
    with zipfile.ZipFile(HERE) as archive:
        members = [name for name in archive.namelist() if name.startswith("site-packages/")]
        archive.extractall(library, members)
    with open(os.path.join(target, "stamp"), "w") as file:
        file.write(BUILD + "\n")


def main():
    if "%d.%d" % sys.version_info[:2] != SERIES:
        die("this file was built for Python %s, and this is %s" % (SERIES, sys.version.split()[0]))
    if tuple(sys.argv[1:2]) != WORDS:
        # Started as `python3 k8e …`: the same as `k8e …`, with this very Python.
        os.environ.setdefault("K8E_PYTHON", sys.executable)
        os.execv("/bin/sh", ["sh", HERE, *sys.argv[1:]])
    os.umask(0o022)
    try:
        unpack(sys.argv[2])
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(os.path.join(sys.argv[2], "new"), ignore_errors=True)
        die("cannot unpack into %s: %s; set K8E_HOME to a directory with room for 200 MB" % (sys.argv[2], error))


if __name__ == "__main__":
    main()
