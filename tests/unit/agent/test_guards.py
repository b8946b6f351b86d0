"""Gated paths: whatever road leads there, a request without approval is refused before anything has changed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from k8e.wire.aio import Link, RemoteError
from tests.support.agents import execute, follow

pytestmark = pytest.mark.anyio

GATE = "/workspace/deploy/live"
ROOM = (
    "mkdir -p deploy/live other/sub; echo old > deploy/live/app; ln deploy/live/app other/twin; ln -s ../deploy other/link;"
    "ln -s /workspace/deploy/live other/abs; ln -s ../deploy/live/app other/file; ln -s /proc/1/root other/root;"
    "printf free > other/free"
)
ROADS = [
    "/workspace/deploy/live/app",
    "deploy/live/app",
    "deploy//live/./app",
    "//workspace/deploy/live/app",
    "other/../deploy/live/app",
    "deploy/live/new/deep/file",
    "other/link/live/app",
    "other/abs/app",
    "other/file",
    "other/root/workspace/deploy/live/app",
]


async def content(link: Link) -> bytes:
    """Everything that there is below the gate."""
    return (await execute(link, shell="cd deploy && find live -type f -exec cat {} + ; find live | sort")).stdout


async def written(link: Link, path: str, *, mode: str = "w", approved: list[str] | None = None) -> None:
    args = {"path": path, "mode": mode, "gates": [GATE], "approved": approved or []}
    stream = await link.open("file.write", args)
    await stream.send(0, b"new")
    await stream.finish(0)
    await follow(stream)


async def called(link: Link, op: str, args: Mapping[str, object], *, approved: list[str] | None = None) -> None:
    await link.call(op, {**args, "gates": [GATE], "approved": approved or []})


async def asked(link: Link, op: str, **paths: str) -> list[str]:
    found: list[str] = (await link.call("file.gated", {"op": op, "gates": [GATE], **paths}))["paths"]
    return found


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("road", ROADS)
async def test_no_road_leads_to_a_gated_file_without_approval(link: Link, road: str, mode: str) -> None:
    await execute(link, shell=ROOM)
    before = await content(link)
    with pytest.raises(RemoteError) as refusal:
        await written(link, road, mode=mode)
    assert refusal.value.code == "gated"
    assert refusal.value.message.startswith(GATE)
    assert await content(link) == before
    # What was refused is what a question would have been about, and with the answer it goes on.
    approved = await asked(link, "write", path=road)
    assert [path.startswith(refusal.value.message) for path in approved] == [True]
    await written(link, road, mode=mode, approved=approved)
    assert await content(link) != before


@pytest.mark.parametrize("path", ["other/free", "deploy/beside", "deploy/live2", "other/link/beside", "/tmp/elsewhere"])
async def test_what_is_not_gated_goes_on_as_ever(link: Link, path: str) -> None:
    await execute(link, shell=ROOM)
    for op, mode in (("write", "w"), ("append", "a")):
        assert await asked(link, op, path=path) == []
        await written(link, path, mode=mode)
    for op in ("mkdir", "remove"):
        assert await asked(link, op, path=path) == []
    await called(link, "file.move", {"source": path, "target": f"{path}-moved"})
    await called(link, "file.remove", {"path": f"{path}-moved"})


async def test_a_second_name_of_a_file_is_no_way_to_append_to_it(link: Link) -> None:
    await execute(link, shell=ROOM)
    before = await content(link)
    with pytest.raises(RemoteError) as refusal:
        await written(link, "other/twin", mode="a")
    assert refusal.value.code == "gated"
    assert await content(link) == before
    assert await asked(link, "append", path="other/twin") == ["/workspace/other/twin"]
    # A whole new file takes only this name; the gated one keeps its content.
    await execute(link, shell="cp other/free other/single")
    await written(link, "other/single", mode="a")
    assert await content(link) == before


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("file.mkdir", {"path": "deploy/live/new"}),
        ("file.mkdir", {"path": "other/link/live/new/deep"}),
        ("file.remove", {"path": "deploy/live/app"}),
        ("file.remove", {"path": "deploy/live", "recursive": True}),
        ("file.remove", {"path": "deploy", "recursive": True}),
        ("file.remove", {"path": "other/link/live/app"}),
        ("file.move", {"source": "deploy/live/app", "target": "other/app"}),
        ("file.move", {"source": "other/free", "target": "deploy/live/free"}),
        ("file.move", {"source": "other/free", "target": "other/abs/free"}),
        ("file.move", {"source": "deploy", "target": "gone"}),
        ("file.move", {"source": "deploy/live", "target": "gone"}),
    ],
)
async def test_a_gate_holds_for_every_change_and_for_what_takes_it_along(
    link: Link, op: str, args: dict[str, object]
) -> None:
    await execute(link, shell=ROOM)
    before = await content(link)
    with pytest.raises(RemoteError) as refusal:
        await called(link, op, args)
    assert refusal.value.code == "gated"
    assert await content(link) == before
    paths = {name: str(args[name]) for name in ("path", "source", "target") if name in args}
    approved = await asked(link, op.partition(".")[2], **paths)
    assert refusal.value.message in approved or op == "file.mkdir"
    await called(link, op, args, approved=approved)
    after = await execute(link, shell="cd deploy && find live -type f -exec cat {} + ; find live | sort")
    assert after.stdout != before


async def test_a_tree_that_is_moved_to_where_the_gate_would_be_is_a_change_of_it(link: Link) -> None:
    await execute(link, shell="mkdir -p tree/live; echo planted > tree/live/app")
    with pytest.raises(RemoteError) as refusal:
        await called(link, "file.move", {"source": "tree", "target": "deploy"})
    assert refusal.value.code == "gated"
    await called(link, "file.move", {"source": "tree", "target": "elsewhere"})


@pytest.mark.parametrize("link_to", ["deploy/live/app", "deploy/live"])
async def test_a_move_from_another_mount_goes_through_no_link(link: Link, link_to: str) -> None:
    """Between mounts it is a copy, and a copy by path would be written where a link leads."""
    outside = f"/dev/shm/k8e-{uuid.uuid4().hex}"  # the host's own, so another run of the tests is there as well
    await execute(link, shell=f"{ROOM}; echo evil > {outside}; ln -s {link_to} way")
    try:
        before = await content(link)
        await called(link, "file.move", {"source": outside, "target": "way"})
        assert await content(link) == before
        left = await execute(link, shell=f"test ! -L way && test ! -e {outside} && cat way; ls -A | grep -c k8e-tmp")
        assert left.stdout == b"evil\n0\n"
        with pytest.raises(RemoteError, match="only a file"):
            await called(link, "file.move", {"source": "other", "target": outside})
    finally:
        await execute(link, shell=f"rm -rf {outside}")


async def test_a_directory_that_is_there_needs_no_approval(link: Link) -> None:
    await execute(link, shell=ROOM)
    assert await asked(link, "mkdir", path="deploy/live") == []
    await called(link, "file.mkdir", {"path": "deploy/live"})


async def test_an_approval_is_for_one_place(link: Link) -> None:
    await execute(link, shell=ROOM)
    for other in ("deploy/live/app2", "deploy/live/../live/app2", "other/link/live/new"):
        with pytest.raises(RemoteError) as refusal:
            await written(link, other, approved=[f"{GATE}/app"])
        assert refusal.value.code == "gated"
    await written(link, "deploy/live/app", approved=[f"{GATE}/app"])


async def test_a_gate_that_is_a_link_holds_at_both_ends(link: Link) -> None:
    await execute(link, shell="mkdir -p real deploy; ln -s ../real deploy/live")
    for road in ("deploy/live/app", "real/app"):
        with pytest.raises(RemoteError) as refusal:
            await written(link, road)
        assert refusal.value.code == "gated"
    await written(link, "deploy/app")
