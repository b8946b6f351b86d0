"""`sandbox-install-skill`: the MCP entry and the skill in the agents' own places, and an account of every file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k8e.cli.output import BAD_INPUT, failed, meaning, print_json, say
from k8e.client.errors import Conflict, Denied, InvalidRequest, NotFound, SandboxError, Unsupported
from k8e.errors import Conflict as EngineConflict
from k8e.errors import HostUnsupported, InvalidSpec, K8eError
from k8e.skills import ENTRY
from k8e.skills.agents import AGENTS, Agent, Surroundings
from k8e.skills.entry import Address, Entry, address
from k8e.skills.folder import contents
from k8e.skills.installing import Options, Report, Step
from k8e.skills.installing import install as installed
from k8e.skills.installing import uninstall as uninstalled
from k8e.skills.launching import command

__all__ = ["Account", "agents_as_json", "install", "place", "surroundings", "teach", "told"]

WORDS: Mapping[type[K8eError], type[SandboxError]] = {
    InvalidSpec: InvalidRequest,
    EngineConflict: Conflict,
    HostUnsupported: Unsupported,
}


@dataclass(slots=True)
class Account:
    """What became of each agent."""

    reports: list[Report] = field(default_factory=list)
    skipped: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    """Agents that are not in use here, and what would have been the sign."""
    notes: list[str] = field(default_factory=list)

    @property
    def failures(self) -> dict[str, SandboxError]:
        return {report.agent: worded(report.error) for report in self.reports if report.error}

    @property
    def code(self) -> int:
        is_done = all(report.is_done for report in self.reports)
        return max([0 if is_done else BAD_INPUT, *(meaning(error)[1] for error in self.failures.values())])


def install(args: argparse.Namespace) -> int:
    """The command."""
    try:
        skill = contents()
        here = surroundings(os.environ)
        become_owner(here.home)
        agents = [args.agents] if isinstance(args.agents, str) else args.agents
        options = Options(force=args.force, is_dry=args.dry_run)
        entry = None if args.uninstall else entry_for(args, here)
        account = place(agents, here, entry, skill, options, is_install=not args.uninstall)
        if not args.uninstall and len(account.skipped) == len(AGENTS):
            looked = ", ".join(str(signs[0]) for signs in account.skipped.values())
            raise NotFound(f"no agent is in use here (looked for {looked}); name one to install for it anyway")
    except (SandboxError, K8eError, OSError) as error:
        return told(error, is_json=args.json)
    account.notes += notes(entry, here)
    if args.json:
        print_json(as_json(account, options))
    else:
        sys.stdout.write("\n".join(as_text(account, options, is_install=not args.uninstall)) + "\n")
    return account.code


def place(
    names: Sequence[str],
    here: Surroundings,
    entry: Entry | None,
    skill: Mapping[str, bytes],
    options: Options,
    *,
    is_install: bool = True,
) -> Account:
    """Do it for every agent that is meant; what goes wrong with one does not touch another."""
    account = Account()
    for name, agent in AGENTS.items():
        if name not in names and "all" not in names:
            continue
        signs = agent.place(here).signs
        if name not in names and not any(map(here.exists, signs)):
            account.skipped[name] = signs
            continue
        if stranger := stranger_at(agent, here):
            done = Report(agent=name, error=stranger)
        elif is_install:
            done = installed(agent, here, entry, skill, options)
        else:
            done = uninstalled(agent, here, options)
        account.reports.append(done)
    return account


def teach(agent: str) -> Account:
    """Only the skill, for one agent or all in use, as `connect` does it. Raises: SandboxError, K8eError, OSError."""
    if agent not in {"auto", "all", *AGENTS}:
        raise InvalidRequest(f"agent: {agent!r} is not one of auto, all, {', '.join(AGENTS)}")
    skill, here = contents(), surroundings(os.environ)
    become_owner(here.home)
    return place(["all" if agent == "auto" else agent], here, None, skill, Options())


# --- where and as whom ------------------------------------------------------------------------------------------------


def surroundings(environ: Mapping[str, str]) -> Surroundings:
    """Raises: InvalidRequest where there is no home to install into."""
    try:
        home = Path(environ["HOME"]) if "HOME" in environ and os.name != "nt" else Path.home()
    except RuntimeError as error:
        raise InvalidRequest(f"HOME: {error}") from error
    if not home.is_absolute() or not home.is_dir():
        raise InvalidRequest(f"HOME: {str(home)!r} is no directory; the agents' configs are looked for there")
    return Surroundings(home=home, workspace=Path.cwd(), environ=environ, exists=_exists)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def become_owner(home: Path) -> None:
    """Root in somebody's home, as with `sudo`, acts as that somebody."""
    if getattr(os, "geteuid", lambda: -1)() != 0:
        return
    owner = home.stat()
    if owner.st_uid == 0:
        return
    import pwd

    # SAFETY: the home's owner can put a link anywhere in it; as themselves they can only mislead us to what is theirs.
    try:
        os.initgroups(pwd.getpwuid(owner.st_uid).pw_name, owner.st_gid)
    except KeyError:
        os.setgroups([])
    os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
    os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)


def stranger_at(agent: Agent, here: Surroundings) -> K8eError | None:
    """A workspace of somebody else's is theirs to install into."""
    at = agent.place(here)
    if at.config.is_relative_to(here.home) or not here.exists(at.signs[0]) or not hasattr(os, "geteuid"):
        return None
    owner = at.signs[0].stat().st_uid
    # SAFETY: as above; root must not follow the links of a directory that somebody else can write.
    is_strange = os.geteuid() == 0 and owner != 0
    return HostUnsupported(f"{at.signs[0]} belongs to user {owner}; run this as that user") if is_strange else None


def entry_for(args: argparse.Namespace, here: Surroundings) -> Entry:
    named = here.environ.get("K8E_SANDBOX_MCP_ADDR", "")
    if args.http or named:
        return address(named)
    return command(args.started_as, here.home, here.environ)


def notes(entry: Entry | None, here: Surroundings) -> list[str]:
    said: list[str] = []
    if isinstance(entry, Address):
        at = entry.url.partition("://")[2].partition("/")[0]
        said.append(f"somebody must listen there: k8e sandbox-mcp --http --http-addr {at}")
        if not entry.is_local:
            said.append("an address that is not this machine's own wants an API key: add its header to the entry")
    user = here.environ.get("SUDO_USER", "")
    if user not in {"", "root"} and getattr(os, "geteuid", lambda: -1)() == 0:
        said.append(f"this was for root's own agents ({here.home}); for {user}'s, run it as {user}")
    return said


# --- the account ------------------------------------------------------------------------------------------------------


def worded(error: K8eError) -> SandboxError:
    kind = next((WORDS[each] for each in type(error).__mro__ if each in WORDS), SandboxError)
    return kind(str(error))


def told(error: Exception, *, is_json: bool) -> int:
    shown = worded(error) if isinstance(error, K8eError) else error
    if not isinstance(shown, SandboxError):
        shown = Denied(str(error)) if isinstance(error, PermissionError) else Unsupported(str(error))
    if is_json:
        return failed(shown, has_ok=True)
    say(str(shown))
    return meaning(shown)[1]


def as_json(account: Account, options: Options) -> dict[str, object]:
    return {
        "ok": account.code == 0,
        "dry_run": options.is_dry,
        "agents": agents_as_json(account, options),
        "skipped": [
            {"agent": name, "looked_for": [str(sign) for sign in signs]} for name, signs in account.skipped.items()
        ],
        "notes": account.notes,
    }


def agents_as_json(account: Account, options: Options) -> list[dict[str, object]]:
    agents: list[dict[str, object]] = []
    for report in account.reports:
        agent: dict[str, object] = {"agent": report.agent, "steps": [_shown(step, options) for step in report.steps]}
        if error := account.failures.get(report.agent):
            agent |= {"error": meaning(error)[0], "detail": str(error)}
        agents.append(agent)
    return agents


def _shown(step: Step, options: Options) -> dict[str, object]:
    more: dict[str, object] = {
        "detail": step.detail,
        "backup": str(step.backup or ""),
        "files": list(step.files),
        "kept": list(step.kept),
        "diff": step.diff if options.is_dry else "",
    }
    return {"path": str(step.path), "what": step.what, "action": step.action} | {
        key: value for key, value in more.items() if value
    }


def as_text(account: Account, options: Options, *, is_install: bool) -> list[str]:
    lines: list[str] = []
    for report in account.reports:
        lines.append(report.agent)
        for step in report.steps:
            lines += _lines(step, options)
        if report.error:
            lines.append(f"  failed: {report.error}")
    for name, signs in account.skipped.items():
        hint = f"; to install anyway: k8e sandbox-install-skill {name}" if is_install else ""
        lines.append(f"{name} is not in use here (no {signs[0]}){hint}")
    return [*lines, *(f"note: {note}" for note in account.notes)]


def _lines(step: Step, options: Options) -> list[str]:
    verb = (
        f"would be {step.action}" if options.is_dry and step.action in {"added", "updated", "removed"} else step.action
    )
    subject = f"{ENTRY} " if step.what == "entry" else ""
    count = f", {len(step.files)} files" if step.files else ""
    backup = f" (as it was: {step.backup})" if step.backup and not options.is_dry else ""
    detail = f": {step.detail}" if step.detail else ""
    lines = [f"  {step.path}: {subject}{verb}{count}{backup}{detail}"]
    lines += [f"    yours: {name}" for name in step.kept]
    if options.is_dry:
        lines += [*step.diff.splitlines(), *(f"    {name}" for name in step.files)]
    return lines
