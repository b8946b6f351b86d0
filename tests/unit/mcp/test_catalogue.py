"""The tools as a client sees them, and their arguments as a model gives them."""

from __future__ import annotations

import json

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest

from k8e.client.errors import InvalidRequest
from k8e.mcp.arguments import checked
from k8e.mcp.catalogue import ENTRIES, INSTRUCTIONS, tools
from k8e.mcp.hosting import HANDLERS

REQUIRED = {
    "sandbox_run": ["code"],
    "sandbox_status": [],
    "sandbox_create_session": [],
    "sandbox_destroy_session": ["session_id"],
    "sandbox_exec": ["command"],
    "sandbox_exec_stream": ["command"],
    "sandbox_write_file": ["path", "content"],
    "sandbox_read_file": ["path"],
    "sandbox_list_files": [],
    "sandbox_pip_install": ["packages"],
    "sandbox_run_subagent": [],
    "sandbox_confirm_action": [],
}
"""What agents that know k8e call, and what they have to give; a session only where it is to be destroyed."""
KNOWN = {
    "sandbox_run": {"code", "language", "timeout", "session_id", "workdir", "env", "binary"},
    "sandbox_create_session": {"session_id", "tenant_id", "runtime_class", "allowed_hosts", "network", "env"},
    "sandbox_exec": {"session_id", "command", "timeout", "workdir", "env", "binary"},
    "sandbox_exec_stream": {"session_id", "command", "timeout", "workdir", "env"},
    "sandbox_write_file": {"session_id", "path", "content", "mode", "encoding"},
    "sandbox_read_file": {"session_id", "path", "offset", "length"},
    "sandbox_list_files": {"session_id", "since"},
    "sandbox_pip_install": {"session_id", "packages"},
    "sandbox_run_subagent": {"parent_session_id", "agent_type", "workspace_path"},
    "sandbox_confirm_action": {"session_id", "action", "approval_id", "timeout"},
}
"""What they may give."""


def test_there_are_exactly_the_twelve_tools_with_the_arguments_that_agents_know() -> None:
    listed = {each.name: each.input_schema.get("required", []) for each in tools(())}
    assert listed == REQUIRED
    assert set(HANDLERS) == set(ENTRIES) == set(REQUIRED)
    assert all(known <= set(ENTRIES[name].takes) for name, known in KNOWN.items())


def test_only_destroying_a_session_needs_its_id() -> None:
    needing = [name for name, entry in ENTRIES.items() if {"session_id", "parent_session_id"} & set(entry.needs)]
    assert needing == ["sandbox_destroy_session"]


@pytest.mark.parametrize(
    "name",
    [
        "sandbox_run", "sandbox_exec", "sandbox_exec_stream", "sandbox_read_file", "sandbox_list_files",
        "sandbox_pip_install",
    ],
)  # fmt: skip
def test_every_tool_whose_answer_may_be_long_has_a_bound_that_can_be_raised(name: str) -> None:
    assert "25000 by default" in ENTRIES[name].takes["max_chars"]["description"]


def test_a_model_reads_how_servers_are_started_and_looked_at() -> None:
    for words in ("nohup CMD >/tmp/job.log 2>&1 &", "tail /tmp/job.log", "curl -s localhost:PORT", "after the call"):
        assert words in ENTRIES["sandbox_run"].about
        assert words in INSTRUCTIONS
    assert "background" in ENTRIES["sandbox_exec"].about


@pytest.mark.parametrize("tool", tools(("pypi.org",)), ids=lambda tool: tool.name)
def test_every_schema_is_one_and_every_argument_is_explained(tool: object) -> None:
    seen = next(each for each in tools(("pypi.org",)) if each == tool)
    jsonschema.Draft202012Validator.check_schema(seen.input_schema)
    assert seen.title
    assert seen.description
    assert all(each["description"] for each in seen.input_schema["properties"].values())
    assert (seen.output_schema is None) is (seen.name == "sandbox_read_file")
    if seen.output_schema is not None:
        jsonschema.Draft202012Validator.check_schema(seen.output_schema)
        assert set(seen.output_schema.get("required", [])) <= set(seen.output_schema["properties"])


def test_annotations_tell_what_looks_from_what_destroys() -> None:
    hints = {each.name: each.annotations for each in tools(())}
    reads = {name for name, each in hints.items() if each and each.read_only_hint}
    destroys = {name for name, each in hints.items() if each and each.destructive_hint}
    assert reads == {"sandbox_status", "sandbox_read_file", "sandbox_list_files"}
    assert "sandbox_destroy_session" in destroys
    assert not reads & destroys


def test_a_model_reads_what_the_network_allows_before_it_tries() -> None:
    def network(*hosts: str) -> str:
        return str(next(each for each in tools(hosts) if each.name == "sandbox_run").description)

    assert "only pypi.org, github.com." in network("pypi.org", "github.com")
    assert "by default none" in network()
    assert "…" in network(*(f"host{number}.example" for number in range(50)))
    assert "sandbox_status lists" in str(tools(None)[0].description)


def test_arguments_are_checked_once_and_then_trusted() -> None:
    schema = ENTRIES["sandbox_exec"].schema
    args = checked(schema, {"session_id": "s", "command": "ls", "timeout": 2.5, "env": {"A": "b"}, "workdir": None})
    assert (args.text("command"), args.number("timeout", 30), args.by_name("env")) == ("ls", 2.5, {"A": "b"})
    assert args.text("workdir") == ""


@pytest.mark.parametrize(
    ("tool", "given", "words"),
    [
        ("sandbox_exec", {"session_id": "s"}, "command: is required"),
        ("sandbox_destroy_session", {}, "session_id: is required"),
        ("sandbox_exec", {"command": "ls", "max_chars": 999}, "max_chars: must be 1000 or more"),
        ("sandbox_read_file", {"path": "p", "offset": 2**70}, "offset: must be 0 to"),
        ("sandbox_list_files", {"since": 2**70}, "since: must be 0 to"),
        ("sandbox_create_session", {"memory_mib": 2**70}, "memory_mib: must be 1 to"),
        ("sandbox_create_session", {"memory_mib": "2Gi"}, "memory_mib: must be a whole number"),
        ("sandbox_create_session", {"cpus": 0}, "cpus: must be 0.01 to"),
        ("sandbox_exec", {"session_id": "s", "command": "ls", "cmd": "x"}, "cmd: not an argument"),
        ("sandbox_exec", {"session_id": 5, "command": "ls"}, "session_id: must be text"),
        ("sandbox_exec", {"session_id": "s", "command": "ls", "timeout": "30"}, "timeout: must be a number"),
        ("sandbox_exec", {"session_id": "s", "command": "ls", "timeout": True}, "timeout: must be a number"),
        ("sandbox_exec", {"session_id": "s", "command": "ls", "timeout": -1}, "timeout: must be 0 to"),
        ("sandbox_exec", {"session_id": "s", "command": "ls", "env": {"A": 1}}, "env: must be an object"),
        ("sandbox_read_file", {"session_id": "s", "path": "p", "offset": 1.5}, "offset: must be a whole number"),
        (
            "sandbox_write_file",
            {"session_id": "s", "path": "p", "content": "", "mode": "x"},
            "mode: must be one of w, a",
        ),
        ("sandbox_pip_install", {"session_id": "s", "packages": "numpy"}, "packages: must be a list of texts"),
        ("sandbox_status", {"a": 1}, "which takes no arguments"),
    ],
)
def test_a_wrong_argument_is_named_with_what_it_takes(tool: str, given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        checked(ENTRIES[tool].schema, given)


def test_what_stands_in_every_model_s_context_is_short() -> None:
    shown = [(each.name, each.description, each.input_schema) for each in tools(())]
    assert len(json.dumps(shown)) < 10_000
