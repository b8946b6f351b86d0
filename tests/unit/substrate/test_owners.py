"""Which gateway holds which sandbox, where files are missing, damaged or cannot be read or written now."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from k8e.errors import Conflict
from k8e.model import SandboxId
from k8e.substrate.owners import SandboxOwners

SANDBOX = SandboxId("sb-1")


@contextmanager
def gateway(directory: Path, name: str, *, lease_s: float = 3600.0) -> Iterator[SandboxOwners]:
    owners = SandboxOwners(directory, name, lease_s=lease_s)
    try:
        yield owners
    finally:
        owners.close()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, (path.name for path in Path("/proc/self/fd").iterdir()))) + 2, hard)
    )
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_each_start_takes_its_own_back_at_the_next_epoch(tmp_path: Path) -> None:
    with gateway(tmp_path, "a") as first:
        made = first.make(SANDBOX)
        assert first.holds(SANDBOX, made.epoch)
    with gateway(tmp_path, "a") as again:
        taken = again.take(SANDBOX)
        assert taken is not None
        assert (taken.secret, taken.epoch) == (made.secret, made.epoch + 1)
        assert again.holds(SANDBOX, taken.epoch)
        assert not again.holds(SANDBOX, made.epoch)
        again.forget(SANDBOX)
        assert again.known() == frozenset()


def test_what_a_living_gateway_holds_is_not_to_be_had(tmp_path: Path) -> None:
    with gateway(tmp_path, "a", lease_s=0.0) as holder, gateway(tmp_path, "b", lease_s=0.0) as other:
        holder.make(SANDBOX)
        assert other.take(SANDBOX) is None
        assert not other.may_remove(SANDBOX)
        assert holder.may_remove(SANDBOX)


def test_a_lease_outlives_its_gateway_and_then_ends(tmp_path: Path) -> None:
    with gateway(tmp_path, "a") as holder:
        holder.make(SANDBOX)
    with gateway(tmp_path, "b") as patient:
        assert patient.take(SANDBOX) is None
        assert not patient.may_remove(SANDBOX)
    with gateway(tmp_path, "c", lease_s=0.0) as later:
        assert later.may_remove(SANDBOX)
        taken = later.take(SANDBOX)
        assert taken is not None
        assert taken.epoch == 2


def test_nobody_else_can_be_this_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.substrate.owners._LOCK_S", 0.02)
    with gateway(tmp_path, "a"), pytest.raises(Conflict, match="stop it first"):
        SandboxOwners(tmp_path, "a")
    with gateway(tmp_path, "a"):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"gateway": 1, "epoch": 1, "secret": ""}', '{"gateway": "a"}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    with gateway(tmp_path, "a") as owners:
        (tmp_path / "sandboxes" / SANDBOX).write_text(content)
        assert owners.take(SANDBOX) is None
        assert owners.may_remove(SANDBOX)
        with gateway(tmp_path, "b"):
            assert not owners.may_remove(SANDBOX), "whose it is cannot be known"


def test_what_cannot_be_read_now_is_no_answer(tmp_path: Path) -> None:
    with gateway(tmp_path, "a") as owners:
        made = owners.make(SANDBOX)
        with no_descriptor_left():
            for ask in (lambda: owners.holds(SANDBOX, made.epoch), lambda: owners.take(SANDBOX)):
                with pytest.raises(OSError, match="Too many open files"):
                    ask()
        assert owners.holds(SANDBOX, made.epoch), "the control"


def test_where_nothing_can_be_written_ours_are_still_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(tmp_path, "a") as first:
        made = first.make(SANDBOX)
    with gateway(tmp_path, "gone") as gone:
        gone.make(SandboxId("sb-2"))

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    with gateway(tmp_path, "a", lease_s=0.0) as again:
        monkeypatch.setattr("k8e.substrate.owners.whole.replace", full)
        assert again.take(SANDBOX) == made
        assert again.take(SandboxId("sb-2")) is None
        assert again.may_remove(SandboxId("sb-2")), "what a dead one has left can go all the same"


def test_what_a_writer_that_was_killed_left_goes_with_the_next_start(tmp_path: Path) -> None:
    with gateway(tmp_path, "a"):
        pass
    left = tmp_path / "sandboxes" / f".{SANDBOX}.0123456789ab.new"
    left.write_text("{")
    with gateway(tmp_path, "a") as owners:
        assert owners.known() == frozenset()
        assert not left.exists()
