"""The `host` image: this machine's programs, none of its data.

`/usr` is the host's own, read-only; `/etc` is written anew from a short list of harmless facts; everything else is empty.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from k8e.substrate.local.plan import Bind

__all__ = ["APT_NOTICE", "LOGIN_PATH", "WRITTEN", "binds", "copy_public", "explain_apt", "fill"]

_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_COPIED = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "debian_version", "os-release",
    "protocols", "services", "rpc", "mime.types", "bash.bashrc", "profile", "inputrc", "terminfo", "magic",
    "ssl/certs", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "fonts", "java-17-openjdk", "perl", "python3",
    "python3.11", "python3.12", "python3.13",
)  # fmt: skip
"""Public facts that programs under /usr expect: no accounts, keys, hosts, mounts or configuration with secrets."""

WRITTEN = {
    "passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
        "user:x:1000:1000:user:/home/user:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": "root:x:0:\ndaemon:x:1:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
    "hostname": "sandbox\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "shells": "/bin/sh\n/bin/bash\n",
    "gai.conf": "",
    "fstab": "",
    "mtab": "",
    "machine-id": "",
}


APT_NOTICE = """#!/bin/sh
# The host image's packages are the host's own: this says so before apt fails without its state.
program=/usr/bin/${0##*/}
[ -e /var/lib/dpkg/status ] && exec "$program" "$@"
skip=
for word in "$@"; do
    if [ -n "$skip" ]; then skip=; continue; fi
    case $word in
    -o|-c|-t|-a|-P|--option|--config-file|--target-release|--default-release|--host-architecture|--build-profiles) skip=1 ;;
    -*) ;;
    update|install|reinstall|upgrade|full-upgrade|dist-upgrade|dselect-upgrade|build-dep|satisfy|source|download)
        echo "E: ${0##*/} $word: this sandbox shows the server's own programs read-only, so no package can be installed." >&2
        echo "E: Use a session with a distribution's image (create --image NAME), or have the server run with --allow-apt." >&2
        exit 100 ;;
    *) break ;;
    esac
done
exec "$program" "$@"
"""

LOGIN_PATH = """# A login shell sets PATH anew: what other commands find first, it finds first, too.
case ":$PATH:" in *:/opt/venv/bin:*) ;; *) PATH="/opt/venv/bin:$PATH" ;; esac
"""


def binds() -> tuple[Bind, ...]:
    """What of the host is shown."""
    return (Bind(source=Path("/usr"), target="/usr"),)


def fill(target: Path, host: Path = Path("/")) -> None:
    """Write the image's own files into `target`."""
    for name in _LINKS:
        _copy_link(host / name, target / name)
    etc = target / "etc"
    etc.mkdir()
    for name in _COPIED:
        copy_public(host / "etc" / name, etc / name)
    for name, text in WRITTEN.items():
        (etc / name).write_text(text, encoding="ascii")
    user = target / "home" / "user"
    user.mkdir(parents=True)
    os.chown(user, 1000, 1000)
    (target / "root").mkdir(mode=0o700)
    for name in ("var/tmp", "var/log", "var/cache", "var/lib", "opt", "mnt", "media", "srv"):
        (target / name).mkdir(parents=True)
    (target / "var/tmp").chmod(0o1777)
    (target / "var/run").symlink_to("/run")


def _copy_link(source: Path, target: Path) -> None:
    """A merged-/usr link as it is; an older host's real directory is not shown at all."""
    if source.is_symlink():
        target.symlink_to(source.readlink())


def explain_apt(layer: Path, host: Path = Path("/")) -> None:
    """Put the notice first on PATH, under the names of the host's own programs; `layer` has a virtual environment."""
    for name in ("apt", "apt-get"):
        if (host / "usr/bin" / name).exists():
            place = layer / "opt/venv/bin" / name
            place.write_text(APT_NOTICE, encoding="ascii")
            place.chmod(0o755)
    profile = layer / "etc/profile.d/k8e.sh"
    profile.parent.mkdir(parents=True)
    profile.write_text(LOGIN_PATH, encoding="ascii")


def copy_public(source: Path, target: Path) -> None:
    """Copy a file or directory, but only what anybody on the host may read anyway."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir()
        for entry in source.iterdir():
            copy_public(entry, target / entry.name)
    elif source.is_file() and source.stat().st_mode & 0o004:
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
