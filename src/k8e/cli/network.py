"""`allow-hosts` and `egress`: what a session may reach, and what it tried."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from k8e.cli.output import print_json
from k8e.cli.sharing import in_session
from k8e.client.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8e.client import AsyncSandboxClient, EgressDenial

__all__ = ["allow_hosts", "denied", "show_egress", "split"]


async def allow_hosts(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    return await in_session(args, client, lambda session_id: change(args, client, session_id))


async def change(args: argparse.Namespace, client: AsyncSandboxClient, session_id: str) -> int:
    """Without a change, show."""
    add, remove = split(args.add), split(args.remove)
    wholes = [text for text in (args.hosts, args.whole, "" if args.clear else None) if text is not None]
    if len(wholes) + bool(add or remove) > 1:
        raise InvalidRequest("hosts: give a whole list, or --clear, or --add and --remove")
    if wholes or add or remove:
        hosts = await client.update_allowed_hosts(session_id, split(wholes), add=add, remove=remove)
    else:
        hosts = list((await client.get(session_id)).allowed_hosts)
    print_json({"session_id": session_id, "allowed_hosts": hosts})
    return 0


async def show_egress(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    """One line each, so that it can be followed."""
    async for decision in client.egress(args.session_id, args.limit, follow=args.follow):
        print_json(dataclasses.asdict(decision))
    return 0


def split(texts: Iterable[str]) -> list[str]:
    """Entries that may be given one by one or separated by commas."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def denied(denials: Iterable[EgressDenial]) -> dict[str, object]:
    """For whoever may allow it; nothing when nothing was denied."""
    shown = [dataclasses.asdict(each) for each in denials]
    return {"egress_denied": shown} if shown else {}
