"""Host ids are handed out once on the whole host, however many servers it has."""

from __future__ import annotations

from pathlib import Path

from k8e.substrate.local.blocks import WINDOW, Blocks


def _server(tmp_path: Path, name: str, used: set[int] | None = None) -> Blocks:
    data_dir = tmp_path / name
    data_dir.mkdir(exist_ok=True)
    return Blocks(data_dir, used or set(), claims=tmp_path / "claims")


def test_a_freed_block_is_used_again(tmp_path: Path) -> None:
    pool = _server(tmp_path, "one", {0, 2})
    assert [pool.take(), pool.take()] == [1, 3]
    pool.give_back(2)
    assert pool.take() == 2


def test_no_two_servers_share_a_block(tmp_path: Path) -> None:
    one, other = _server(tmp_path, "one"), _server(tmp_path, "other")
    taken = [pool.take() for pool in (one, other) for _ in range(WINDOW + 1)]
    assert len(set(taken)) == len(taken)


def test_the_next_server_of_a_directory_goes_on_with_its_claims(tmp_path: Path) -> None:
    first = _server(tmp_path, "one").take()
    _server(tmp_path, "other").take()
    assert _server(tmp_path, "one", {first}).take() == first + 1


def test_blocks_on_record_are_claimed_again_when_the_claims_are_gone(tmp_path: Path) -> None:
    survivor = _server(tmp_path, "one", {5})
    survivor.take()
    other = _server(tmp_path, "other")
    assert other.take() >= WINDOW


def test_the_claims_of_a_directory_that_is_gone_are_free(tmp_path: Path) -> None:
    first = _server(tmp_path, "one").take()
    assert _server(tmp_path, "other").take() != first, "the control: it is held while the directory exists"
    (tmp_path / "one").rmdir()
    assert _server(tmp_path, "third").take() == first
