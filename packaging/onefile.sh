#!/bin/sh
# k8e in one file: these lines, then a zip with everything that it needs but Python itself.
#
# The first start unpacks the zip into a Python environment, in /var/cache/k8e for root and in the user's own cache
# directory for others (K8E_HOME moves it); every later start is one look at a stamp and an exec. The directory's name
# is the build's, so versions never mix, and a running server keeps the files that it was started from.
set -eu

build=@BUILD@ series=@SERIES@ platform=@PLATFORM@
ENTRY='import sys; from k8e.cli.main import main; sys.exit(main(prog=sys.argv.pop(1)))'

say() { printf 'k8e: %s\n' "$*" >&2; }
die() { say "$@"; exit 2; }

# SAFETY: code is run from here, so root never uses a directory that follows somebody's HOME.
choose_place() {
    if [ -n "${K8E_HOME:-}" ]; then place=$K8E_HOME
    elif [ "$(id -u)" = 0 ]; then place=/var/cache/k8e
    else place=${XDG_CACHE_HOME:-${HOME:?is not set; set K8E_HOME to a directory that you own}/.cache}/k8e
    fi
}

is_ready() { [ -O "$place/$build/stamp" ] && [ -x "$place/$build/bin/python" ]; }

fits() {
    "$1" -I -c "import sys, sysconfig
sys.exit(('%d.%d' % sys.version_info[:2], sysconfig.get_platform()) != ('$series', '$platform'))" >/dev/null 2>&1
}

# The system's own Python first: it does not move when somebody changes a version switcher.
find_python() {
    for python in ${K8E_PYTHON:+"$K8E_PYTHON"} /usr/bin/python3 "/usr/bin/python$series" python3 "python$series"; do
        if command -v "$python" >/dev/null 2>&1 && fits "$python"; then command -v "$python"; return 0; fi
    done
    return 1
}

explain_python() {
    say "this file was built for Python $series on $platform, and no such Python is on this machine"
    for python in /usr/bin/python3 python3; do
        if command -v "$python" >/dev/null 2>&1; then
            say "  $(command -v "$python") is $("$python" -V 2>&1 || echo 'not usable')"
        fi
    done
    die "install Python $series (or name one with K8E_PYTHON), or take the k8e that was built for the Python you have"
}

choose_place
if ! is_ready; then
    python=$(find_python) || explain_python
    "$python" -I -- "$0" --unpack-into "$place" || exit 2
fi
# -I: neither the caller's directory nor PYTHON* variables may change which code runs.
exec "$place/$build/bin/python" -I -c "$ENTRY" "$0" "$@"
