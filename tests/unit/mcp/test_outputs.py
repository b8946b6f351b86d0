"""Answers that would be too long for a model: what of them is shown, and how the rest is read."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents

from k8e.client import AsyncSandboxClient, Gates
from k8e.mcp import outputs, scope
from k8e.mcp.bounds import DEFAULT_CHARS
from tests.support.door import OpenDoor, open_door
from tests.support.mcp_calls import called, fields, text
from tests.support.mcp_wire import agent, wire
from tests.support.session_python import python_that

pytestmark = pytest.mark.anyio

AROUND = 800
"""What an answer has beside output: exit code, session, note."""
NUMBERS = "".join(f"{number}\n" for number in range(1, 20_001))


@pytest.fixture(params=["legacy", "2026-07-28"])
async def client(door: OpenDoor, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with agent(door.target, mode=request.param) as client:
        yield client


@pytest.fixture
async def one(door: OpenDoor) -> AsyncIterator[Client]:
    """Where the revision makes no difference."""
    async with agent(door.target) as client:
        yield client


def link_of(result: CallToolResult) -> ResourceLink:
    (link,) = [each for each in result.content if isinstance(each, ResourceLink)]
    return link


def texts(result: CallToolResult) -> str:
    return "".join(each.text for each in result.content if isinstance(each, TextContent))


def left_out(note: str) -> tuple[int, int, int]:
    found = re.search(r"bytes (\d+) to (\d+) of (\d+) are left out", note)
    assert found is not None, note
    return int(found[1]), int(found[2]), int(found[3])


RUNNING = {
    "sandbox_run": ("stdout", {"code": "seq 20000"}),
    "sandbox_exec": ("stdout", {"command": "seq 20000"}),
    "sandbox_exec_stream": ("output", {"command": "seq 20000"}),
}


@pytest.mark.parametrize("tool", RUNNING)
async def test_long_output_is_shown_by_its_beginning_and_its_end(client: Client, tool: str) -> None:
    name, arguments = RUNNING[tool]
    result = await called(client, tool, **arguments)
    found = dict(result.structured_content)
    assert len(texts(result)) <= DEFAULT_CHARS + AROUND
    assert len(json.dumps(found, ensure_ascii=False)) <= DEFAULT_CHARS + AROUND
    assert found["truncated"] is True
    begin, end, total = left_out(found["note"])
    assert total == len(NUMBERS)
    head, gap, tail = found[name].partition(f"\n[… {end - begin} of {total} bytes are left out here …]\n")
    assert gap
    assert (head, tail) == (NUMBERS[:begin], NUMBERS[end:])


@pytest.mark.parametrize("tool", RUNNING)
async def test_the_rest_is_read_page_by_page_from_the_link(client: Client, tool: str) -> None:
    _, arguments = RUNNING[tool]
    result = await called(client, tool, **arguments)
    link = link_of(result)
    begin, _, total = left_out(str(dict(result.structured_content)["note"]))
    assert link.size == total
    read, uri, pages = NUMBERS[:begin], link.uri, 0
    while uri:
        page, *following = (await client.read_resource(uri)).contents
        assert isinstance(page, TextResourceContents)
        assert len(page.text) <= DEFAULT_CHARS
        read, uri, pages = read + page.text, following[0].uri if following else "", pages + 1
    assert (read, pages) == (NUMBERS, 4)
    bare = link.uri.partition("?")[0]
    first, second = (await client.read_resource(bare)).contents
    assert isinstance(first, TextResourceContents)
    assert (first.text, second.uri) == (NUMBERS[:DEFAULT_CHARS], f"{bare}?offset=25000&length=25000")


async def test_the_rest_is_read_with_the_tool_that_the_note_names(client: Client) -> None:
    found = await fields(client, "sandbox_run", code="seq 20000")
    read, _, _ = left_out(found["note"])
    whole = NUMBERS[:read]
    while read < len(NUMBERS):
        result = await called(client, "sandbox_read_file", path=found["stdout_file"], offset=read)
        assert len(texts(result)) <= DEFAULT_CHARS + AROUND
        whole += text(result)
        read = len(whole)
    assert whole == NUMBERS


async def test_output_that_just_fits_is_not_cut_and_kept_nowhere(one: Client, door: OpenDoor) -> None:
    found = await fields(one, "sandbox_run", code=f"head -c {DEFAULT_CHARS} /dev/zero | tr '\\0' x")
    assert found["stdout"] == "x" * DEFAULT_CHARS
    assert not {"truncated", "note", "stdout_file"} & set(found)
    assert not list(kept_files(door))
    longer = await fields(one, "sandbox_run", code=f"head -c {DEFAULT_CHARS + 1} /dev/zero | tr '\\0' x")
    assert longer["truncated"] is True
    assert [path.read_bytes() for path in kept_files(door)] == [b"x" * (DEFAULT_CHARS + 1)]


def kept_files(door: OpenDoor) -> list[Path]:
    """In the sandboxes of all sessions."""
    sandboxes = [view.sandbox for view in door.engine.list_sessions(None) if view.sandbox is not None]
    return sorted(path for each in sandboxes for path in door.machine.root(each).glob("tmp/k8e-output/*"))


@pytest.mark.parametrize(
    "code",
    [
        "head -c 100000 /dev/zero",
        r"yes \"\\ | head -c 100000",
        r"head -c 100000 /dev/zero | tr '\0' '\033'",
        r"head -c 100000 /dev/zero | tr '\0' '\377'",
        "yes 中😀 | head -c 100000; yes ä | head -c 100000 >&2",
    ],
)
async def test_whatever_is_printed_an_answer_has_no_more_characters(one: Client, code: str) -> None:
    result = await called(one, "sandbox_run", code=code)
    assert len(text(result)) <= DEFAULT_CHARS + 2 * AROUND
    found = dict(result.structured_content)
    assert json.loads(text(result)) == found
    assert len(json.dumps(found, ensure_ascii=False)) <= DEFAULT_CHARS + 2 * AROUND
    assert found["truncated"] is True


async def test_two_long_streams_share_the_room_and_each_is_kept(one: Client, door: OpenDoor) -> None:
    found = await fields(one, "sandbox_exec", command="seq 20000; seq 20000 >&2")
    assert abs(len(found["stdout"]) - len(found["stderr"])) < AROUND
    assert [path.read_text() for path in kept_files(door)] == [NUMBERS, NUMBERS]
    short = await fields(one, "sandbox_exec", command="seq 20000; echo why >&2")
    assert short["stderr"] == "why\n"
    assert len(short["stdout"]) > 2 * len(found["stdout"]) - AROUND


async def test_exact_bytes_count_too_and_the_rest_of_them_is_kept(one: Client, door: OpenDoor) -> None:
    result = await called(one, "sandbox_exec", command="seq 20000", binary=True)
    assert len(text(result)) <= DEFAULT_CHARS + AROUND
    found = dict(result.structured_content)
    exact = base64.b64decode(found["stdout_base64"])
    assert NUMBERS.encode().startswith(exact)
    assert f"stdout_base64 has the first {len(exact)} of {len(NUMBERS)} bytes" in found["note"]
    assert [path.read_text() for path in kept_files(door)] == [NUMBERS]
    small = await fields(one, "sandbox_exec", command=r"printf '\377\000'", binary=True)
    assert (base64.b64decode(small["stdout_base64"]), "truncated" in small) == (b"\xff\x00", False)


async def test_megabytes_are_shown_to_their_true_end_and_kept_as_far_as_there_is_room(
    one: Client, door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await fields(one, "sandbox_run", code="seq 500000")
    assert found["stdout"].endswith("\n499999\n500000\n")
    (kept,) = kept_files(door)
    assert kept.read_text().endswith("\n500000\n")
    monkeypatch.setattr(outputs, "KEPT_BYTES", 1_000_000)
    longer = await fields(one, "sandbox_run", code="seq 500000")
    assert longer["stdout"].endswith("\n500000\n")
    assert "The first 1000000 bytes are in" in longer["note"]
    assert sorted(path.stat().st_size for path in kept_files(door)) == [1_000_000, kept.stat().st_size]


async def test_a_call_may_ask_for_more_up_to_what_the_operator_allows(tmp_path: Path) -> None:
    async with open_door(tmp_path, max_mcp_chars=60_000) as door, agent(door.target) as client:
        found = await fields(client, "sandbox_run", code="seq 10000", max_chars=60_000)
        assert found["stdout"] == "".join(f"{number}\n" for number in range(1, 10_001))
        refused = await called(client, "sandbox_run", code="seq 10000; touch ran", max_chars=60_001)
        assert refused.is_error
        assert "max_chars: this server allows 60000 at most" in text(refused)
        assert "max_mcp_chars" in text(refused)
        assert not list(tmp_path.rglob("ran"))
        less = await fields(client, "sandbox_run", code="seq 10000", max_chars=2_000)
        assert len(json.dumps(less)) < 2_000 + AROUND


@pytest.mark.parametrize("wanted", [0, -1, -(10**30), 999, 1.5, "25000", True, 10**30, 1e300])
@pytest.mark.parametrize("tool", ["sandbox_run", "sandbox_exec_stream", "sandbox_read_file", "sandbox_list_files"])
async def test_a_bound_that_is_none_is_refused_before_anything_is_done(
    one: Client, tmp_path: Path, tool: str, wanted: object
) -> None:
    given = {
        "sandbox_run": {"code": "touch ran"},
        "sandbox_exec_stream": {"command": "touch ran"},
        "sandbox_read_file": {"path": "x"},
        "sandbox_list_files": {},
    }
    refused = await called(one, tool, **given[tool], max_chars=wanted)
    assert refused.is_error
    assert text(refused).startswith("max_chars: ")
    assert not list(tmp_path.rglob("ran"))


async def test_a_link_is_the_owner_s_alone(door: OpenDoor, one: Client) -> None:
    """The control is the owner, who reads it."""
    link = link_of(await called(one, "sandbox_run", code="seq 20000"))
    _, key = door.keys.create("stranger")
    async with agent(dataclasses.replace(door.target, api_key=key)) as stranger:
        with pytest.raises(MCPError, match="not found"):
            await stranger.read_resource(link.uri)
        session_id, path = re.fullmatch(r"k8e://([^/]+)(/[^?]+)\?.*", link.uri).groups()  # type: ignore[union-attr]
        refused = await called(stranger, "sandbox_read_file", session_id=session_id, path=path)
        assert refused.is_error
        assert "not found" in text(refused)
    assert (await one.read_resource(link.uri)).contents


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_a_revision_without_links_gets_the_words_alone(door: OpenDoor, revision: str) -> None:
    async with wire(door.target) as lines:
        await lines.begin(revision)
        found = await lines.tool("sandbox_run", code="seq 20000")
    kinds = [each["type"] for each in found["content"]]
    assert kinds == (["text", "resource_link"] if revision == "2025-06-18" else ["text"])
    assert "read on with sandbox_read_file" in found["structuredContent"]["note"]


@pytest.mark.parametrize(
    "query",
    ["?", "?offset", "?offset=", "?offset=-1", "?offset=1e3", "?offset=٣", "?length=x", "?a=1", f"?offset={'9' * 30}"],
)
async def test_a_part_that_is_none_is_no_resource(one: Client, query: str) -> None:
    session_id = (await fields(one, "sandbox_run", code="echo hi > f"))["session_id"]
    with pytest.raises(MCPError, match="is not a resource here"):
        await one.read_resource(f"k8e://{session_id}/workspace/f{query}")
    assert (await one.read_resource(f"k8e://{session_id}/workspace/f?offset=1")).contents


@pytest.mark.parametrize("path", ["/tmp/other", "/tmp/k8e-output/../other", "/tmp/k8e-output", "/etc/passwd"])
async def test_of_the_rest_of_a_sandbox_only_kept_output_is_a_resource(one: Client, path: str) -> None:
    session_id = (await fields(one, "sandbox_run", code="true"))["session_id"]
    with pytest.raises(MCPError, match="is not a resource here"):
        await one.read_resource(f"k8e://{session_id}{path}?offset=0")


@pytest.mark.parametrize("length", [1, 4, 5, 7, 1000])
async def test_parts_of_any_length_make_the_whole_and_cut_no_character(one: Client, length: int) -> None:
    whole = "aä中😀" * 30
    await fields(one, "sandbox_write_file", path="f", content=whole)
    session_id = (await fields(one, "sandbox_status"))["session_id"]
    read, uri = "", f"k8e://{session_id}/workspace/f?length={length}"
    while uri:
        page, *following = (await one.read_resource(uri)).contents
        assert isinstance(page, TextResourceContents)
        assert page.text
        read, uri = read + page.text, following[0].uri if following else ""
    assert read == whole
    read, offset = "", 0
    while offset < len(whole.encode()):
        page_text = text(await called(one, "sandbox_read_file", path="f", offset=offset, length=length))
        assert page_text
        read += page_text
        offset = len(read.encode())
    assert read == whole


async def test_an_offset_behind_the_end_is_empty(one: Client) -> None:
    session_id = (await fields(one, "sandbox_run", code="echo hi > f"))["session_id"]
    (page,) = (await one.read_resource(f"k8e://{session_id}/workspace/f?offset=1000000000000")).contents
    assert isinstance(page, TextResourceContents)
    assert page.text == ""
    assert text(await called(one, "sandbox_read_file", path="f", offset=2**53)) == ""
    refused = await called(one, "sandbox_read_file", path="f", offset=2**70)
    assert text(refused).startswith("offset: must be 0 to")


async def test_a_long_file_is_shown_by_its_beginning_and_its_end(client: Client) -> None:
    await fields(client, "sandbox_write_file", path="long.txt", content=NUMBERS)
    result = await called(client, "sandbox_read_file", path="long.txt")
    assert len(texts(result)) <= DEFAULT_CHARS + AROUND
    assert text(result).startswith("1\n2\n3\n")
    assert text(result).endswith("\n19999\n20000\n")
    offset = int(re.search(r"read again with offset (\d+)\]", texts(result))[1])  # type: ignore[index]
    assert NUMBERS.startswith(text(result)[:offset])
    page, *_ = (await client.read_resource(link_of(result).uri)).contents
    assert isinstance(page, TextResourceContents)
    assert NUMBERS[offset:].startswith(page.text)
    exact = "x" * DEFAULT_CHARS
    await fields(client, "sandbox_write_file", path="fits.txt", content=exact)
    assert [each.text for each in (await called(client, "sandbox_read_file", path="fits.txt")).content] == [exact]  # type: ignore[union-attr]


async def test_bytes_that_are_too_many_for_an_answer_are_linked_and_come_in_parts(client: Client) -> None:
    data = bytes(range(256)) * 200
    coded = base64.b64encode(data).decode()
    await fields(client, "sandbox_write_file", path="b.bin", content=coded, encoding="base64")
    result = await called(client, "sandbox_read_file", path="b.bin")
    assert "read it in parts" in text(result)
    assert link_of(result).size == len(data)
    read = b""
    while len(read) < len(data):
        part = (await called(client, "sandbox_read_file", path="b.bin", offset=len(read))).content[0]
        assert isinstance(part, EmbeddedResource)
        blob = part.resource.blob  # type: ignore[union-attr]
        assert len(blob) <= DEFAULT_CHARS
        read += base64.b64decode(blob)
    assert read == data


async def test_a_list_of_many_files_comes_in_parts(client: Client) -> None:
    code = "for n in $(seq 1000 1999); do : > f$n-with-a-name-that-is-rather-long; done"
    await fields(client, "sandbox_run", code=code)
    seen, after, parts = list[str](), "", 0
    while parts == 0 or after:
        result = await called(client, "sandbox_list_files", after=after)
        assert len(text(result)) <= DEFAULT_CHARS + AROUND
        found = dict(result.structured_content)
        seen += [each["path"] for each in found["files"]]
        parts += 1
        after = json.loads(found["note"].rpartition("with after ")[2].rstrip(".")) if "note" in found else ""
    assert seen == [f"/workspace/f{number}-with-a-name-that-is-rather-long" for number in range(1000, 2000)]
    assert parts > 3


async def test_what_pip_says_at_length_is_cut(one: Client) -> None:
    await called(one, "sandbox_run", code=python_that("seq 20000"))
    result = await called(one, "sandbox_pip_install", packages=["wheel"])
    assert len(text(result)) <= DEFAULT_CHARS + AROUND
    found = dict(result.structured_content)
    assert found["output"].endswith("\n20000\n")
    assert text(await called(one, "sandbox_read_file", path=found["output_file"], length=4)) == "1\n2\n"
    assert link_of(result).size == len(NUMBERS)


async def test_errors_and_lists_of_hosts_are_short_too(one: Client) -> None:
    refused = await called(one, "sandbox_run", **{"\x01" * 100_000: 1, "code": "true"})
    assert refused.is_error
    assert len(text(refused)) < DEFAULT_CHARS
    hosts = [f"{'a' * 60}.{'b' * 60}.{'c' * 60}.h{number}.example" for number in range(250)]
    result = await called(one, "sandbox_create_session", allowed_hosts=hosts)
    assert len(text(result)) < DEFAULT_CHARS
    found = dict(result.structured_content)
    assert found["note"] == f"{250 - len(found['allowed_hosts'])} more hosts are not shown."


async def test_only_so_much_output_of_one_client_is_kept_and_the_oldest_goes_first(
    one: Client, door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope, "OUTPUT_FILES", 2)
    found = [await fields(one, "sandbox_run", code=f"seq {number} 20000") for number in (1, 2, 3)]
    names = {Path(each["stdout_file"]).name for each in found[1:]}
    assert {path.name for path in kept_files(door)} == names
    gone = await called(one, "sandbox_read_file", path=found[0]["stdout_file"])
    assert gone.is_error
    monkeypatch.setattr(scope, "OUTPUT_BYTES", 150_000)
    last = await fields(one, "sandbox_run", code="seq 20000")
    assert [path.name for path in kept_files(door)] == [Path(last["stdout_file"]).name]


@pytest.mark.parametrize("gated", ["/", "/workspace/precious"])
async def test_where_a_person_is_asked_before_files_are_written_nothing_is_kept_and_nobody_is_asked(
    one: Client, door: OpenDoor, gated: str
) -> None:
    async with AsyncSandboxClient(target=door.target) as caller:
        session_id = await caller.create_session(gates=Gates(write_paths=(gated,)))
        found = await fields(one, "sandbox_run", code="seq 500000", session_id=session_id)
        assert found["stdout"].endswith("\n500000\n")
        assert "The rest is not kept (a person has to allow" in found["note"]
        assert "stdout_file" not in found
        assert await caller.approvals(all=True) == []
    assert not kept_files(door)


async def test_a_file_that_is_still_written_makes_no_room_for_another(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would be whole by its name, and hold only what came later."""
    monkeypatch.setattr(scope, "OUTPUT_BYTES", 4_000_000)
    async with wire(door.target) as lines:
        await lines.begin()
        code = f"seq 500000; until [ -e {tmp_path}/go-on ]; do sleep 0.01; done; seq 500001 510000"
        params: dict[str, Any] = {"name": "sandbox_run", "arguments": {"code": code}}
        await lines.send({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
        while sum(path.stat().st_size for path in kept_files(door)) < 3_000_000:
            await lines.ask("ping", 8)
        other = (await lines.tool("sandbox_run", 9, code="seq 500000"))["structuredContent"]
        assert "The rest is not kept (other calls keep as much" in other["note"]
        (tmp_path / "go-on").touch()
        found = (await lines.answers(7))[7]["result"]["structuredContent"]
        (kept,) = kept_files(door)
        assert kept.name == Path(found["stdout_file"]).name
        assert kept.read_text() == "".join(f"{number}\n" for number in range(1, 510_001))


async def test_a_sandbox_that_takes_no_file_costs_the_rest_and_not_the_answer(one: Client) -> None:
    """A file stands where the directory would be."""
    found = await fields(one, "sandbox_run", code=": > /tmp/k8e-output; seq 500000; exit 3")
    assert (found["exit_code"], found["truncated"]) == (3, True)
    assert found["stdout"].endswith("\n500000\n")
    assert "The rest is not kept" in found["note"]
    assert "run it again with its output in a file" in found["note"]


async def test_a_cancelled_call_s_output_is_still_counted(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has kept so far goes when there is too much."""
    monkeypatch.setattr(scope, "OUTPUT_FILES", 1)
    async with wire(door.target) as lines:
        await lines.begin()
        params: dict[str, Any] = {"name": "sandbox_run", "arguments": {"code": "seq 500000; sleep 1000"}}
        await lines.send({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
        while not kept_files(door):
            await lines.ask("ping", 8)
        (begun,) = kept_files(door)
        await lines.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        found = (await lines.tool("sandbox_run", 9, code="seq 20000"))["structuredContent"]
        assert [path.name for path in kept_files(door)] == [Path(found["stdout_file"]).name]
        assert begun.name != Path(found["stdout_file"]).name
