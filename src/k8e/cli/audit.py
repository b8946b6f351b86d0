"""`audit`: read the trail on this machine, whether its server runs or not."""

from __future__ import annotations

import argparse
import collections
import os
from pathlib import Path

from k8e.audit import Fields, records, verify
from k8e.cli.output import BAD_INPUT, SERVER, print_json, say
from k8e.client.light.places import own_data_dir
from k8e.visible import terminal_safe

__all__ = ["check", "show"]


def check(args: argparse.Namespace) -> int:
    """Exit 0: whole. 1: broken, with the record and the reason. 2: it cannot be read."""
    data_dir = _data_dir(args)
    try:
        found = verify(data_dir)
    except OSError as error:
        return _unreadable(error)
    if args.json:
        told = {"ok": found.ok, "records": found.records, "problem": found.problem, "where": found.where}
        print_json({**told, "note": found.note})
    elif found.ok:
        note = f" ({terminal_safe(found.note)})" if found.note else ""
        print(f"the audit trail is whole: {found.records} records{note}")
    else:
        where = f" at {data_dir / found.trail / found.where}" if found.where else ""
        broken = f"THE AUDIT TRAIL IS BROKEN{where}: {found.problem} ({found.records} records before it are good)"
        print(terminal_safe(broken))
    return 0 if found.ok else BAD_INPUT


def show(args: argparse.Namespace) -> int:
    kept: collections.deque[Fields] = collections.deque(maxlen=args.limit if args.limit > 0 else None)
    try:
        for record in records(_data_dir(args)):
            about = (record.get("session_id"), record.get("parent_session_id"))
            if not args.session_id or args.session_id in about:
                kept.append(record)
    except OSError as error:
        return _unreadable(error)
    for record in kept:
        print_json(record)
    return 0


def _data_dir(args: argparse.Namespace) -> Path:
    return Path(args.data_dir).absolute() if args.data_dir else own_data_dir(os.environ)


def _unreadable(error: OSError) -> int:
    say(f"cannot read the audit trail: {error}; run this as the user that runs the server")
    return SERVER
