"""Entry and skill for one agent: every byte of the user's stays, nobody sees half a file, and all of it can go again."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from k8e.errors import Conflict, HostUnsupported, InvalidSpec
from k8e.skills import SKILL
from k8e.skills.agents import AGENTS, Surroundings
from k8e.skills.entry import Address, Command, Entry
from k8e.skills.files import BACKUP, alone, original, replace
from k8e.skills.installing import Options, Report, install, uninstall

ENTRY = Command(("k8e",))
LISTENING = Address("http://127.0.0.1:8811/mcp")
FILES = {"SKILL.md": b"words"}
JSON = (
    '\ufeff{\r\n\t// mine\r\n\t"theme": "dark", /* x */\r\n\t"mcpServers": {\r\n\t\t"a": {"url": "u"},\r\n\t},\r\n}\r\n'
)
JSON5 = "{\n  // mine\n  mcp: { servers: { a: {url: 'u'} } },\n}\n"
TOML = "# mine\nmodel = 'o' # x\r\n\n[mcp_servers.a]\ncommand = 'b'"


class World:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.here = Surroundings(home=home, workspace=home, environ={}, exists=Path.exists)

    def config(self, agent: str) -> Path:
        return AGENTS[agent].place(self.here).config

    def write(self, agent: str, text: str) -> Path:
        path = self.config(agent)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def install(self, agent: str, entry: Entry | None = ENTRY, **options: bool) -> Report:
        return _raised(install(AGENTS[agent], self.here, entry, FILES, Options(**options)))

    def uninstall(self, agent: str, **options: bool) -> Report:
        return _raised(uninstall(AGENTS[agent], self.here, Options(**options)))

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(self.home.rglob("*")) if path.is_file()}


def _raised(report: Report) -> Report:
    if report.error:
        raise report.error
    return report


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def actions(report: Report) -> list[str]:
    return [step.action for step in report.steps]


def text_for(agent: str) -> str:
    return {"codex": TOML, "openclaw": JSON5}.get(agent, JSON)


@pytest.mark.parametrize("agent", AGENTS)
def test_install_twice_then_uninstall_gives_back_every_byte(world: World, agent: str) -> None:
    path = world.write(agent, text_for(agent))
    before = world.files()
    first = world.install(agent)
    assert actions(first) == ["added", "added"]
    assert first.steps[0].backup == Path(f"{path}{BACKUP}")
    assert Path(f"{path}{BACKUP}").read_bytes() == before[str(path)]
    installed = world.files()
    assert actions(world.install(agent)) == ["unchanged", "unchanged"]
    assert world.files() == installed
    assert actions(world.uninstall(agent)) == ["removed", "removed"]
    assert world.files() == before
    assert actions(world.uninstall(agent)) == ["absent", "absent"]


@pytest.mark.parametrize("agent", AGENTS)
def test_where_nothing_was_nothing_is_left(world: World, agent: str) -> None:
    assert actions(world.install(agent)) == ["added", "added"]
    assert world.config(agent).is_file()
    assert stat.S_IMODE(world.config(agent).stat().st_mode) == 0o600
    assert actions(world.install(agent, LISTENING)) == ["updated", "unchanged"]
    assert actions(world.uninstall(agent)) == ["removed", "removed"]
    assert list(world.home.iterdir()) == []


@pytest.mark.parametrize("agent", AGENTS)
def test_a_dry_run_shows_the_change_and_makes_none(world: World, agent: str) -> None:
    world.write(agent, text_for(agent))
    before = world.files()
    shown = world.install(agent, is_dry=True)
    assert actions(shown) == ["added", "added"]
    assert "+++ " in shown.steps[0].diff
    assert "sandbox-mcp" in shown.steps[0].diff
    assert world.files() == before
    world.install(agent)
    installed = world.files()
    assert actions(world.uninstall(agent, is_dry=True)) == ["removed", "removed"]
    assert world.files() == installed


def test_a_second_change_keeps_the_backup_from_before_the_first(world: World) -> None:
    path = world.write("claude", JSON)
    world.install("claude")
    done = world.install("claude", LISTENING)
    assert actions(done) == ["updated", "unchanged"]
    assert original(Path(f"{path}{BACKUP}")).data == JSON.encode()
    world.uninstall("claude")
    assert world.files() == {str(path): JSON.encode()}


def test_other_changes_since_then_stay_when_the_entry_goes(world: World) -> None:
    path = world.write("claude", JSON)
    world.install("claude")
    path.write_bytes(path.read_bytes().replace(b"dark", b"light"))
    done = world.uninstall("claude")
    assert done.steps[0].backup == Path(f"{path}{BACKUP}")
    assert path.read_bytes() == JSON.encode().replace(b"dark", b"light")


OWN = '{"mcpServers": {"k8e-sandbox": {"command": "k8e", "args": ["sandbox-mcp"], "env": {"A": "b"}, "n": 1}}}'


def test_an_entry_of_the_users_own_stays_unless_forced(world: World) -> None:
    path = world.write("cursor", OWN)
    done = world.install("cursor")
    assert (actions(done), done.is_done) == (["kept", "added"], False)
    assert "--force" in done.steps[0].detail
    assert path.read_text() == OWN
    assert actions(world.uninstall("cursor")) == ["kept", "removed"]
    assert path.read_text() == OWN
    assert actions(world.install("cursor", force=True)) == ["updated", "added"]
    assert "env" not in path.read_text()
    assert Path(f"{path}{BACKUP}").read_text() == OWN


def test_an_entry_of_the_users_own_is_removed_by_force(world: World) -> None:
    path = world.write("cursor", OWN)
    assert actions(world.uninstall("cursor", force=True)) == ["removed", "absent"]
    assert path.read_text() == '{"mcpServers": {}}'


@pytest.mark.parametrize(
    ("agent", "text", "part"),
    [
        ("cursor", '{\n  "mcpServers": {\n    "a": }\n}', "line 3, column 10: a value is expected"),
        ("claude", "{'a': 1}", "line 1, column 2: a key in quotes"),
        ("gemini", '{"mcpServers": []}', "line 1, column 16: 'mcpServers' is no object"),
        ("openclaw", "{mcp: 1}", "line 1, column 7: 'mcp' is no object"),
        ("codex", "a = 1\nb = \n", "line 2, column 5: Invalid value"),
        ("codex", "mcp_servers = {}\n", "edit it by hand"),
        ("kiro", "\ud800", "is not UTF-8"),
    ],
)
def test_a_broken_config_is_refused_with_its_place_and_nothing_is_touched(
    world: World, agent: str, text: str, part: str
) -> None:
    path = world.config(agent)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    before = world.files()
    with pytest.raises(InvalidSpec) as refused:
        world.install(agent)
    assert part in str(refused.value)
    assert str(path) in str(refused.value)
    assert world.files() == before


def test_only_the_skill_is_installed_where_only_it_is_wanted(world: World) -> None:
    assert actions(world.install("claude", None)) == ["added"]
    assert not world.config("claude").exists()
    assert actions(world.uninstall("claude")) == ["absent", "removed"]
    assert list(world.home.iterdir()) == []


def test_what_was_done_before_something_went_wrong_is_told(world: World) -> None:
    (world.home / ".cursor").mkdir()
    (world.home / ".cursor" / "skills").write_text("no directory")
    report = install(AGENTS["cursor"], world.here, ENTRY, FILES, Options())
    assert actions(report) == ["added"]
    assert isinstance(report.error, HostUnsupported)
    assert not report.is_done


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_link_stays_a_link_and_its_file_keeps_mode_and_owner(world: World) -> None:
    real = world.home / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text("{}")
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 1234, 2345)
    facts = real.stat()
    world.config("claude").symlink_to(real)
    world.install("claude")
    assert world.config("claude").is_symlink()
    assert "sandbox-mcp" in real.read_text()
    now, backup = real.stat(), Path(f"{world.config('claude')}{BACKUP}").stat()
    for each in (now, backup):
        assert (each.st_mode, each.st_uid, each.st_gid) == (facts.st_mode, facts.st_uid, facts.st_gid)


def test_a_link_to_nothing_yet_is_followed(world: World) -> None:
    world.config("claude").symlink_to(world.home / "later" / "claude.json")
    assert actions(world.install("claude")) == ["added", "added"]
    assert "sandbox-mcp" in (world.home / "later" / "claude.json").read_text()
    world.uninstall("claude")
    assert world.config("claude").is_symlink()


def test_a_directory_where_the_config_should_be_is_an_error_in_words(world: World) -> None:
    world.config("cursor").mkdir(parents=True)
    with pytest.raises(HostUnsupported, match=r"mcp\.json"):
        world.install("cursor")


def test_a_change_by_somebody_else_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("1")
    before = original(path)
    replace(before, b"2")  # the control: nobody else was there
    with pytest.raises(Conflict, match="changed by somebody else"):
        replace(before, b"3")
    assert path.read_text() == "2"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_file_or_the_new_one_and_nothing_else(world: World) -> None:
    path = world.write("claude", JSON)
    seen: set[bytes] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(30):
            world.install("claude")
            new = path.read_bytes()
            world.uninstall("claude")
    finally:
        over.set()
        reader.join()
    assert new != JSON.encode()
    assert seen <= {JSON.encode(), new}


def test_the_second_of_two_waits_for_the_first(tmp_path: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    def second() -> None:
        with alone(tmp_path):
            inside.set()
        done.set()

    with alone(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        assert not inside.wait(0.1)
    assert done.wait(60)
    thread.join()


def test_many_at_once_leave_one_whole_entry(world: World) -> None:
    world.write("claude", JSON)
    code = (
        "import sys; from pathlib import Path; from tests.unit.skills.test_installing import World\n"
        "w = World(Path(sys.argv[1])); print(*[s.action for s in w.install('claude').steps])"
    )
    root = Path(__file__).resolve().parents[3]
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(world.home)], cwd=root, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    said = [process.communicate(timeout=60)[0].split() for process in started]
    assert [process.returncode for process in started] == [0] * 6
    assert sorted(each[0] for each in said) == ["added", *["unchanged"] * 5]
    assert world.config("claude").read_bytes().count(b"sandbox-mcp") == 1
    world.uninstall("claude")
    assert world.files() == {str(world.config("claude")): JSON.encode()}


def test_the_skill_folder_is_where_the_agent_looks(world: World) -> None:
    world.install("kiro")
    assert (world.home / ".kiro" / "skills" / SKILL / "SKILL.md").read_bytes() == b"words"
