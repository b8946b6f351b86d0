"""What a host must be able to do, each tried for real, with a deadline, and without a trace.

Everything that mounts or makes a network does it in namespaces of its own, which vanish with the probe.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from k8e.errors import HostUnsupported
from k8e.setup import gvisor, node, packages
from k8e.setup.bundle import INSIDE, build
from k8e.setup.early import OLDEST_KERNEL, kernel_version, nearest
from k8e.setup.programs import finish
from k8e.setup.provision import bundles_dir, notes, tools_dir

__all__ = ["Check", "Probe", "probes"]

PROBE_TIMEOUT_S = 15.0
FREE_BYTES = 2 << 30
CONTROLLERS = ("cpu", "memory", "pids")
NOBODY = 65534
KVM_GET_API_VERSION = 0xAE00
MICROVMS = {"kata": ("kata-runtime", "containerd-shim-kata-v2"), "firecracker": ("firecracker", "jailer")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One answer; `fix` says what to do when it is not ok."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    is_optional: bool = False
    """Nothing that k8e does needs it: when it is not ok, that is no problem."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """More keys for programs that read the JSON."""


Probe = Callable[[], Check]


def _kernel() -> Check:
    release = os.uname().release
    ok = kernel_version(release) >= OLDEST_KERNEL
    fix = "boot Linux 5.19 or newer: overlays on id-mapped layers need it"
    return Check(name="kernel", ok=ok, detail=release, fix=fix)


def _root() -> Check:
    uid = os.geteuid()
    return Check(
        name="root", ok=uid == 0, detail=f"uid {uid}", fix="run the server as root: it mounts and makes namespaces"
    )


def _attempt(name: str, argv: Sequence[str], *, detail: str, fix: str) -> Check:
    """A command that must exit 0."""
    try:
        ended = finish(argv, timeout_s=PROBE_TIMEOUT_S)
    except OSError as error:
        return Check(name=name, ok=False, detail=f"{argv[0]}: {error.strerror}", fix=fix)
    if ended.code == 0:
        return Check(name=name, ok=True, detail=detail or ended.output.split("\n")[0], fix=fix)
    reason = "no end within the deadline" if ended.code is None else " ".join(ended.output.split())[-200:]
    return Check(name=name, ok=False, detail=reason or f"exit code {ended.code}", fix=fix)


def _user_namespaces() -> Check:
    fix = "allow them: sysctl user.max_user_namespaces=65536 (and kernel.unprivileged_userns_clone=1 without root)"
    argv = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "true"]
    return _attempt("user namespaces", argv, detail="can be made", fix=fix)


_OVERLAY = """
mount -t tmpfs k8e-doctor "$1" && cd "$1" && mkdir lower upper work merged && echo seen >lower/file &&
mount -t overlay k8e-doctor -o lowerdir=lower,upperdir=upper,workdir=work merged && grep -q seen merged/file
"""

_LOOP = """
truncate -s 16M "$1/disk" && mkfs.ext4 -q -F "$1/disk" && mkdir "$1/mnt" && mount -o loop "$1/disk" "$1/mnt" &&
touch "$1/mnt/file"
"""


_ROUTER = """
ip link set lo up && ip link add v type veth peer name w && nft -f - <<'END'
table inet k8e_doctor {
    chain c {
        type filter hook prerouting priority mangle;
        fib saddr . iif oif missing drop
        meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:1
    }
}
END
"""


def _as_root(name: str, probe: Probe) -> Check:
    """A probe that only root can run; anybody else learns just that."""
    if os.geteuid() == 0:
        return probe()
    return Check(name=name, ok=False, detail="cannot be tried without root", fix="run k8e doctor as root")


def _privately(name: str, script: str, *, detail: str, fix: str) -> Check:
    """A script with a scratch directory, in a mount namespace of its own."""
    with tempfile.TemporaryDirectory(prefix="k8e-doctor-") as scratch:
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", scratch]
        return _as_root(name, partial(_attempt, name, argv, detail=detail, fix=fix))


def _overlay() -> Check:
    return _privately("overlayfs", _OVERLAY, detail="mounts", fix="load it: modprobe overlay")


def _loop() -> Check:
    return _privately("loop devices", _LOOP, detail="an ext4 image mounts", fix="load them: modprobe loop")


def _network() -> Check:
    argv = ["unshare", "--net", "sh", "-c", _ROUTER]
    fix = "install nftables and iproute2; load them: modprobe -a veth nf_tables nft_fib_inet nft_tproxy"
    name = "network namespaces and nftables"
    return _as_root(name, partial(_attempt, name, argv, detail="a private ruleset loads", fix=fix))


def _cgroup_roots(mounts: str) -> dict[str, Path]:
    """Where each controller's hierarchy is mounted; the empty name is the unified one."""
    roots: dict[str, Path] = {}
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            roots[""] = Path(where)
        elif kind == "cgroup":
            roots |= {name: Path(where) for name in options.split(",") if name in CONTROLLERS}
    return roots


def _cgroups() -> Check:
    roots = _cgroup_roots(Path("/proc/self/mounts").read_text(encoding="utf-8"))
    unified = roots.get("")
    offered = set((unified / "cgroup.controllers").read_text(encoding="ascii").split()) if unified else set()
    lacking = [name for name in CONTROLLERS if name not in roots and name not in offered]
    layout = "v2" if not roots.keys() - {""} else "hybrid" if unified else "v1"
    detail = f"{layout}, lacking {', '.join(lacking)}" if lacking else f"{layout} with {', '.join(CONTROLLERS)}"
    return Check(name="cgroups", ok=not lacking, detail=detail, fix="enable the controllers (kernel command line)")


def _system_packages() -> Check:
    lacking = packages.missing()
    detail = "all there" if not lacking else "missing: " + " ".join(packages.names(lacking))
    return Check(name="packages", ok=not lacking, detail=detail, fix=packages.advice(lacking) if lacking else "")


def _runc() -> Check:
    return _attempt("runc", [packages.find("runc") or "runc", "--version"], detail="", fix="apt-get install runc")


def _util_linux() -> Check:
    """As `container` sandboxes start: other programs of these names may not know these flags."""
    user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    powers = ["--inh-caps", "+sys_admin", "--ambient-caps", "+sys_admin"]
    argv = ["prlimit", "--nofile=64:64", "--core=0:0", "--", "setpriv", *user, *powers, "--", "true"]
    fix = "apt-get install util-linux (the `container` runtime starts sandboxes with both)"
    name = "setpriv and prlimit"
    return _as_root(name, partial(_attempt, name, argv, detail="take the flags that they are given", fix=fix))


def _kvm() -> str:
    """What the kernel's virtual machines say to us."""
    try:
        descriptor = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return str(error.strerror)
    try:
        return f"works, API {fcntl.ioctl(descriptor, KVM_GET_API_VERSION)}"
    except OSError as error:
        return str(error.strerror)
    finally:
        os.close(descriptor)


def _microvm(name: str, programs: Sequence[str]) -> Check:
    """Why a runtime that is known by name is not there: what this version lacks, and what the host has."""
    found = "; ".join(f"{program}: {packages.find(program) or 'not found'}" for program in programs)
    return Check(
        name=name,
        ok=False,
        is_optional=True,
        detail=f"not built into this version, whatever the host has. Looked for: /dev/kvm: {_kvm()}; {found}",
        fix=f"use gvisor (the default). A version with {name} will need /dev/kvm (modprobe kvm_intel or kvm_amd; "
        f"in a virtual machine, nested virtualisation) and {' and '.join(programs)} on PATH",
    )


def _runsc(data_dir: Path) -> Check:
    fix = "k8e doctor --fix (finds, fetches or builds it)"
    chosen = gvisor.recorded(tools_dir(data_dir))
    if chosen is None:
        return Check(name="gvisor", ok=False, detail=notes(data_dir).get("gvisor", "not set up yet"), fix=fix)
    trouble = gvisor.probe(Path(chosen.path))
    detail = trouble or f"{chosen.version}, {chosen.origin}: {chosen.path}"
    facts = {"version": chosen.version, "origin": chosen.origin, "path": chosen.path}
    return Check(name="gvisor", ok=not trouble, detail=detail, fix=fix, facts=facts)


def _typescript(data_dir: Path) -> Check:
    home = node.installed(tools_dir(data_dir))
    fix = "apt-get install nodejs npm, then k8e doctor --fix"
    if home is None:
        return Check(name="typescript", ok=False, detail=notes(data_dir).get("node", "tsx is not set up"), fix=fix)
    return _attempt("typescript", [str(home / "bin/tsx"), "--version"], detail="", fix=fix)


def _agent_python(data_dir: Path) -> Check:
    fix = "install Debian's python3; then k8e doctor --fix"
    try:
        bundle = build(bundles_dir(data_dir))
    except (HostUnsupported, OSError) as error:
        return Check(name="agent bundle", ok=False, detail=str(error), fix=fix)
    # The same command that a sandbox gets, with the bundle's place on the host, and a harmless program.
    interpreter = [part.replace(INSIDE, str(bundle.path), 1) for part in bundle.argv[:4]]
    argv = [*interpreter, "-I", "-S", "-c", "import json, select, socket, ctypes"]
    return _attempt("agent bundle", argv, detail=str(bundle.path), fix=fix)


def _disk(data_dir: Path) -> Check:
    place = nearest(data_dir)
    free = shutil.disk_usage(place).free
    detail = f"{free / (1 << 30):.1f} GiB free in {place}"
    return Check(name="disk space", ok=free >= FREE_BYTES, detail=detail, fix="free some, or choose another --data-dir")


def probes(data_dir: Path) -> tuple[Probe, ...]:
    """Every probe of this host, cheap ones first."""
    plain = (
        _kernel,
        _root,
        _system_packages,
        _cgroups,
        _user_namespaces,
        _overlay,
        _loop,
        _network,
        _runc,
        _util_linux,
    )
    of_data = (_disk, _agent_python, _runsc, _typescript)
    microvms = (partial(_microvm, name, programs) for name, programs in MICROVMS.items())
    return (*plain, *(partial(probe, data_dir) for probe in of_data), *microvms)
