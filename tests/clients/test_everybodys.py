"""What an administrator sees of every owner's things, through the command and the SDK, on the real server."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator

import pytest

from k8e.client import SandboxClient
from k8e.client.errors import Denied
from tests.support.commands import Run
from tests.support.servers import Server

OWNERS = ("everybodys-a", "everybodys-b")


@pytest.fixture
def owners(server: Server, client: SandboxClient) -> Iterator[list[SandboxClient]]:
    """Two owners, each with a workspace, a secret and a question."""
    with contextlib.ExitStack() as stack:
        made = []
        for name in OWNERS:
            key = client.create_api_key(name, owner=name).key
            stack.callback(client.delete_api_key, name)
            one = stack.enter_context(SandboxClient(target=dataclasses.replace(server.target(), api_key=key)))
            session_id = one.create_session(runtime_class="container", tenant_id=f"of-{name}")
            stack.callback(one.delete_workspace, f"of-{name}")
            stack.callback(one.destroy_session, session_id)
            one.set_secret(f"of-{name}", "x")
            stack.callback(one.delete_secret, f"of-{name}")
            one.confirm(session_id, f"of-{name}", timeout=0)
            made.append(one)
        yield made


@pytest.mark.parametrize(
    ("command", "things", "label"),
    [
        (("sandbox", "workspaces", "list"), "workspaces", "tenant_id"),
        (("secret", "list"), "secrets", "name"),
        (("sandbox", "approvals"), "approvals", "action"),
    ],
)
def test_an_administrator_lists_everybodys_and_an_owner_its_own(
    client: SandboxClient, owners: list[SandboxClient], k8e: Run, command: tuple[str, ...], things: str, label: str
) -> None:
    wanted = {(f"of-{name}", name) for name in OWNERS}

    def shown(by: SandboxClient, *, all_owners: bool) -> set[tuple[str, str]]:
        found = getattr(by, things)(all_owners=all_owners)
        return {(getattr(each, label), each.owner) for each in found}

    assert [shown(each, all_owners=False) for each in owners] == [{(f"of-{name}", name)} for name in OWNERS]
    assert not wanted & shown(client, all_owners=False)
    assert wanted <= shown(client, all_owners=True)
    with pytest.raises(Denied, match=f"only an administrator sees the {things} of every owner"):
        shown(owners[0], all_owners=True)

    def printed(*flags: str) -> set[tuple[str, str]]:
        rows = json.loads(k8e(*command, *flags).stdout)[things]
        return {(row[label], row.get("owner", "")) for row in rows}

    assert wanted <= printed("--all-owners")
    assert not wanted & printed()
