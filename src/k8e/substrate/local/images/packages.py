"""What the `host` image has more where packages may be installed: dpkg's state, apt's configuration, a /usr to write to.

Two layers, made once and shared read-only; what a sandbox changes lies on its own disk. `fill_root` is a layer of the
root directory. `fill_usr` is one over the host's /usr: it hides what not everybody on the host may read, because the
host's root is the sandbox's root there.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from k8e.apt.configuration import AptConfiguration
from k8e.apt.sources import rendered
from k8e.substrate.local.images.host import WRITTEN, copy_public

__all__ = ["FORMAT", "USR", "closed", "fill_root", "fill_usr", "state_file"]

FORMAT = "1"
"""Part of the layers' digests; raise it when what is written here changes."""
USR = Path("/usr")

_DPKG = Path("var/lib/dpkg")
_STATE = ("status", "info", "alternatives", "diversions", "triggers", "arch")
"""Not `statoverride`: it names accounts of the host, and dpkg refuses to work without them."""
_EMPTY = (
    "var/lib/dpkg/updates", "var/lib/dpkg/parts", "var/lib/apt/lists/partial", "var/lib/apt/mirrors/partial",
    "var/cache/apt/archives/partial", "var/cache/debconf", "var/cache/ldconfig", "var/cache/man", "var/lib/ucf",
    "var/lib/misc", "var/lib/systemd", "var/log/apt", "var/mail", "var/spool", "var/backups", "var/local", "etc/apt/apt.conf.d",
    "etc/apt/auth.conf.d", "etc/apt/keyrings", "etc/apt/preferences.d", "etc/apt/sources.list.d", "etc/apt/trusted.gpg.d",
    "etc/default", "etc/dpkg/dpkg.cfg.d", "etc/init.d", "etc/logrotate.d", "etc/cron.d", "etc/cron.daily", "etc/profile.d",
    "etc/systemd/system", "etc/opt", "etc/pam.d",
)  # fmt: skip
_TOOLS = ("adduser.conf", "deluser.conf", "login.defs", "ucf.conf", "default/useradd", "dpkg/origins")
"""Configuration that programs of maintainer scripts do not work without; as the distribution has it on most hosts."""
_WRITTEN = {
    "etc/debconf.conf": (
        "Config: config\nTemplates: templates\n\n"
        "Name: config\nDriver: File\nMode: 600\nFilename: /var/cache/debconf/config.dat\n\n"
        "Name: templates\nDriver: File\nMode: 644\nFilename: /var/cache/debconf/templates.dat\n"
    ),
    "etc/pam.d/other": (
        "auth sufficient pam_rootok.so\nauth required pam_deny.so\naccount required pam_permit.so\n"
        "password required pam_deny.so\nsession required pam_permit.so\n"
    ),
    "etc/dpkg/dpkg.cfg": "",
    # A sandbox's disk does not outlive a crash of the machine, so nothing has to be safe from one.
    "etc/dpkg/dpkg.cfg.d/k8e": "force-unsafe-io\n",
    "var/lib/dpkg/statoverride": "",
    "var/lib/dpkg/available": "",
}
"""Files of our own: the host's may hold passwords or names of its own accounts."""
_ACCOUNTS = {"passwd": "usr/share/base-passwd/passwd.master", "group": "usr/share/base-passwd/group.master"}
"""The accounts that every Debian has, with fixed numbers; none of the host's own."""
_APT_CONF = {
    # The account that apt downloads as is not there, and a sandbox's root has no more power than it.
    "APT::Sandbox::User": "root",
    "Dpkg::Use-Pty": "0",
    "Acquire::Languages": "none",
    # A sandbox's resolver answers for hosts alone.
    "Acquire::EnableSrvRecords": "false",
}
_NO_SERVICES = (
    "#!/bin/sh\n# Nothing here starts services: a package's daemon is started by whoever wants it.\nexit 101\n"
)


def state_file(host: Path = Path("/")) -> Path:
    """Changes with every package of the host."""
    return host / _DPKG / "status"


def fill_root(target: Path, configuration: AptConfiguration, host: Path = Path("/")) -> None:
    """Write the layer of the root directory; it lies over that of `host.fill`."""
    for name in _EMPTY:
        (target / name).mkdir(parents=True, exist_ok=True)
    for name in _STATE:
        copy_public(host / _DPKG / name, target / _DPKG / name)
    copy_public(host / "var/lib/apt/extended_states", target / "var/lib/apt/extended_states")
    for name in _TOOLS:
        copy_public(host / "etc" / name, target / "etc" / name)
    for name, text in _WRITTEN.items():
        (target / name).write_text(text, encoding="ascii")
    for name, master in _ACCOUNTS.items():
        (target / "etc" / name).write_text(_accounts(WRITTEN[name], host / master), encoding="ascii")
    _write_configuration(target / "etc/apt", configuration)


def _accounts(own: str, master: Path) -> str:
    """The text of /etc/passwd or /etc/group: `own` and the distribution's accounts that it does not name."""
    try:
        given = master.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return own
    known = {line.partition(":")[0] for line in own.splitlines()}
    more = [line for line in given.splitlines() if line.count(":") >= 3 and line.partition(":")[0] not in known]
    return own + "".join(f"{line.replace(':*:', ':x:', 1)}\n" for line in more)


def fill_usr(target: Path, closed: Iterable[str], usr: Path = USR) -> None:
    """Write the layer over /usr that hides `closed`."""
    for name in closed:
        place = target / name
        _make_directory(place.parent, (usr / name).parent)
        # How overlayfs marks what is not to be seen in the layers below.
        os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))
    if not os.path.lexists(usr / "sbin/policy-rc.d"):
        (target / "sbin").mkdir(exist_ok=True)
        (target / "sbin/policy-rc.d").write_text(_NO_SERVICES, encoding="ascii")
        (target / "sbin/policy-rc.d").chmod(0o755)


def _make_directory(place: Path, like: Path) -> None:
    """As overlayfs shows the uppermost of several directories: with the mode of the host's."""
    if not place.is_dir():
        _make_directory(place.parent, like.parent)
        place.mkdir()
        shutil.copymode(like, place)


def closed(usr: Path = USR) -> list[str]:
    """What others on the host may not read, as far as its file system goes; nothing below a closed directory."""
    device = usr.stat().st_dev
    found: list[str] = []
    pending = [str(usr)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                try:
                    known = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed meanwhile
                    continue
                if known.st_dev != device or stat.S_ISLNK(known.st_mode):
                    continue
                is_directory = stat.S_ISDIR(known.st_mode)
                if not _is_open(known.st_mode, is_directory=is_directory):
                    found.append(os.path.relpath(entry.path, usr))
                elif is_directory:
                    pending.append(entry.path)
    return sorted(found)


def _is_open(mode: int, *, is_directory: bool) -> bool:
    wanted = 0o005 if is_directory else 0o004
    return mode & wanted == wanted


def _write_configuration(etc: Path, configuration: AptConfiguration) -> None:
    settings = {**configuration.settings, **_APT_CONF}
    lines = "".join(f'{name} "{value}";\n' for name, value in settings.items())
    (etc / "apt.conf.d/k8e").write_text(lines, encoding="ascii")
    (etc / "sources.list.d/k8e.sources").write_text(rendered(configuration.sources), encoding="ascii")
    for name, content in configuration.files.items():
        (etc / name).write_bytes(content)
