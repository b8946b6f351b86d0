"""The agent's card: what it can do, where, and with which proof of who asks; pure."""

from __future__ import annotations

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from k8e import __version__
from k8e.a2a.asks import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S

__all__ = ["PATH", "agent_card"]

PATH = "/a2a"
"""Where both bindings are, below the server's address."""

SCHEME = "bearer"

DESCRIPTION = (
    "Runs code that nobody trusts in a sandbox of its own and gives back what it printed and the files it wrote. It runs "
    "what is marked as code and does not interpret prose. Messages of one contextId share one sandbox with its files in "
    "/workspace and installed packages; it ends when unused. A program that fails is a failed task, with its output."
)

RUN = (
    "Send a text part with a fenced code block (```python, ```node, ```ts, ```bash, ```sh); several blocks run one after "
    'the other until one fails. Or send a data part, which is exact: {"code": "...", "language": "python|node|ts|bash|sh", '
    f'"timeout": seconds (default {DEFAULT_TIMEOUT_S:.0f}, at most {MAX_TIMEOUT_S:.0f}), "workdir": "...", "env": {{}}}}. '
    "Output comes as the artifacts stdout and stderr while the program runs, then the files it wrote below /workspace, "
    "then the artifact result with exit_code, status, duration_ms, truncated and session_id."
)
SHELL = 'Send lines that each begin with `$ `, or a data part {"command": "..."}: the text is given to /bin/sh.'
FILES = (
    "File parts of a message, with their bytes and a filename, are written to /workspace before anything runs; without "
    'code they are all that is done. A data part {"read": "name"} or {"read": ["a", "b"]} gives files back as artifacts. '
    "Files by url are not fetched."
)


def agent_card(base_url: str) -> AgentCard:
    """The card of an agent that is reached at `base_url`."""
    url = base_url.rstrip("/") + PATH
    return AgentCard(
        name="k8e sandbox",
        description=DESCRIPTION,
        version=__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
            for version in ("1.0", "0.3")
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        # A push goes to an address of the caller's choice, from this machine: not offered.
        capabilities=AgentCapabilities(streaming=True, push_notifications=False, extended_agent_card=False),
        security_schemes={
            SCHEME: SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(
                    scheme="bearer",
                    description="An API key of k8e: `k8e sandbox-apikey create <name>`. The user who runs this agent "
                    "needs none on the same machine, unless the agent was started to require one.",
                )
            )
        },
        security_requirements=[SecurityRequirement(schemes={SCHEME: StringList()})],
        default_input_modes=["text/plain", "application/json", "application/octet-stream"],
        default_output_modes=["text/plain", "application/json", "application/octet-stream"],
        skills=[
            AgentSkill(
                id="run-code",
                name="Run code",
                description=RUN,
                tags=["code", "python", "node", "typescript", "bash", "sandbox"],
                examples=["```python\nprint(6 * 7)\n```", '{"code": "console.log(6 * 7)", "language": "node"}'],
            ),
            AgentSkill(
                id="shell",
                name="Shell commands",
                description=SHELL,
                tags=["shell", "commands", "packages", "sandbox"],
                examples=["$ ls -l /workspace", '{"command": "pip install numpy", "timeout": 600}'],
            ),
            AgentSkill(
                id="files",
                name="Files",
                description=FILES,
                tags=["files", "data", "plots", "sandbox"],
                examples=['{"read": "plot.png"}'],
            ),
        ],
    )
