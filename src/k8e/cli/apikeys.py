"""`k8e sandbox-apikey …`: keys for callers that are not users of this machine. A key's text is printed once."""

from __future__ import annotations

import argparse
import re

from k8e.cli.output import print_json, print_rows
from k8e.client.errors import InvalidRequest
from k8e.client.light.calls import Answer, Calls

__all__ = ["create_key", "delete_key", "list_keys", "ttl_seconds"]

HOUR_S = 3600
DAY_S = 24 * HOUR_S
UNITS = {"": DAY_S, "d": DAY_S, "h": HOUR_S}


def create_key(args: argparse.Namespace, calls: Calls) -> int:
    asked = {"name": args.name, "ttl_s": ttl_seconds(args.ttl), "role": args.role, "owner": args.for_owner}
    answer = calls.unary("CreateApiKey", asked)
    key = answer.text("key")
    print_json({"name": args.name, "key": key, "e2b_key": f"e2b_{key}", **shown(answer.one("info"))})
    return 0


def list_keys(args: argparse.Namespace, calls: Calls) -> int:
    keys = calls.unary("ListApiKeys", {}).each("keys")
    rows = [{"name": each.text("name"), "expired": each.flag("expired"), **shown(each)} for each in keys]
    print_rows(args, "keys", rows)
    return 0


def delete_key(args: argparse.Namespace, calls: Calls) -> int:
    calls.unary("DeleteApiKey", {"name": args.name})
    print_json({"ok": True, "name": args.name})
    return 0


def shown(info: Answer) -> dict[str, object]:
    """What a key's row tells besides its name; days and the end are 0 where it has none."""
    created, expires = info.number("created_at"), info.number("expires_at")
    days = (expires - created) / DAY_S if expires else 0
    return {
        "ttl_days": round(days) if abs(days - round(days)) < 0.001 else round(days, 3),
        "created_at": created,
        "expires_at": expires,
        "role": info.text("role"),
        "owner": info.text("owner"),
    }


def ttl_seconds(text: str) -> int:
    """`30d`, `12h`, `30` (days) or `never`, which is 0. Raises: InvalidRequest."""
    if text == "never":
        return 0
    found = re.fullmatch(r"([1-9][0-9]{0,5})([dh]?)", text)
    if found is None:
        raise InvalidRequest(f"ttl: {text!r} is not a number of days (30d or 30), of hours (12h), or never")
    return int(found[1]) * UNITS[found[2]]
