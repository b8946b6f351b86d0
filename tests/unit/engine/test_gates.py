"""What is gated, and what is asked about it: pure decisions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.engine import gates as asking
from k8e.engine.approvals import MAX_TEXT_BYTES, check_text
from k8e.engine.session import spec_from_json, spec_to_json
from k8e.errors import InvalidSpec
from k8e.model import Argv, Code, Command, EgressMode, Gates, Language, SecretRef, SessionSpec, Shell

FULL = Gates(egress=True, write_paths=("/workspace/deploy",), workspace=True, secrets=True, commands=("rm",))


def test_gates_only_ever_add_up() -> None:
    other = Gates(write_paths=("/etc", "/workspace/deploy"), commands=("dd",))
    both = asking.union(FULL, Gates(), other)
    assert both == dataclasses.replace(FULL, write_paths=("/workspace/deploy", "/etc"), commands=("rm", "dd"))
    assert asking.union(other, FULL).secrets
    assert asking.union() == Gates()


def test_what_is_written_down_comes_back_and_an_old_session_has_none() -> None:
    spec = SessionSpec(gates=FULL)
    assert spec_from_json(spec_to_json(spec)) == spec
    old = json.loads(spec_to_json(spec))
    del old["gates"]
    assert spec_from_json(json.dumps(old)).gates == Gates()
    assert asking.gates_from(json.loads(json.dumps(asking.gates_to_json(FULL)))) == FULL
    assert asking.gates_to_json(Gates()) == {}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/workspace/deploy/", "/workspace/deploy"),
        ("deploy", "/workspace/deploy"),
        ("//etc//passwd", "/etc/passwd"),
        ("/workspace/../etc/./x", "/etc/x"),
        ("/", "/"),
    ],
)
def test_a_gated_path_has_one_form(given: str, path: str) -> None:
    assert asking.normal(Gates(write_paths=(given, given))).write_paths == (path,)


def test_gates_are_written_as_words() -> None:
    words = ["egress", "workspace", "secrets", "write=deploy", "command=rm", "command=a=b"]
    assert asking.parse(words) == dataclasses.replace(FULL, commands=("rm", "a=b"))
    assert asking.parse([]) == Gates()
    for bad in ("", "Egress", "egress=yes", "write", "write=", "command=", "write=/a\0", "command=("):
        with pytest.raises(InvalidSpec, match="gates"):
            asking.parse([bad])


@pytest.mark.parametrize(
    "bad",
    [
        Gates(write_paths=("",)),
        Gates(write_paths=("a\0b",)),
        Gates(write_paths=("x" * 5000,)),
        Gates(write_paths=tuple(map(str, range(65)))),
        Gates(commands=tuple(map(str, range(65)))),
        Gates(commands=("(",)),
        Gates(commands=("",)),
        Gates(commands=(r"(a)\1",)),
        Gates(commands=("(?=a)",)),
        Gates(commands=("a" * 513,)),
        Gates(commands=("((((a{100}){100}){100}){100})",)),
    ],
)
def test_gates_that_mean_nothing_are_refused_by_name(bad: Gates) -> None:
    with pytest.raises(InvalidSpec, match=r"gates\."):
        asking.normal(bad)
    asking.normal(FULL)


@pytest.mark.parametrize(
    ("path", "is_held", "takes_along"),
    [
        ("/workspace/deploy", True, True),
        ("/workspace/deploy/app", True, True),
        ("deploy/app", True, True),
        ("./deploy//app", True, True),
        ("//workspace/deploy/app", True, True),
        ("other/../deploy/app", True, True),
        ("/tmp/../workspace/deploy", True, True),
        ("/workspace", False, True),
        ("/", False, True),
        ("..", False, True),
        ("deploy2", False, False),
        ("deploy/../other", False, False),
        ("/deploy", False, False),
        ("other", False, False),
        ("bad\udcff/deploy", False, False),
    ],
)
def test_letters_alone_say_whether_a_path_is_gated(path: str, is_held: bool, takes_along: bool) -> None:
    assert asking.is_held(FULL, path) is is_held
    assert asking.is_held(FULL, path, above=True) is takes_along
    assert not asking.is_held(Gates(), path, above=True)


def test_the_top_as_a_gate_holds_everything() -> None:
    for path in ("/", "/etc/x", "x"):
        assert asking.is_held(Gates(write_paths=("/",)), path)


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        (("a.b",), ("a.b",), ()),
        (("a.b", "c.d"), ("a.b",), ()),
        (("a.b",), (), ()),
        (("a.b",), ("a.b", "!c.d"), ()),
        (("a.b",), ("a.b", "c.d"), ("c.d",)),
        (("a.b",), ("c.d", "e.f:22"), ("c.d", "e.f:22")),
        (("a.b", "!c.d"), ("a.b",), ("c.d (until now denied)",)),
        (("*.b",), ("*.b", "a.b"), ("a.b",)),
    ],
)
def test_a_list_widens_by_what_is_added_and_by_denials_that_go(
    old: tuple[str, ...], new: tuple[str, ...], wider: tuple[str, ...]
) -> None:
    assert asking.widened(SessionSpec(allowed_hosts=old), SessionSpec(allowed_hosts=new)) == wider


def test_the_open_network_is_wider_than_any_list() -> None:
    opened = SessionSpec(network=EgressMode.OPEN)
    assert asking.widened(SessionSpec(), opened) == ("the open network",)
    assert asking.widened(opened, opened) == ()


@pytest.mark.parametrize(
    ("what", "is_found"),
    [
        (Shell("rm x"), True),
        (Shell("ls"), False),
        (Argv(("r", "m")), False),
        (Argv(("rm", "-rf")), True),
        (Code(Language.PYTHON, "'rm'"), True),
        (Shell("\udcffrm\udcfe"), True),
        (Shell("r''m"), False),  # what advisory means
    ],
)
def test_a_pattern_is_searched_in_the_text_of_a_command(what: Argv | Shell | Code, is_found: bool) -> None:
    command = Command(what=what)
    assert asking.command_match(FULL, command) == ("rm" if is_found else "")
    assert asking.command_match(Gates(), command) == ""


def test_questions_say_what_they_are_about() -> None:
    assert asking.hosts_action(["a.b", "c.d"]) == "let the session reach a.b, c.d"
    assert asking.workspace_action("t") == "delete the workspace of tenant t with all its files"
    assert asking.file_action("remove", ["x"], []) == "remove x"
    assert asking.file_action("remove", ["x"], ["/workspace/x"]) == "remove x"
    assert asking.file_action("move", ["x", "y"], ["/workspace/deploy"]) == "move x to y, which is /workspace/deploy"
    ref = SecretRef(secret_name="s", key="value", env_var="TOKEN")
    assert asking.creation_action(tenant="", hosts=[], secrets=[]) == ""
    assert asking.creation_action(tenant="t", hosts=["a.b"], secrets=[ref]) == (
        "create a session of tenant t that may reach a.b and that sees s:value as TOKEN"
    )
    assert asking.write_action("l/f", ["/workspace/deploy/f"], size=3, sha256="d", append=False, perm=None) == (
        "write 3 bytes to l/f, which is /workspace/deploy/f (sha256 d)"
    )
    command = Command(what=Code(Language.PYTHON, "import os\nos.remove"), user="me")
    assert asking.command_action("rem", command) == (
        r"run the python program as me in /workspace, which matches rem: import os\nos.remove"
    )


def test_a_long_text_is_shown_by_its_beginning_and_known_by_its_digest() -> None:
    text = "rm " + "x" * 10**6
    action = asking.command_action("rm", Command(what=Shell(text)))
    assert hashlib.sha256(text.encode()).hexdigest() in action
    assert f"{len(text)} bytes" in action
    hosts = [f"{number:03}.{'x' * 200}.example" for number in range(256)]
    assert hashlib.sha256(", ".join(hosts).encode()).hexdigest() in asking.hosts_action(hosts)
    paths = ["x" * 4000 + end for end in "ab"]
    assert asking.file_action("remove", paths[:1], []) != asking.file_action("remove", paths[1:], [])


ANY = st.text(st.characters(), max_size=50)
"""Also what no UTF-8 can hold: bytes of Linux are such text."""


@given(ANY, ANY, st.integers(1, 500))
def test_no_text_from_outside_makes_a_question_that_shows_something_else(one: str, two: str, times: int) -> None:
    one, two = one * times, two * times
    refs = [SecretRef(secret_name=one, key=two, env_var="E")] * 3
    for action in (
        asking.file_action("move", [one, two], [two]),
        asking.write_action(one, [two], size=1, sha256="0" * 64, append=True, perm=0o777),
        asking.command_action(one, Command(what=Shell(two), cwd=one, user=two)),
        asking.workspace_action(one),
        asking.creation_action(tenant=two, hosts=[one], secrets=refs),
    ):
        assert check_text(action, field="action") == action
        assert len(action.encode()) <= MAX_TEXT_BYTES
        assert "\n" not in action
        assert not any(unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"} for char in action)
