"""`connect`: check that a server answers and knows the caller, then use it from now on."""

from __future__ import annotations

import argparse
import json
import os

from k8e.cli.output import failed, print_json, say
from k8e.cli.reaching import reach
from k8e.client import certificates
from k8e.client.errors import InvalidRequest, SandboxError
from k8e.client.light.profiles import Connection, config_path, connection, write

__all__ = ["connect"]


def connect(args: argparse.Namespace) -> int:
    try:
        if args.skill_only:
            code, skills = taught(args)
            print_json({"ok": code == 0, "skills": skills})
            return code
        place = connection(args.endpoint or "", args.profile or "", os.environ)
        if args.reset_certs:
            certificates.forget(place.cert_dir)
        _log_in(args, place)
        who = {} if args.skip_verify else verified(args)
        _store(place)
        more = {} if args.skip_skill else {"skills": taught(args)[1]}
    except SandboxError as error:
        return failed(error, has_ok=True)
    except OSError as error:
        return failed(InvalidRequest(str(error)), has_ok=True)
    mode = "remote" if place.endpoint else "local"
    print_json({"ok": True, "mode": mode, "endpoint": place.endpoint, **who, **more})
    return 0


def taught(args: argparse.Namespace) -> tuple[int, list[dict[str, object]]]:
    """The skill for the agents in use here; what does not work is told, and no reason not to be connected."""
    from k8e.cli.skills import agents_as_json, teach
    from k8e.skills.installing import Options

    account = teach(args.agent)
    for name, error in account.failures.items():
        say(f"no skill for {name}: {error}")
    return account.code, agents_as_json(account, Options())


def _log_in(args: argparse.Namespace, place: Connection) -> None:
    """With an API key and a server elsewhere, and no certificate for it yet."""
    has_key = args.apikey or os.environ.get("K8E_SANDBOX_APIKEY")
    if args.skip_verify or not place.endpoint or not has_key or certificates.read(place.cert_dir, place.endpoint):
        return
    if not (args.ca_fingerprint or args.trust_first_use):
        return
    from k8e.cli.login import logged_in

    logged_in(args, place, os.environ)
    say(f"certificate stored in {place.cert_dir}")


def verified(args: argparse.Namespace) -> dict[str, object]:
    """Who the server takes us for."""
    calls = reach(args, os.environ, starts_server=True)
    try:
        answer = calls.unary("WhoAmI", {})
    finally:
        calls.close()
    say(f"the server answers and knows you as {answer.text('identity')} ({answer.text('role')})")
    return {"identity": answer.text("identity"), "role": answer.text("role")}


def _store(place: Connection) -> None:
    config = {"mode": "remote", "endpoint": place.endpoint} if place.endpoint else {"mode": "local"}
    write(config_path(os.environ), json.dumps(config).encode() + b"\n", 0o600)
