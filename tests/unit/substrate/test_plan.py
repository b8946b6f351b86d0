"""What a sandbox may see and do, decided without touching the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k8e.model import MIB
from k8e.substrate.local import blocks, plan
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import Agent, Bind, Boot, Image, Isolation
from k8e.substrate.local.runtimes import seccomp

ROOT = Path("/data/sandboxes/one")


def _spec(isolation: Isolation | None = None, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "paths": SandboxPaths(ROOT),
        "image": Image(digest="d", layers=(), binds=(Bind(source=Path("/usr"), target="/usr"),)),
        "agent": Agent(bundle=Path("/bundle"), argv=("agent",), env={"A": "b"}),
        "block": 3,
        "cgroup": "/k8e/one/agent",
        "max_open_files": 1000,
    }
    return plan.oci_spec(Boot(**{**fields, **changes}), isolation or Isolation())


def _mounts(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["destination"]: entry for entry in spec["mounts"]}


def test_every_bind_is_nosuid_and_nodev() -> None:
    binds = [entry for entry in _spec()["mounts"] if entry["type"] == "bind"]
    assert binds
    assert all({"nosuid", "nodev"} <= set(entry["options"]) for entry in binds)


def test_only_the_sandboxs_own_places_are_writable() -> None:
    writable = {name for name, entry in _mounts(_spec()).items() if "rw" in entry.get("options", [])}
    assert writable == {"/.k8e-run", "/.k8e-mnt", "/workspace", "/tmp"}
    sources = {entry["source"] for name, entry in _mounts(_spec()).items() if name in writable}
    assert all(Path(source).is_relative_to(ROOT) for source in sources)


def test_a_usr_of_its_own_is_writable_and_never_the_hosts() -> None:
    spec = _spec(image=Image(digest="d", layers=(), usr=(Path("/layer"), Path("/usr"))))
    entry = _mounts(spec)["/usr"]
    assert Path(entry["source"]).is_relative_to(ROOT)
    assert {"rw", "nosuid", "nodev"} <= set(entry["options"])


def test_only_places_for_live_mounts_are_recursive() -> None:
    recursive = {name for name, entry in _mounts(_spec()).items() if "rbind" in entry.get("options", [])}
    assert recursive == {"/.k8e-mnt", "/workspace"}


def test_options_of_the_sources_mount_are_repeated() -> None:
    spec = _spec(locked=lambda path: ("noexec", "nodev") if path == Path("/bundle") else ())
    options = _mounts(spec)["/.k8e"]["options"]
    assert "noexec" in options
    assert options.count("nodev") == 1


def test_root_inside_is_the_first_id_of_the_block() -> None:
    linux = _spec()["linux"]
    expected = [{"containerID": 0, "hostID": blocks.base_id(3), "size": blocks.BLOCK_SIZE}]
    assert linux["uidMappings"] == linux["gidMappings"] == expected


def test_no_block_reaches_another_or_the_hosts_own_ids() -> None:
    first, second = blocks.sandbox_map(0)[0], blocks.sandbox_map(1)[0]
    assert first.outside >= 1_000_000_000
    assert first.outside + first.count <= second.outside


def test_processes_never_live_under_the_map_that_holds_host_root() -> None:
    assert any(extent.outside == 0 for extent in blocks.disk_map(0)), "the disk's map does hold it"
    assert all(extent.outside != 0 for extent in blocks.sandbox_map(0))


@pytest.mark.parametrize(
    "capability", ["CAP_SYS_ADMIN", "CAP_NET_RAW", "CAP_MKNOD", "CAP_SYS_PTRACE", "CAP_SYS_MODULE"]
)
def test_dangerous_capabilities_are_not_given(capability: str) -> None:
    assert "CAP_CHOWN" in _spec()["process"]["capabilities"]["bounding"], "the control"
    assert capability not in _spec()["process"]["capabilities"]["bounding"]


def test_new_privileges_and_core_dumps_are_off() -> None:
    process = _spec()["process"]
    assert process["noNewPrivileges"] is True
    assert {"type": "RLIMIT_CORE", "hard": 0, "soft": 0} in process["rlimits"]


def test_open_files_never_exceed_what_the_server_may_grant() -> None:
    limits = {limit["type"]: limit["hard"] for limit in _spec(max_open_files=1 << 20)["process"]["rlimits"]}
    assert limits["RLIMIT_NOFILE"] == 65_536
    assert {"type": "RLIMIT_NOFILE", "hard": 1000, "soft": 1000} in _spec()["process"]["rlimits"]


def test_gvisor_is_told_which_mounts_change_under_its_feet() -> None:
    hints = _spec(Isolation(gofer_hints=True))["annotations"]
    sources = {value for key, value in hints.items() if key.endswith(".source")}
    assert sources == {str(ROOT / "mnt"), str(ROOT / "ws")}
    assert _spec()["annotations"] == {}


def test_the_commands_door_is_shown_only_where_there_is_one() -> None:
    assert "/.k8e-cgroup" not in _mounts(_spec())
    assert "/.k8e-cgroup" in _mounts(_spec(Isolation(door=Path("/sys/fs/cgroup/x/cgroup.procs"))))


def test_memory_leaves_room_for_the_isolation_itself() -> None:
    memory = plan.memory_plan(64 * MIB, 128 * MIB)
    assert memory.limit_bytes == 192 * MIB
    assert memory.visible_bytes == 128 * MIB


@pytest.mark.parametrize(
    "name",
    [
        *(
            "mount",
            "move_mount",
            "bpf",
            "keyctl",
            "add_key",
            "io_uring_setup",
            "userfaultfd",
            "perf_event_open",
            "setns",
        ),
        *(
            "unshare",
            "open_by_handle_at",
            "init_module",
            "kexec_load",
            "process_vm_readv",
            "pidfd_getfd",
            "clock_settime",
        ),
    ],
)
def test_calls_that_carry_escapes_are_not_allowed(name: str) -> None:
    allowed = {call for rule in seccomp.profile("x86_64")["syscalls"] for call in rule["names"]}
    assert "read" in allowed, "the control"
    assert name not in allowed


def test_a_call_that_is_not_named_fails() -> None:
    assert seccomp.profile("x86_64")["defaultAction"] == "SCMP_ACT_ERRNO"
