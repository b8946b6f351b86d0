"""Each tool through the official client, in both eras of the protocol."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from k8e.mcp import files, resources
from k8e.model import OwnerId, SessionId
from tests.support.decided import asking, denied_once
from tests.support.door import OpenDoor
from tests.support.mcp_calls import called
from tests.support.mcp_wire import agent, first_text
from tests.support.session_python import PRINTS_ARGUMENTS

pytestmark = pytest.mark.anyio

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(params=["legacy", "2026-07-28"])
async def client(door: OpenDoor, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with agent(door.target, mode=request.param) as client:
        yield client


@pytest.fixture
async def session_id(client: Client) -> str:
    return str((await fields(client, "sandbox_create_session"))["session_id"])


async def fields(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """The answer's fields, which stand in it twice."""
    result = await called(client, name, **arguments)
    assert not result.is_error, result
    assert json.loads(first_text(result.content)) == result.structured_content
    return dict(result.structured_content)


async def refusal(client: Client, name: str, **arguments: Any) -> str:
    result = await called(client, name, **arguments)
    assert result.is_error
    assert result.structured_content is None
    return first_text(result.content)


async def test_run_has_a_session_of_its_own_that_stays(client: Client) -> None:
    first = await fields(client, "sandbox_run", code="echo kept > /dev/null; echo out")
    assert list(first) == ["stdout", "exit_code", "session_id"]
    assert (first["stdout"], first["exit_code"]) == ("out\n", 0)
    assert first["session_id"].startswith("mcp-")
    assert (await fields(client, "sandbox_run", code="true"))["session_id"] == first["session_id"]
    assert (await fields(client, "sandbox_status"))["session_id"] == first["session_id"]


async def test_run_tells_standard_error_where_there_is_some_or_something_failed(client: Client) -> None:
    assert (await fields(client, "sandbox_run", code="echo err >&2"))["stderr"] == "err\n"
    failed = await fields(client, "sandbox_run", code="exit 3")
    assert (failed["exit_code"], failed["stderr"]) == (3, "")


@pytest.mark.parametrize("language", ["python", "python3", "py", "Python"])
async def test_run_knows_a_language_by_its_names(client: Client, language: str) -> None:
    assert (await fields(client, "sandbox_run", code="print(6 * 7)", language=language))["stdout"] == "42\n"


async def test_a_language_that_there_is_not_is_said_with_those_that_there_are(client: Client) -> None:
    assert "python, bash, node, ts" in await refusal(client, "sandbox_run", code="x", language="cobol")


async def test_run_uses_a_named_session_with_its_own_environment(client: Client, session_id: str) -> None:
    found = await fields(client, "sandbox_run", code="echo $WHO", session_id=session_id, env={"WHO": "me"})
    assert (found["session_id"], found["stdout"]) == (session_id, "me\n")


async def test_run_makes_another_session_when_its_own_is_gone_and_says_what_is_lost(
    client: Client, door: OpenDoor
) -> None:
    first = await fields(client, "sandbox_run", code="true")
    owner = door.engine.list_sessions(None)[0].owner
    await door.engine.destroy_session(OwnerId(owner), SessionId(first["session_id"]))
    again = await fields(client, "sandbox_run", code="echo again")
    assert again["stdout"] == "again\n"
    assert again["session_id"] != first["session_id"]
    assert "files and packages of before are gone" in again["note"]
    assert "note" not in await fields(client, "sandbox_run", code="true")


async def test_every_tool_but_the_one_that_destroys_uses_the_client_s_own_session(client: Client) -> None:
    await fields(client, "sandbox_write_file", path="note.txt", content="kept\n")
    own = (await fields(client, "sandbox_status"))["session_id"]
    assert own.startswith("mcp-")
    assert first_text((await called(client, "sandbox_read_file", path="note.txt")).content) == "kept\n"
    assert [each["path"] for each in (await fields(client, "sandbox_list_files"))["files"]] == ["/workspace/note.txt"]
    assert (await fields(client, "sandbox_exec", command="cat note.txt"))["stdout"] == "kept\n"
    assert first_text((await called(client, "sandbox_exec_stream", command="cat note.txt")).content) == "kept\n"
    await fields(client, "sandbox_run", code=PRINTS_ARGUMENTS)
    assert (await fields(client, "sandbox_pip_install", packages=["wheel"]))["output"].endswith("--\nwheel\n")
    child = (await fields(client, "sandbox_run_subagent"))["session_id"]
    assert (
        first_text((await called(client, "sandbox_read_file", session_id=child, path="note.txt")).content) == "kept\n"
    )
    asked = await fields(client, "sandbox_confirm_action", action="delete it")
    again = await fields(client, "sandbox_confirm_action", approval_id=asked["approval_id"], timeout=0)
    assert (again["status"], again["action"]) == ("pending", "delete it")
    assert (await fields(client, "sandbox_run", code="true"))["session_id"] == own
    assert "session_id: is required" in await refusal(client, "sandbox_destroy_session")


GONE = "files and packages of before are gone"
IN_OWN: dict[str, dict[str, Any]] = {
    "sandbox_run": {"code": "true"},
    "sandbox_exec": {"command": "true"},
    "sandbox_exec_stream": {"command": "true"},
    "sandbox_write_file": {"path": "f", "content": "x"},
    "sandbox_list_files": {},
    "sandbox_pip_install": {"packages": ["wheel"]},
    "sandbox_run_subagent": {},
}


@pytest.mark.parametrize("tool", IN_OWN)
async def test_when_that_is_gone_a_new_one_is_made_and_said_so(client: Client, door: OpenDoor, tool: str) -> None:
    gone = (await fields(client, "sandbox_run", code="true"))["session_id"]
    owner = door.engine.list_sessions(None)[0].owner
    await door.engine.destroy_session(OwnerId(owner), SessionId(gone))
    found = await called(client, tool, **IN_OWN[tool])
    assert not found.is_error, found
    assert GONE in dict(found.structured_content)["note"]
    assert "note" not in dict((await called(client, tool, **IN_OWN[tool])).structured_content)


async def test_a_file_of_a_session_that_is_gone_is_said_to_be_gone_with_it(client: Client, door: OpenDoor) -> None:
    await fields(client, "sandbox_write_file", path="f", content="x")
    (session,) = door.engine.list_sessions(None)
    await door.engine.destroy_session(session.owner, session.session_id)
    assert GONE in await refusal(client, "sandbox_read_file", path="f")
    later = await refusal(client, "sandbox_read_file", path="f")
    assert "file f not found" in later
    assert GONE not in later


async def test_a_session_has_the_memory_cpus_and_disk_that_it_is_asked_to_have(client: Client, door: OpenDoor) -> None:
    asked = {"memory_mib": 2048, "cpus": 1.5, "disk_mib": 3000}
    made = await fields(client, "sandbox_create_session", **asked)
    assert {name: made[name] for name in asked} == asked
    (session,) = door.engine.list_sessions(None)
    assert (session.limits.memory_bytes, session.limits.cpus) == (2048 * 2**20, 1.5)
    usual = await fields(client, "sandbox_create_session", cpus=2)
    assert (usual["memory_mib"], usual["cpus"], usual["disk_mib"]) == (1024, 2, 5120)


async def test_a_command_that_was_killed_is_told_of_the_session_s_memory(client: Client) -> None:
    found = await fields(client, "sandbox_exec", command="exit 137")
    assert "most likely because it was out of memory: the session has 1024 MiB" in found["note"]
    assert "sandbox_create_session with memory_mib 4096" in found["note"]


async def test_a_named_session_that_is_gone_is_not_made_again(client: Client) -> None:
    text = await refusal(client, "sandbox_run", code="true", session_id="gone")
    assert "session gone not found" in text
    assert "sandbox_create_session" in text


async def test_time_that_is_over_is_a_result(client: Client) -> None:
    found = await fields(client, "sandbox_run", code="sleep 60", timeout=0.1)
    assert (found["exit_code"], found["status"]) == (124, "timed_out")
    assert "longer timeout" in found["note"]


async def test_output_that_is_no_text_comes_exactly_where_asked(client: Client) -> None:
    plain = await fields(client, "sandbox_run", code=r"printf '\377\000'")
    assert (plain["stdout"], "stdout_base64" in plain) == ("\ufffd\x00", False)
    exact = await fields(client, "sandbox_run", code=r"printf '\377\000'", binary=True)
    assert base64.b64decode(exact["stdout_base64"]) == b"\xff\x00"


async def test_a_host_that_was_refused_is_named_with_the_way_to_get_it(
    client: Client, door: OpenDoor, tmp_path: Path
) -> None:
    session_id = (await fields(client, "sandbox_run", code="true"))["session_id"]
    async with denied_once(door, session_id, tmp_path, name="files.example"):
        found = await fields(client, "sandbox_run", code=asking(tmp_path))
    assert [each["host"] for each in found["egress_denied"]] == ["files.example"]
    assert 'allowed_hosts ["files.example"]' in found["egress_fix"]


async def test_status_makes_nothing(client: Client, door: OpenDoor) -> None:
    found = await fields(client, "sandbox_status")
    assert (found["available"], found["session_id"]) == (True, "")
    assert not door.engine.list_sessions(None)


async def test_a_session_that_the_client_names_is_the_caller_s_own(client: Client) -> None:
    made = await fields(client, "sandbox_create_session", session_id="mine", allowed_hosts=["files.example"])
    assert (made["session_id"], made["pod_ip"], made["allowed_hosts"]) == ("mine", "", ["files.example"])
    unnamed = await fields(client, "sandbox_create_session", network="none")
    assert unnamed["session_id"].startswith("mcp-")
    assert (unnamed["network"], unnamed["allowed_hosts"]) == ("none", [])


async def test_a_destroyed_session_is_gone(client: Client, session_id: str) -> None:
    assert await fields(client, "sandbox_destroy_session", session_id=session_id) == {"ok": True}
    assert "not found" in await refusal(client, "sandbox_exec", session_id=session_id, command="true")


async def test_exec_answers_with_both_streams(client: Client, session_id: str) -> None:
    found = await fields(client, "sandbox_exec", session_id=session_id, command="echo o; echo e >&2; exit 4")
    assert found == {"stdout": "o\n", "stderr": "e\n", "exit_code": 4}


async def test_exec_starts_where_it_is_told(client: Client, session_id: str) -> None:
    await fields(client, "sandbox_exec", session_id=session_id, command="mkdir sub; echo x > sub/f")
    found = await fields(client, "sandbox_exec", session_id=session_id, command="cat f", workdir="/workspace/sub")
    assert found["stdout"] == "x\n"


async def test_a_streamed_command_answers_with_plain_text_and_says_how_it_ended(
    client: Client, session_id: str
) -> None:
    good = await called(client, "sandbox_exec_stream", session_id=session_id, command="echo o; echo e >&2")
    assert sorted(first_text(good.content).split()) == ["e", "o"]
    assert len(good.content) == 1
    bad = await called(client, "sandbox_exec_stream", session_id=session_id, command="echo o; exit 5")
    assert bad.structured_content == {"output": "o\n", "exit_code": 5}
    assert [each.text for each in bad.content if isinstance(each, TextContent)] == ["o\n", '{"exit_code": 5}']


async def test_progress_has_the_new_output(client: Client, session_id: str) -> None:
    shown: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        shown.append(message)

    arguments = {"session_id": session_id, "command": "echo hello"}
    await client.call_tool("sandbox_exec_stream", arguments, progress_callback=hear)
    assert shown == ["hello\n"]


async def test_text_is_written_and_read_as_it_is(client: Client, session_id: str) -> None:
    text = 'line one\n{"json": "ä"}\n'
    wrote = await fields(client, "sandbox_write_file", session_id=session_id, path="/workspace/a/b.txt", content=text)
    assert wrote == {"ok": True, "size": len(text.encode())}
    await fields(client, "sandbox_write_file", session_id=session_id, path="a/b.txt", content="more", mode="a")
    found = await called(client, "sandbox_read_file", session_id=session_id, path="/workspace/a/b.txt")
    assert [first_text([each]) for each in found.content] == [f"{text}more"]


async def test_a_picture_can_be_looked_at(client: Client, session_id: str) -> None:
    await write(client, session_id, "plot.png", PNG)
    found = await called(client, "sandbox_read_file", session_id=session_id, path="/workspace/plot.png")
    picture = found.content[0]
    assert isinstance(picture, ImageContent)
    assert (picture.mime_type, base64.b64decode(picture.data)) == ("image/png", PNG)
    assert found.structured_content is None


async def test_sound_and_other_bytes_come_as_what_they_are(client: Client, session_id: str) -> None:
    await write(client, session_id, "a.wav", b"RIFF\x04\x00\x00\x00WAVEfmt ")
    sound = (await called(client, "sandbox_read_file", session_id=session_id, path="a.wav")).content[0]
    assert isinstance(sound, AudioContent)
    await write(client, session_id, "a.zip", b"PK\x03\x04\x00\xff")
    other = (await called(client, "sandbox_read_file", session_id=session_id, path="a.zip")).content[0]
    assert isinstance(other, EmbeddedResource)
    assert isinstance(other.resource, BlobResourceContents)
    assert other.resource.mime_type == "application/zip"
    assert base64.b64decode(other.resource.blob) == b"PK\x03\x04\x00\xff"


async def test_a_long_file_comes_in_parts_that_say_where_the_next_begins(client: Client, session_id: str) -> None:
    text = "ää bc " * 1000
    await write(client, session_id, "long.txt", text.encode())
    got, offset, parts = "", 0, 0
    while True:
        found = await called(
            client, "sandbox_read_file", session_id=session_id, path="long.txt", offset=offset, max_chars=1000
        )
        got, parts = got + first_text(found.content), parts + 1
        if len(found.content) == 1 or "for the rest" not in first_text(found.content[1:]):
            break
        offset = int(first_text(found.content[1:]).rpartition("offset ")[2].rstrip("]"))
    assert (got, parts) == (text, 6)


async def test_a_picture_that_is_too_large_is_described_and_can_be_read_in_parts(
    client: Client, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 16)
    await write(client, session_id, "big.png", PNG)
    (said,) = (await called(client, "sandbox_read_file", session_id=session_id, path="big.png")).content
    assert "image/png" in first_text([said])
    assert "too large for one answer" in first_text([said])
    parts = b""
    for offset in range(0, len(PNG), 16):
        found = await called(
            client, "sandbox_read_file", session_id=session_id, path="big.png", offset=offset, length=16
        )
        block = found.content[0]
        assert isinstance(block, EmbeddedResource)
        assert isinstance(block.resource, BlobResourceContents)
        parts += base64.b64decode(block.resource.blob)
    assert parts == PNG


async def test_what_is_not_utf8_is_said(client: Client, session_id: str) -> None:
    await write(client, session_id, "old.txt", "Straße".encode("latin-1"))
    found = await called(client, "sandbox_read_file", session_id=session_id, path="old.txt")
    assert [first_text([each]) for each in found.content] == [
        "Stra\ufffde",
        "[bytes that are not UTF-8 are shown as \ufffd]",
    ]


async def test_a_file_that_is_not_there_and_base64_that_is_none_are_refused(client: Client, session_id: str) -> None:
    assert "sandbox_list_files" in await refusal(client, "sandbox_read_file", session_id=session_id, path="no")
    text = await refusal(client, "sandbox_write_file", session_id=session_id, path="a", content="!", encoding="base64")
    assert "is not base64" in text


async def test_files_are_listed_with_their_times_and_a_bound(
    client: Client, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await write(client, session_id, f"f{number}", b"x")
    listed = await fields(client, "sandbox_list_files", session_id=session_id)
    assert sorted(each["path"] for each in listed["files"]) == [f"/workspace/f{number}" for number in range(3)]
    assert all(each["modified"] > 0 and each["size"] == 1 for each in listed["files"])
    late = max(each["modified"] for each in listed["files"]) + 100
    assert await fields(client, "sandbox_list_files", session_id=session_id, since=late) == {"files": []}
    monkeypatch.setattr(files, "FILES", 2)
    cut = await fields(client, "sandbox_list_files", session_id=session_id)
    assert (len(cut["files"]), cut["truncated"]) == (2, True)


async def test_packages_are_installed_where_it_is_told(client: Client, session_id: str) -> None:
    found = await fields(client, "sandbox_pip_install", session_id=session_id, packages=["wheel"])
    assert set(found) == {"output", "exit_code"}


async def test_a_sub_agent_shares_the_files_of_its_parent(client: Client, session_id: str) -> None:
    child = (await fields(client, "sandbox_run_subagent", parent_session_id=session_id, agent_type="coding"))[
        "session_id"
    ]
    await write(client, session_id, "shared", b"text")
    assert first_text((await called(client, "sandbox_read_file", session_id=child, path="shared")).content) == "text"


async def test_an_unknown_tool_is_said_with_those_that_there_are(client: Client) -> None:
    text = await refusal(client, "sandbox_fly")
    assert "there is no tool 'sandbox_fly'" in text
    assert "sandbox_run" in text


async def test_a_wrong_argument_is_a_result_that_a_model_can_read(client: Client) -> None:
    assert "code: is required" in await refusal(client, "sandbox_run")
    assert "codes: not an argument" in await refusal(client, "sandbox_run", codes="x")


async def test_workspace_files_are_resources(client: Client, session_id: str) -> None:
    await write(client, session_id, "notes äöü.md", b"# hi")
    await write(client, session_id, "plot.png", PNG)
    await write(client, session_id, ".venv/lib/x.py", b"")
    listed = (await client.list_resources()).resources
    assert [(each.name, each.mime_type, each.size) for each in listed] == [
        ("notes äöü.md", "text/markdown", 4),
        ("plot.png", "image/png", len(PNG)),
    ]
    (text,) = (await client.read_resource(listed[0].uri)).contents
    assert isinstance(text, TextResourceContents)
    assert text.text == "# hi"
    (picture,) = (await client.read_resource(listed[1].uri)).contents
    assert isinstance(picture, BlobResourceContents)
    assert (picture.mime_type, base64.b64decode(picture.blob)) == ("image/png", PNG)
    (template,) = (await client.list_resource_templates()).resource_templates
    assert template.uri_template == "k8e://{session_id}{+path}{?offset,length}"


async def test_resources_come_in_pages(client: Client, session_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "PAGE", 2)
    for number in range(5):
        await write(client, session_id, f"f{number}", b"x")
    names, cursor, pages = list[str](), None, 0
    while pages == 0 or cursor:
        page = await client.list_resources(cursor=cursor)
        names += [each.name for each in page.resources]
        cursor, pages = page.next_cursor, pages + 1
    assert (names, pages) == ([f"f{number}" for number in range(5)], 3)
    with pytest.raises(MCPError, match="cursor"):
        await client.list_resources(cursor="!")


@pytest.mark.parametrize("path", ["/etc/passwd", "/workspace/../etc/passwd", "/workspace", "/workspace/none"])
async def test_only_files_of_a_workspace_are_resources(client: Client, session_id: str, path: str) -> None:
    with pytest.raises(MCPError) as caught:
        await client.read_resource(f"k8e://{session_id}{path}")
    assert caught.value.code == (-32602 if client.protocol_version == "2026-07-28" else -32002)


async def test_a_resource_that_is_too_large_says_how_to_read_it(
    client: Client, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(client, session_id, "big", b"x" * 20)
    monkeypatch.setattr(resources, "READ_BYTES", 10)
    with pytest.raises(MCPError, match="sandbox_read_file"):
        await client.read_resource(f"k8e://{session_id}/workspace/big")


async def write(client: Client, session_id: str, path: str, data: bytes) -> None:
    coded = base64.b64encode(data).decode()
    await fields(client, "sandbox_write_file", session_id=session_id, path=path, content=coded, encoding="base64")


async def test_of_many_files_the_first_are_listed(
    client: Client, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await write(client, session_id, name, b"x")
    assert "truncated" not in await fields(client, "sandbox_list_files", session_id=session_id)
    monkeypatch.setattr(files, "FILES", 2)
    found = await fields(client, "sandbox_list_files", session_id=session_id)
    assert [each["path"] for each in found["files"]] == ["/workspace/a", "/workspace/b"]
    assert found["truncated"] is True
    monkeypatch.setattr(resources, "FILES", 2)
    assert len((await client.list_resources()).resources) == 2
