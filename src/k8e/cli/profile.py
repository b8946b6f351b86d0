"""`profile list|use|add|remove`: servers with names, in `profiles.yaml`."""

from __future__ import annotations

import argparse
import os
import re

from k8e.cli.output import print_json, print_rows
from k8e.client.errors import InvalidRequest, NotFound
from k8e.client.light.profiles import Book, Profile, load, plain_address, save

__all__ = ["add", "remove", "show", "use"]

HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")


def show(args: argparse.Namespace) -> int:
    book = load(os.environ)
    rows: list[dict[str, object]] = [
        {"name": name, **profile._asdict(), "current": name == (book.current or "default")}
        for name, profile in sorted(book.profiles.items())
    ]
    print_rows(args, "profiles", rows)
    return 0


def use(args: argparse.Namespace) -> int:
    book = load(os.environ)
    save(Book(known(book, args.name), book.profiles), os.environ)
    print_json({"ok": True, "current_profile": args.name})
    return 0


def add(args: argparse.Namespace) -> int:
    if not args.name.isprintable() or not args.name.strip() or "/" in args.name:
        raise InvalidRequest(f"name: {args.name!r} cannot be used as a name")
    if not HOST_AND_PORT.fullmatch(plain_address(args.address)):
        raise InvalidRequest(f"endpoint: {args.address!r} is not host:port, as in box.example:50051")
    book = load(os.environ)
    profile = Profile(args.address, args.cert_dir, args.device_name)
    save(Book(book.current, {**book.profiles, args.name: profile}), os.environ)
    print_json({"ok": True, "name": args.name, "endpoint": args.address})
    return 0


def remove(args: argparse.Namespace) -> int:
    book = load(os.environ)
    gone = known(book, args.name)
    left = {name: profile for name, profile in book.profiles.items() if name != gone}
    save(Book("" if book.current == gone else book.current, left), os.environ)
    print_json({"ok": True, "name": gone})
    return 0


def known(book: Book, name: str) -> str:
    if name not in book.profiles:
        raise NotFound(f"profile {name!r} not found; known: {', '.join(sorted(book.profiles)) or 'none'}")
    return name
