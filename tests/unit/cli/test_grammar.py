"""The tree of commands: complete, teaching, forgiving, and cheap to load."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from k8e.cli.grammar import SANDBOX, TOP, first_word, full_parser
from k8e.cli.main import loaded, main
from k8e.cli.mistakes import worded

HEAVY = {"argparse", "asyncio", "dataclasses", "google.protobuf", "grpc", "json", "pathlib", "typing"}
COMMANDS = [["sandbox", name] for name in SANDBOX] + [[name] for name in TOP]
ACTIONS = [
    ["sandbox", "workspaces", "list"],
    ["sandbox", "workspaces", "delete", "t"],
    ["sandbox", "profile", "use", "x"],
    ["sandbox", "profile", "add", "x", "h:1"],
    ["sandbox", "profile", "remove", "x"],
    ["secret", "set", "x"],
    ["secret", "list"],
    ["secret", "delete", "x"],
    ["server", "status"],
    ["server", "stop"],
]
ARGUMENTS = {
    "run": ["x"],
    "read": ["s", "p"],
    "write": ["s", "p"],
    "cp": ["a", "s:b"],
    "confirm": ["s", "x"],
    "completion": ["bash"],
    "forward": ["8000"],
    "profile": ["list"],
    "workspaces": ["list"],
    "secret": ["list"],
    "sandbox-apikey": ["list"],
    "audit": ["verify"],
}
ALONE = {
    "runs",
    "sessions",
    "create",
    "status",
    "allow-hosts",
    "top",
    "approvals",
    "whoami",
    "connect",
    "login",
    "benchmark",
    "doctor",
}


def completed(words: list[str]) -> list[str]:
    """The command with arguments that it takes."""
    if words in ACTIONS:
        return words
    alone = words[0] != "sandbox" or words[-1] in {*ALONE, "catalog"}
    return [*words, *ARGUMENTS.get(words[-1], [] if alone else ["x"])]


@pytest.mark.parametrize("words", [[], ["sandbox"], *COMMANDS], ids=" ".join)
def test_help_has_examples_at_every_level(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"], prog="k8e")
    assert ended.value.code == 0
    assert capsys.readouterr().out.count("k8e " + " ".join(words)) >= 2  # the usage, and an example at least


@pytest.mark.parametrize("words", [*COMMANDS, *ACTIONS], ids=" ".join)
def test_every_command_leads_to_a_function(words: list[str]) -> None:
    typed = completed(words)
    args = full_parser(typed).parse_args(typed)
    assert callable(loaded(args.local if hasattr(args, "local") else args.handler))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["sandbox", "rum"], "did you mean 'run'?"),
        (["sandbox", "run", "--lnag", "python", "x"], "unknown: --lnag x; did you mean --lang?"),
        (["sandbox", "run", "-raw", "x"], "unknown: -raw; did you mean --raw?"),
        (["sandbox", "create", "--memory=1024"], "unknown: --memory=1024; did you mean --memory-mib?"),
        (["sandbox", "create", "--mem", "1", "--dsik-mib", "1"], "did you mean --memory-mib --disk-mib?"),
        (["sandbox", "create", "--colour", "blue"], "unknown: --colour blue; see: "),
        (["sandbox", "--endpont", "h:1", "run", "x"], "unknown: --endpont; did you mean --endpoint?"),
        (["sandbox", "sessions", "--output", "tabel"], "did you mean 'table'?"),
        (["sandbox", "allow-hosts", "--ad", "a.example"], "unknown: --ad"),  # no abbreviation, least of all here
        (["sandbox", "read", "only-one"], "missing: path; see: k8e sandbox read --help"),
        (["sandbox", "run", "--timeout", "soon", "x"], "--timeout"),
        (["sandbox", "run", "--timeout", "inf", "x"], "--timeout: invalid float value: 'inf'"),
        (["sandbox", "create", "--cpus", "nan"], "--cpus: invalid float value: 'nan'"),
        (["sandbox"], "missing: command"),
    ],
)
def test_a_mistake_is_bad_input_and_says_what_was_meant(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words, prog="k8e")
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (ended.value.code, told["error"]) == (1, "invalid request")
    assert part in told["detail"]
    assert "usage:" in said.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["sandbux"], "did you mean 'sandbox'?"),
        (["run", "true"], "did you mean 'sandbox run'?"),
        (["sesions"], "did you mean 'sandbox sessions'?"),
        (["server", "statsu"], "did you mean 'status'?"),
        (["doctor", "--fxi"], "did you mean --fix?"),
        (["doctor", "--hurry"], "unknown: --hurry; see: k8e doctor --help"),
        ([], "missing: command"),
    ],
)
def test_outside_of_sandbox_a_mistake_is_told_to_a_person(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words, prog="k8e")
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (1, "")
    assert "see: k8e" in said.err
    assert part in said.err


def test_a_choice_that_is_near_nothing_lists_them_all() -> None:
    text = "argument x: invalid choice: 'q' (choose from 'w', 'a')"
    assert worded(text, full_parser([])) == "'q' is not one of w, a"


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["run", "list"], "run"),
        (["--endpoint", "list", "run"], "run"),
        (["--endpoint=list", "run"], "run"),
        (["--help", "run"], ""),
        (["--unknown", "run"], "run"),
        ([], ""),
    ],
)
def test_the_command_is_the_first_word_that_is_no_flag_nor_its_value(words: list[str], first: str) -> None:
    assert first_word(words) == first


@pytest.mark.parametrize(
    "words", [["--help"], ["--help", "sandbox"], ["sandbox", "--help"], ["sandbox", "--help", "run"]]
)
def test_help_of_a_group_lists_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words, prog="k8e")
    shown = capsys.readouterr().out
    assert all(f"    {name}" in shown for name in (SANDBOX if words[0] == "sandbox" else TOP))


@pytest.mark.parametrize(
    ("words", "session_id", "argv"),
    [
        ([], "", []),
        (["s"], "s", []),
        (["s", "ls"], "s", ["ls"]),
        (["--", "ls", "-l", "--", "x"], "", ["ls", "-l", "--", "x"]),
        (["s", "--", "--version"], "s", ["--version"]),
        (["s", "--endpoint", "h:1", "--", "--endpoint"], "s", ["--endpoint"]),
    ],
)
def test_a_shells_command_stands_behind_the_dashes(words: list[str], session_id: str, argv: list[str]) -> None:
    typed = ["sandbox", "shell", *words]
    args = full_parser(typed).parse_args(typed)
    assert (args.session_id, args.argv) == (session_id, argv)


def test_the_endpoint_may_stand_before_or_after_the_command() -> None:
    for words in (["sandbox", "--endpoint", "h:1", "status"], ["sandbox", "status", "--endpoint", "h:1"]):
        assert full_parser(words).parse_args(words).endpoint == "h:1"


@pytest.mark.parametrize(
    ("words", "allowed"),
    [(["--version"], set()), (["sandbox", "run", "--help"], {"argparse"})],
    ids=["version", "help"],
)
def test_starting_is_quick_because_nothing_heavy_is_loaded(words: list[str], allowed: set[str]) -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom k8e.cli.main import main\n"
        f"try:\n    main({words!r}, prog='k8e')\nexcept SystemExit:\n    pass\n"
        f"print(*sorted({HEAVY!r} & (set(sys.modules) - before)), file=sys.stderr)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(said.stderr.split()) == allowed
