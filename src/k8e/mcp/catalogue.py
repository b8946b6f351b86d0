"""The twelve tools as clients see them: names, arguments and answers as k8e's users know them.

A description is what a model chooses by, so each says when to take the tool and what comes of it; a model also reads
what the network allows before it tries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mcp_types as types

from k8e.mcp.bounds import DEFAULT_CHARS, LEAST_CHARS
from k8e.mcp.schemas import (
    Schema,
    choice,
    flag,
    list_of,
    number,
    object_of,
    text,
    texts,
    texts_by_name,
    whole,
)

__all__ = ["ENTRIES", "INSTRUCTIONS", "Entry", "tools"]

INSTRUCTIONS = """\
An isolated Linux sandbox to run code in. Use it whenever code is to be run, tested or tried, packages installed, or data \
analysed, instead of the user's machine.
- Default tool: sandbox_run. Tools that are given no session_id share one session: files in /workspace and installed \
packages stay there until you are done.
- A server or another long job is started in the background, as `nohup CMD >/tmp/job.log 2>&1 &`, and goes on after the \
call. Look at it with later calls: `tail /tmp/job.log`, `curl -s localhost:PORT` inside the sandbox, `ps`; end it with `kill`.
- Long output is cut in the middle; the note beside it names the file in the sandbox that has all of it.
- Only named hosts can be reached; sandbox_status lists them. A result with egress_denied says which host was refused and \
what to do; never try to get around it.
- Look at a plot or another file with sandbox_read_file; bring files in with sandbox_write_file.
- Before something that cannot be undone, ask a person with sandbox_confirm_action and do it only when approved.
- A non-zero exit_code is a result to react to, not a failure of the tool."""

SHOWN_HOSTS = 20
LANGUAGES = "python, bash (default), node or ts"

SESSION = text("From sandbox_create_session or an earlier result; without it your own session")
SECONDS = 24 * 60 * 60
WORKDIR = text("Where to start, /workspace by default")
ENV = texts_by_name("Environment variables for this call")
BINARY = flag("Also return the exact bytes, as stdout_base64 and stderr_base64")
MAX_CHARS = whole(f"Characters in the answer at most, {DEFAULT_CHARS} by default", minimum=LEAST_CHARS)
INTEGER = 2**53
"""No number in JSON is exact beyond this."""
MEBIBYTES = 2**40
"""More than anybody has; what a session may have is the server's to say."""


def seconds(default: int) -> Schema:
    return number(
        f"Seconds until it is ended, {default} by default; 0 for none", default=default, minimum=0, maximum=SECONDS
    )


EXIT_CODE = whole("0 is success; 124 after a time-out, 128+n after signal n")
UNUSUAL: Mapping[str, Schema] = {
    "status": text("How it ended where it did not simply exit: timed_out or failed"),
    "reason": text("Why: killed, oom_killed, sandbox_lost, not_started"),
    "detail": text("More about it"),
    "truncated": flag("Whether output is left out; note says how to read it"),
    "egress_denied": list_of(
        "Hosts that the sandbox wanted to reach and may not",
        host=text("Its name"),
        port=whole("0 where it was only looked up"),
        reason=text("Why not"),
    ),
    "egress_fix": text("What to do about it"),
    "note": text("What else to know"),
}
EXACT: Mapping[str, Schema] = {
    "stdout_base64": text("The exact bytes, where asked for"),
    "stderr_base64": text("The exact bytes, where asked for"),
}
OUTPUT: Mapping[str, Schema] = {"stdout": text("Standard output"), "stderr": text("Standard error")}
OUTPUT_FILES: Mapping[str, Schema] = {
    "stdout_file": text("Where all of stdout is, when it was too long"),
    "stderr_file": text("Where all of stderr is, when it was too long"),
}
OUTPUT_FILE: Mapping[str, Schema] = {"output_file": text("Where all of it is, when it was too long")}
NOTE: Mapping[str, Schema] = {"note": text("What else to know")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tool; `{network}` in its text is what a session may reach."""

    title: str
    about: str
    takes: Mapping[str, Schema]
    needs: tuple[str, ...] = ()
    gives: Mapping[str, Schema] | None = None
    """None for a tool whose answer is content: clients that prefer structured content would not show it."""
    always: tuple[str, ...] = ()
    reads_only: bool = False
    destroys: bool = False
    repeatable: bool = False
    reaches_out: bool = False
    schema: Schema = field(init=False)

    def __post_init__(self) -> None:
        schema = {**object_of(self.takes, required=self.needs), "additionalProperties": False}
        object.__setattr__(self, "schema", schema)

    def tool(self, name: str, network: str) -> types.Tool:
        return types.Tool(
            name=name,
            title=self.title,
            description=self.about.replace("{network}", network),
            input_schema=self.schema,
            output_schema=object_of(self.gives, required=self.always) if self.gives is not None else None,
            annotations=types.ToolAnnotations(
                title=self.title,
                read_only_hint=self.reads_only,
                destructive_hint=self.destroys,
                idempotent_hint=self.repeatable or self.reads_only,
                open_world_hint=self.reaches_out,
            ),
        )


ENTRIES: Mapping[str, Entry] = {
    "sandbox_run": Entry(
        title="Run code",
        about="Run a program in an isolated sandbox and return what it printed. The default tool for running, testing and "
        "trying code, computing, and analysing data. Without session_id it uses a session of your own, where files in "
        "/workspace and installed packages stay for later calls. A server may be started in the background (bash: `nohup "
        "CMD >/tmp/job.log 2>&1 &`): it goes on after the call; look at it with `tail /tmp/job.log` and `curl -s "
        "localhost:PORT` in later calls. {network}",
        takes={
            "code": text("The program's text, up to 1 MiB; it runs exactly as it is"),
            "language": text(f"{LANGUAGES}; also py, python3, sh, js, javascript, typescript"),
            "timeout": seconds(30),
            "session_id": text("Run in this session instead of your own"),
            "workdir": WORKDIR,
            "env": ENV,
            "binary": BINARY,
            "max_chars": MAX_CHARS,
        },
        needs=("code",),
        gives={
            **OUTPUT,
            "exit_code": EXIT_CODE,
            "session_id": text("Where it ran, for the other tools"),
            **UNUSUAL,
            **EXACT,
            **OUTPUT_FILES,
        },
        always=("stdout", "exit_code", "session_id"),
        destroys=True,
        reaches_out=True,
    ),
    "sandbox_status": Entry(
        title="Sandbox status",
        about="Whether sandboxes are available, the id of your own session if there is one, and the hosts that can be "
        "reached. Makes nothing.",
        takes={},
        gives={
            "available": flag("Whether sandboxes can be used now"),
            "session_id": text("Of the session that sandbox_run uses; empty before its first use"),
            "network": text("none, list or open"),
            "allowed_hosts": texts("What that session, or a new one, may reach"),
            "runtimes": texts("How sandboxes can be isolated here"),
            "version": text("Of the server"),
            "reason": text("Why it is not available"),
            **NOTE,
        },
        always=("available", "session_id"),
        reads_only=True,
    ),
    "sandbox_create_session": Entry(
        title="Create a session",
        about="Make another sandbox session. Only needed for other hosts than the default ones, more memory, CPUs or disk, "
        "several sandboxes side by side, or a workspace that stays (tenant_id); otherwise just use sandbox_run. {network}",
        takes={
            "session_id": text("A name for it; a session that you name stays until it is destroyed"),
            "tenant_id": text("A label whose /workspace stays and is there again in the next session of that tenant"),
            "runtime_class": text("How it is isolated: gvisor (default) or container, which is weaker"),
            "allowed_hosts": texts("Hosts that it may reach, instead of the default ones: example.com, *.example.com"),
            "network": choice("none for no network at all", "list", "none", "open"),
            "env": texts_by_name("Environment variables of every command in it"),
            "memory_mib": whole("Memory in MiB", minimum=1, maximum=MEBIBYTES),
            "cpus": number("CPUs; 0.5 is half of one", minimum=0.01, maximum=10**6),
            "disk_mib": whole("Disk in MiB", minimum=1, maximum=MEBIBYTES),
        },
        gives={
            "session_id": text("The new session"),
            "pod_ip": text("Always empty; clients of earlier versions look for it"),
            "runtime_class": text("How it is isolated"),
            "network": text("none, list or open"),
            "allowed_hosts": texts("What it may reach"),
            "memory_mib": whole("Its memory"),
            "cpus": number("Its CPUs"),
            "disk_mib": whole("Its disk"),
            **NOTE,
        },
        always=("session_id", "pod_ip"),
    ),
    "sandbox_destroy_session": Entry(
        title="Destroy a session",
        about="End a session with everything that runs in it and, unless it has a tenant, its files. Sessions that you did "
        "not name end by themselves when you are done.",
        takes={"session_id": text("The session's id")},
        needs=("session_id",),
        gives={"ok": flag("It is gone")},
        always=("ok",),
        destroys=True,
        repeatable=True,
    ),
    "sandbox_exec": Entry(
        title="Run a shell command",
        about="Run one shell command and return its output at the end. For programs in Python or JavaScript use "
        "sandbox_run; for what takes long use sandbox_exec_stream, or start it in the background as sandbox_run says.",
        takes={
            "session_id": SESSION,
            "command": text("For /bin/sh -c"),
            "timeout": seconds(30),
            "workdir": WORKDIR,
            "env": ENV,
            "binary": BINARY,
            "max_chars": MAX_CHARS,
        },
        needs=("command",),
        gives={**OUTPUT, "exit_code": EXIT_CODE, **UNUSUAL, **EXACT, **OUTPUT_FILES},
        always=("stdout", "stderr", "exit_code"),
        destroys=True,
        reaches_out=True,
    ),
    "sandbox_exec_stream": Entry(
        title="Run a long shell command",
        about="Like sandbox_exec for commands that take long: output comes as progress while it runs, both streams "
        "together, and again at the end. Cancelling the call ends the command.",
        takes={
            "session_id": SESSION,
            "command": text("For /bin/sh -c"),
            "timeout": seconds(300),
            "workdir": WORKDIR,
            "env": ENV,
            "max_chars": MAX_CHARS,
        },
        needs=("command",),
        gives={
            "output": text("Both streams, in the order they came"),
            "exit_code": EXIT_CODE,
            **UNUSUAL,
            **OUTPUT_FILE,
        },
        always=("output", "exit_code"),
        destroys=True,
        reaches_out=True,
    ),
    "sandbox_write_file": Entry(
        title="Write a file",
        about="Write or append to a file in a session; directories are made. Text, or with encoding base64 any bytes.",
        takes={
            "session_id": SESSION,
            "path": text("Absolute, or below /workspace"),
            "content": text("Text, or base64 where encoding says so"),
            "mode": choice("w replaces the file (default), a appends", "w", "a"),
            "encoding": choice("How content is given", "utf-8", "base64"),
        },
        needs=("path", "content"),
        gives={"ok": flag("It is written"), "size": whole("Bytes of the file now"), **NOTE},
        always=("ok",),
        destroys=True,
    ),
    "sandbox_read_file": Entry(
        title="Read a file",
        about="Read a file of a session: text as it is, a picture (PNG, JPEG, GIF, WebP) or sound so that you can look at or "
        "hear it, anything else as bytes. Of a long text you get the beginning and the end, and with offset the parts "
        "between.",
        takes={
            "session_id": SESSION,
            "path": text("Absolute, or below /workspace"),
            "offset": whole("First byte", minimum=0, maximum=INTEGER),
            "length": whole("Bytes at most", minimum=1, maximum=INTEGER),
            "max_chars": MAX_CHARS,
        },
        needs=("path",),
        reads_only=True,
    ),
    "sandbox_list_files": Entry(
        title="List files",
        about="The files below /workspace of a session by their paths, or those that changed since a time.",
        takes={
            "session_id": SESSION,
            "since": whole("Unix seconds: only files that changed at or after it", minimum=0, maximum=INTEGER),
            "after": text("Only files whose paths come after this one: the rest of a list that was too long"),
            "max_chars": MAX_CHARS,
        },
        gives={
            "files": list_of(
                "The files",
                path=text("Absolute"),
                modified=whole("Unix seconds"),
                size=whole("Bytes"),
            ),
            "truncated": flag("Whether there are more"),
            "note": text("How to see them"),
        },
        always=("files",),
        reads_only=True,
    ),
    "sandbox_pip_install": Entry(
        title="Install Python packages",
        about="Install Python packages into a session with pip. {network}",
        takes={
            "session_id": SESSION,
            "packages": texts("Names, with versions if need be: numpy, requests==2.32.0"),
            "max_chars": MAX_CHARS,
        },
        needs=("packages",),
        gives={
            "output": text("What pip said"),
            "exit_code": EXIT_CODE,
            "truncated": UNUSUAL["truncated"],
            **OUTPUT_FILE,
            **NOTE,
        },
        always=("output", "exit_code"),
        repeatable=True,
        reaches_out=True,
    ),
    "sandbox_run_subagent": Entry(
        title="Session for a sub-agent",
        about="Make a session with a sandbox of its own that shares /workspace with its parent, for a sub-agent to work in.",
        takes={
            "parent_session_id": text("Whose /workspace it shares; without it your own session's"),
            "agent_type": text("research, coding or general; has no effect"),
            "workspace_path": text("Has no effect: all of /workspace is shared"),
        },
        gives={"session_id": text("The child's session"), **NOTE},
        always=("session_id",),
    ),
    "sandbox_confirm_action": Entry(
        title="Ask a person for approval",
        about="Ask a person before something that cannot be undone, such as deleting, publishing or paying. Describe the "
        "action exactly and do it only when approved is true. Where the person cannot be asked right here the result has "
        "an approval_id and the command that a person has to run: show it, then call again with approval_id to wait.",
        takes={
            "session_id": SESSION,
            "action": text("What you want to do, in words that a person can judge"),
            "approval_id": text("Wait for the answer to this earlier question"),
            "timeout": number("Seconds to wait for it, 60 by default", default=60, minimum=0, maximum=300),
        },
        gives={
            "approval_id": text("The question"),
            "approved": flag("Whether a person has approved it"),
            "status": text("pending, approved, rejected or expired"),
            "action": text("What was asked: an answer is for this and for nothing else"),
            "decided_by": text("Who"),
            "reason": text("Why"),
            "approve_with": text("The command that a person runs to approve"),
            "reject_with": text("And to reject"),
            "next": text("What to do now"),
            "note": text("What else to know"),
        },
        always=("approval_id", "approved"),
    ),
}


def tools(hosts: Sequence[str] | None) -> list[types.Tool]:
    """All of them, for a server where a session without a list may reach these hosts; None where nobody knows."""
    network = network_of(hosts)
    return [entry.tool(name, network) for name, entry in ENTRIES.items()]


def network_of(hosts: Sequence[str] | None) -> str:
    if hosts is None:
        return "Network: only named hosts, which sandbox_status lists."
    if not hosts:
        return "Network: by default none."
    shown = ", ".join(hosts[:SHOWN_HOSTS])
    return f"Network: by default only {shown}{', …' if len(hosts) > SHOWN_HOSTS else ''}."
