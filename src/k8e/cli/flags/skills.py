"""Flags of `sandbox-install-skill`."""

from __future__ import annotations

from k8e.cli.grammar import Parser

__all__ = ["AGENTS", "fill_install"]

AGENTS = ("kiro", "claude", "gemini", "openclaw", "codex", "cursor", "all")
"""As `k8e.skills.agents` knows them; that module is not loaded for a list of words."""


def fill_install(install: Parser) -> None:
    install.add_argument(
        "agents", nargs="*", default="all", choices=AGENTS, metavar="agent", help=f"{', '.join(AGENTS)} (default all)"
    )
    install.add_argument("--http", action="store_true", help="an address instead of a command (K8E_SANDBOX_MCP_ADDR)")
    install.add_argument("--dry-run", action="store_true", help="show every change and make none")
    install.add_argument("--uninstall", action="store_true", help="take away what was installed, and nothing else")
    install.add_argument("--force", action="store_true", help="also replace or remove what you made or changed")
    install.add_argument("--json", action="store_true", help="one JSON line instead of text")
    install.set_defaults(local="skills:install")
