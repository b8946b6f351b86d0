"""What is gated, and what is asked about it: pure decisions."""

from __future__ import annotations

import dataclasses
import json
from random import Random

import pytest

from k8e.engine import gates as asking
from k8e.engine.questions import Wider
from k8e.engine.store.codec import decoder, encoded
from k8e.errors import InvalidSpec
from k8e.model import Argv, Code, Command, EgressMode, Gates, Language, SessionSpec, Shell

FULL = Gates(egress=True, write_paths=("/workspace/deploy",), workspace=True, secrets=True, commands=("rm",))


def test_a_search_that_takes_too_long_is_given_up_and_does_not_pass() -> None:
    text = "".join(Random(1).choices("ab", k=8192))
    slow = asking.normal(Gates(commands=("a(?:[ab]*a[ab]{300}c)?",)))
    with pytest.raises(InvalidSpec, match="takes too long to search"):
        asking.command_match(slow, Command(what=Shell(text)))
    found = asking.command_match(Gates(commands=("a",)), Command(what=Shell(text)))
    assert found is not None, "control: the same text and a pattern that is found as often"
    assert len(found.spans) == asking.MOST_PLACES


def test_gates_only_ever_add_up() -> None:
    other = Gates(write_paths=("/etc", "/workspace/deploy"), commands=("dd",))
    both = asking.union(FULL, Gates(), other)
    assert both == dataclasses.replace(FULL, write_paths=("/workspace/deploy", "/etc"), commands=("rm", "dd"))
    assert asking.union(other, FULL).secrets
    assert asking.union() == Gates()


def test_what_is_written_down_comes_back_and_an_old_session_has_none() -> None:
    spec = SessionSpec(gates=FULL)
    assert decoder(SessionSpec)(encoded(spec)) == spec
    old = json.loads(encoded(spec))
    del old["gates"]
    assert decoder(SessionSpec)(json.dumps(old)).gates == Gates()


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
        (("a.b",), ("a.b",), Wider()),
        (("a.b", "c.d"), ("a.b",), Wider()),
        (("a.b",), (), Wider()),
        (("a.b",), ("a.b", "!c.d"), Wider()),
        (("a.b",), ("a.b", "c.d"), Wider(added=("c.d",))),
        (("a.b",), ("c.d", "e.f:22"), Wider(added=("c.d", "e.f:22"))),
        (("a.b", "!c.d"), ("a.b",), Wider(lifted=("!c.d",))),
        (("*.b",), ("*.b", "a.b"), Wider(added=("a.b",))),
    ],
)
def test_a_list_widens_by_what_is_added_and_by_denials_that_go(
    old: tuple[str, ...], new: tuple[str, ...], wider: Wider
) -> None:
    assert asking.widened(SessionSpec(allowed_hosts=old), SessionSpec(allowed_hosts=new)) == wider


def test_the_open_network_is_wider_than_any_list() -> None:
    opened = SessionSpec(network=EgressMode.OPEN)
    assert asking.widened(SessionSpec(), opened) == Wider(opens_network=True)
    assert not asking.widened(opened, opened)


def test_an_approval_covers_what_it_named_and_no_more() -> None:
    asked = Wider(added=("a.b", "c.d"), lifted=("!e.f",))
    for less in (Wider(), Wider(added=("c.d",)), Wider(lifted=("!e.f",)), asked):
        assert less.is_within(asked)
    for more in (Wider(opens_network=True), Wider(added=("x.y",)), Wider(added=("!e.f",)), Wider(lifted=("!a.b",))):
        assert not more.is_within(asked)


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
    found = asking.command_match(FULL, command)
    assert (found.patterns if found else ()) == (("rm",) if is_found else ())
    assert asking.command_match(Gates(), command) is None
