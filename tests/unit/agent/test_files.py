"""Files: any name, any bytes, any size, atomic where they replace, confined where a root is given."""

from __future__ import annotations

import asyncio
import os

import pytest

from k8e.wire.aio import Data, Event, Link, RemoteError, Stream
from tests.support.agents import execute, follow

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
ODD_NAMES = [
    "plain",
    "with space",
    "100%",
    "#hash",
    "new\nline",
    "quote'\"",
    "-dash",
    "ünïcode",
    "bad\udcff\udc80",
    "\\back",
]


async def read(link: Link, path: str, **more: object) -> bytes:
    return (await follow(await link.open("file.read", {"path": path, **more}))).stdout


async def write(link: Link, path: str, data: bytes, **more: object) -> int:
    stream = await link.open("file.write", {"path": path, "mode": "w", **more})
    await stream.send(0, data)
    await stream.finish(0)
    events = (await follow(stream)).events
    size: int = next(event.fields["size"] for event in events if event.name == "written")
    return size


async def listing(link: Link, path: str, **more: object) -> list[dict[str, object]]:
    events = (await follow(await link.open("file.list", {"path": path, **more}))).events
    return [entry for event in events if event.name == "entries" for entry in event.fields["entries"]]


async def refused(link: Link, op: str, **args: object) -> str:
    with pytest.raises(RemoteError) as refusal:
        await link.call(op, args)
    return refusal.value.code


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_any_name_can_be_written_listed_read_moved_and_removed(link: Link, name: str) -> None:
    content = os.urandom(1000)
    assert await write(link, f"/workspace/d/{name}", content) == 1000
    assert [entry["path"] for entry in await listing(link, "/workspace/d")] == [f"/workspace/d/{name}"]
    assert await read(link, f"d/{name}") == content
    await link.call("file.move", {"source": f"d/{name}", "target": f"d/{name}2"})
    entry = await link.call("file.stat", {"path": f"d/{name}2"})
    assert (entry["kind"], entry["size"]) == ("file", 1000)
    await link.call("file.remove", {"path": "d", "recursive": True})
    assert await refused(link, "file.stat", path="d") == "not_found"


async def test_a_large_file_goes_both_ways_unchanged(link: Link) -> None:
    content = os.urandom(20_000_000)
    await write(link, "big", content)
    assert await read(link, "big") == content
    assert await read(link, "big", offset=19_999_990) == content[-10:]
    assert await read(link, "big", offset=5, length=7) == content[5:12]


async def test_append_adds_and_write_replaces_keeping_the_mode(link: Link) -> None:
    await write(link, "f", b"one", perm=0o750)
    await write(link, "f", b"two", mode="a")
    assert await read(link, "f") == b"onetwo"
    await write(link, "f", b"new")
    assert await read(link, "f") == b"new"
    assert (await link.call("file.stat", {"path": "f"}))["mode"] == 0o750


async def test_a_write_through_a_link_changes_what_it_points_to(link: Link) -> None:
    await execute(link, shell="echo old > target; ln -s target l")
    await write(link, "l", b"new")
    assert (await link.call("file.stat", {"path": "l", "follow": False}))["kind"] == "symlink"
    assert await read(link, "target") == b"new"


async def test_an_unfinished_write_leaves_the_old_file_and_no_rest(link: Link) -> None:
    await write(link, "f", b"old")
    stream = await link.open("file.write", {"path": "f", "mode": "w"})
    await stream.send(0, b"half")
    await stream.cancel()
    assert await read(link, "f") == b"old"
    assert [entry["path"] for entry in await listing(link, "/workspace")] == ["/workspace/f"]


async def test_a_huge_directory_is_listed_completely(link: Link) -> None:
    await execute(link, shell="mkdir many; cd many; seq 5000 | xargs touch; mkdir sub; touch sub/deep; ln -s x sub/l")
    entries = await listing(link, "many", recursive=True)
    assert len(entries) == 5003
    assert {e["path"]: e["target"] for e in entries}["/workspace/many/sub/l"] == "x"


async def test_a_listing_goes_on_after_any_of_its_entries(link: Link) -> None:
    await execute(link, shell="mkdir -p t/a/x t/a.b t/ab; touch t/a/1 t/a/x/2 t/a.b/3 t/ab/4 t/z")
    whole = [str(entry["path"]) for entry in await listing(link, "t", recursive=True)]
    assert len(whole) == 9
    for number, path in enumerate(whole, start=1):
        rest = await listing(link, "t", recursive=True, after=path)
        assert [entry["path"] for entry in rest] == whole[number:]
    await execute(link, shell="rm -r t/a/x")
    gone = "/workspace/t/a/x/2"
    left = [entry["path"] for entry in await listing(link, "t", recursive=True, after=gone)]
    assert left == whole[whole.index(gone) + 1 :]
    flat = [str(entry["path"]) for entry in await listing(link, "t")]
    assert [entry["path"] for entry in await listing(link, "t", after=flat[1])] == flat[2:]


async def test_a_listing_does_not_go_on_with_another_directorys(link: Link) -> None:
    await execute(link, shell="mkdir t; touch t/a")
    for after in ("/workspace/tt/a", "t/a", "/workspace"):
        with pytest.raises(RemoteError) as refusal:
            await listing(link, "t", after=after)
        assert refusal.value.code == "invalid"
    assert await listing(link, "t", after="/workspace/t/") == await listing(link, "t")


@pytest.mark.parametrize(
    ("op", "args", "code"),
    [
        ("file.read", {"path": "/no/such"}, "not_found"),
        ("file.read", {"path": "/etc"}, "conflict"),
        ("file.read", {"path": "fifo"}, "invalid"),
        ("file.write", {"path": "/etc", "mode": "w"}, "conflict"),
        ("file.write", {"path": "/proc/x", "mode": "w"}, "not_found"),
        ("file.list", {"path": "/no/such"}, "not_found"),
        ("file.mkdir", {"path": "full/x", "parents": False}, "not_found"),
        ("file.remove", {"path": "dir", "recursive": False}, "conflict"),
        ("file.remove", {"path": "/"}, "invalid"),
        ("file.move", {"source": "nothing", "target": "x"}, "not_found"),
        ("file.watch", {"path": "nothing"}, "not_found"),
    ],
)
async def test_a_failure_names_its_kind(link: Link, op: str, args: dict[str, object], code: str) -> None:
    await execute(link, shell="mkfifo fifo; mkdir dir; touch dir/x")
    assert await refused(link, op, **args) == code


@pytest.mark.parametrize(
    ("path", "is_inside"),
    [
        ("inside", True),
        ("/workspace/jail/inside", True),
        ("sub/../inside", True),
        ("good-link", True),
        ("absolute-good-link", True),
        ("../secret", False),
        ("/workspace/secret", False),
        ("sub/../../secret", False),
        ("bad-link", False),
        ("bad-directory/secret", False),
        ("absolute-bad-link", False),
        ("loop", False),
    ],
)
async def test_a_root_confines(link: Link, path: str, is_inside: bool) -> None:
    await execute(
        link,
        shell="mkdir -p jail/sub; cd jail; printf secret > ../secret; printf inside > inside; ln -s inside good-link;"
        "ln -s /workspace/jail/inside absolute-good-link; ln -s ../secret bad-link; ln -s .. bad-directory;"
        "ln -s /workspace/secret absolute-bad-link; ln -s loop loop",
    )
    if is_inside:
        assert await read(link, path, root="/workspace/jail") == b"inside"
        await write(link, path, b"inside", root="/workspace/jail")
    else:
        for op, more in (("file.read", {}), ("file.write", {"mode": "w"}), ("file.stat", {})):
            assert await refused(link, op, path=path, root="/workspace/jail", **more) in ("invalid", "io")
    assert await read(link, "secret") == b"secret"


async def next_change(stream: Stream, kind: str, path: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            item = await stream.receive()
            assert not isinstance(item, Data)
            assert item is not None
            if isinstance(item, Event) and item.fields.get("kind") == kind and item.fields.get("path") == path:
                return


async def test_changes_are_seen_also_in_new_directories(link: Link) -> None:
    stream = await link.open("file.watch", {"path": "/workspace", "recursive": True})
    assert isinstance(await stream.receive(), Event)
    await execute(link, shell="mkdir -p new/deep; echo x > new/deep/file")
    await next_change(stream, "create", "/workspace/new")
    await next_change(stream, "create", "/workspace/new/deep/file")
    await execute(link, shell="chmod 600 new/deep/file; rm new/deep/file")
    await next_change(stream, "remove", "/workspace/new/deep/file")
    await stream.cancel()
