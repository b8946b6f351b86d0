"""The agent under test is the real one."""

from __future__ import annotations

from tests.support.agents import agent_root, agent_venv, link

__all__ = ["agent_root", "agent_venv", "link"]
