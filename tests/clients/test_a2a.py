"""`k8e a2a` as other agents meet it: the official A2A client, a real server, real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from a2a.client import A2ACardResolver, A2AClientError, Client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import Parse
from httpx import AsyncClient, Timeout

from k8e.a2a.contexts import session_id_of
from k8e.client import AsyncSandboxClient, SandboxClient
from k8e.setup.provision import Provisioned
from tests.support.a2a_peer import Agent, Told, ask, bindings, data, peer, running, stdout, text
from tests.support.commands import Run
from tests.support.engines import RUNTIMES
from tests.support.leaks import Lend
from tests.support.ports import lasting_port
from tests.support.servers import NO_POOL, Server

SUBMITTED, WORKING = TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING
COMPLETED, FAILED = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED
CANCELED, REJECTED = TaskState.TASK_STATE_CANCELED, TaskState.TASK_STATE_REJECTED
INPUT_REQUIRED, AUTH_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED

MIB = 1024 * 1024
WAITS = """
import os, time
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("gone")
"""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def agent(server: Server) -> Iterator[Agent]:
    with running(server.environ) as agent:
        yield agent


@pytest.fixture
async def caller(agent: Agent, tidy: None) -> AsyncIterator[Client]:
    async with peer(agent.url) as caller:
        yield caller


@pytest.fixture
async def plain(agent: Agent, tidy: None) -> AsyncIterator[Client]:
    """One that does not stream, and so can be answered before a task is over."""
    async with peer(agent.url, streaming=False) as plain:
        yield plain


@pytest.fixture
def context() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def port() -> Iterator[int]:
    """Free each time that a server comes back."""
    with lasting_port() as port:
        yield port


@pytest.fixture
async def sdk(server: Server) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(target=server.target()) as sdk:
        yield sdk


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_the_card_is_everybodys_and_says_what_is_true(agent: Agent) -> None:
    async with AsyncClient(timeout=PATIENCE_S) as http:
        card = await A2ACardResolver(http, agent.url).get_agent_card()
    assert {(each.protocol_binding, each.protocol_version) for each in card.supported_interfaces} == set(bindings)
    assert {each.url for each in card.supported_interfaces} == {f"{agent.url}/a2a"}
    assert card.capabilities.streaming
    assert not card.capabilities.push_notifications
    assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "bearer"
    assert [each.id for each in card.skills] == ["run-code", "shell", "files"]


@pytest.mark.parametrize(("binding", "version"), bindings)
@pytest.mark.parametrize("streaming", [True, False])
async def test_every_binding_of_every_version_runs_a_program(
    agent: Agent, tidy: None, binding: str, version: str, streaming: bool
) -> None:
    program = "import sys\nprint(6 * 7)\nprint('oh', file=sys.stderr)\nopen('plot.png', 'wb').write(b'\\x89PNG')\n"
    async with peer(agent.url, binding=binding, version=version, streaming=streaming) as client:
        told = await Told.asked(client, ask(text(f"Please run\n```python\n{program}```")))
        assert told.states[-1] == COMPLETED
        assert (told.text(), told.text("stderr")) == ("42\n", "oh\n")
        assert (told.result["exit_code"], told.result["status"]) == (0, "completed")
        picture = told.artifacts["file:plot.png"][0]
        assert (picture.raw, picture.media_type, picture.filename) == (b"\x89PNG", "image/png", "plot.png")
        if streaming:
            assert told.states == [SUBMITTED, WORKING, COMPLETED]
            assert told.ended == {"stdout", "stderr", "file:plot.png", "result"}
        again = await Told.got(client, told.task_id)
        assert (again.text(), again.result["session_id"]) == ("42\n", session_id_of(told.context_id))


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (data({"code": "console.log([1, 2].length)", "language": "node"}), "2\n"),
        (data({"code": "for i in {1..3}; do echo -n $i; done", "language": "bash"}), "123"),
        (data({"command": "echo $A; pwd", "env": {"A": "b"}, "workdir": "/tmp"}), "b\n/tmp\n"),
        (text("$ echo one\n$ echo two"), "one\ntwo\n"),
        (text("```sh\necho first\n```\nand then\n```python\nprint('second')\n```"), "first\nsecond\n"),
    ],
)
async def test_each_way_to_ask_does_what_the_card_says(caller: Client, part: Part, wanted: str) -> None:
    told = await Told.asked(caller, ask(part))
    assert (told.states[-1], told.text()) == (COMPLETED, wanted)


async def test_output_is_told_while_the_program_runs(caller: Client, context: str) -> None:
    told, tellings = Told(), 0
    async for event in caller.send_message(ask(data({"code": WAITS}), context=context)):
        told.hear(event)
        if told.text() == "ready\n" and not tellings:
            tellings += 1
            assert await stdout(caller, "touch go; echo told", context) == "told\n"
    assert (told.text(), told.states[-1]) == ("ready\ngone\n", COMPLETED)


async def test_a_program_that_fails_is_a_failed_task_with_all_it_had_to_say(caller: Client) -> None:
    told = await Told.asked(caller, ask(text("```sh\necho out; echo err >&2; exit 3\n```\n```sh\necho never\n```")))
    assert (told.states[-1], told.words) == (FAILED, ["exit code 3"])
    assert (told.text(), told.text("stderr")) == ("out\n", "err\n")
    assert (told.result["exit_code"], told.result["step"], told.result["steps"]) == (3, 1, 2)


async def test_a_program_that_takes_too_long_is_killed_and_says_so(caller: Client) -> None:
    # Long enough for a busy machine to begin it.
    told = await Told.asked(caller, ask(data({"command": "echo begun; sleep 600", "timeout": 5})))
    assert (told.states[-1], told.text()) == (FAILED, "begun\n")
    assert (told.result["status"], told.result["exit_code"]) == ("timed_out", 124)
    assert "timed out after 5 s" in told.words[-1]


async def test_prose_is_asked_about_and_the_answer_goes_on_with_the_task(caller: Client, context: str) -> None:
    assert await stdout(caller, "touch old; ls", context) == "old\n"
    unclear = await Told.asked(caller, ask(text("rm old"), context=context))
    assert unclear.states == [INPUT_REQUIRED]
    assert "```python" in unclear.words[0]
    assert await stdout(caller, "ls", context) == "old\n"
    told = await Told.asked(caller, ask(text("$ rm old; echo removed"), task=unclear.task_id))
    assert (told.task_id, told.states[-1], told.text()) == (unclear.task_id, COMPLETED, "removed\n")
    with pytest.raises(UnsupportedOperationError):
        await Told.asked(caller, ask(text("$ echo more"), task=unclear.task_id))


async def test_a_context_keeps_its_sandbox_and_shares_it_with_no_other(
    caller: Client, sdk: AsyncSandboxClient, context: str
) -> None:
    await stdout(caller, "echo mine > note; pip --version > /dev/null", context)
    assert await stdout(caller, "cat note", context) == "mine\n"
    assert (
        await stdout(caller, "cat note 2>&1 || echo none", str(uuid.uuid4()))
        == "cat: note: No such file or directory\nnone\n"
    )
    kept = await sdk.get(session_id_of(context))
    assert (kept.limits.idle_timeout_s, kept.idle_at > 0) == (900.0, True)


async def test_a_context_whose_sandbox_is_gone_gets_a_new_one_and_is_told(
    caller: Client, sdk: AsyncSandboxClient, context: str
) -> None:
    await stdout(caller, "touch note", context)
    await sdk.destroy_session(session_id_of(context))
    told = await Told.asked(caller, ask(data({"command": "ls; echo works"}), context=context))
    assert (told.text(), told.result["session_recreated"]) == ("works\n", True)
    told = await Told.asked(caller, ask(data({"command": "echo still"}), context=context))
    assert (told.text(), "session_recreated" in told.result) == ("still\n", False)


async def test_what_is_not_found_inside_a_sandbox_costs_nobody_the_sandbox(caller: Client, context: str) -> None:
    await stdout(caller, "echo kept > note; touch file", context)
    told = await Told.asked(caller, ask(Part(raw=b"x", filename="file/below"), text("$ echo ran"), context=context))
    assert (told.states[-1], told.text()) == (FAILED, "")
    told = await Told.asked(caller, ask(data({"command": "echo ran", "workdir": "/none"}), context=context))
    assert (told.states[-1], told.text()) == (FAILED, "")
    assert await stdout(caller, "cat note", context) == "kept\n"


async def test_how_a_program_ended_is_told_also_when_its_sandbox_went_with_it(
    caller: Client, sdk: AsyncSandboxClient, context: str
) -> None:
    told, ended = Told(), 0
    async for event in caller.send_message(ask(data({"command": "echo begun; sleep 600"}), context=context)):
        told.hear(event)
        if told.text() and not ended:
            ended += 1
            await sdk.destroy_session(session_id_of(context))
    assert (told.states[-1], told.text()) == (FAILED, "begun\n")
    assert await stdout(caller, "echo next", context) == "next\n"


async def test_files_come_with_a_message_and_go_back_on_request(caller: Client, context: str) -> None:
    content = bytes(range(256)) * 16
    file = Part(raw=content, filename="in/data.bin", media_type="application/octet-stream")
    told = await Told.asked(
        caller, ask(file, text("```python\nprint(len(open('in/data.bin','rb').read()))\n```"), context=context)
    )
    assert (told.text(), told.result["uploaded"]) == ("4096\n", ["/workspace/in/data.bin"])
    assert "file:in/data.bin" not in told.artifacts
    told = await Told.asked(caller, ask(data({"read": "in/data.bin"}), context=context))
    assert (told.states[-1], told.artifacts["file:in/data.bin"][0].raw) == (COMPLETED, content)
    told = await Told.asked(caller, ask(data({"read": "in/none"}), context=context))
    assert (told.states[-1], "in/none" in told.words[-1]) == (FAILED, True)


async def test_files_of_a_message_without_code_are_only_written(caller: Client, context: str) -> None:
    told = await Told.asked(caller, ask(Part(raw=b"a,b\n", filename="t.csv"), context=context))
    assert (told.states[-1], told.result["uploaded"]) == (COMPLETED, ["/workspace/t.csv"])
    assert await stdout(caller, "cat t.csv", context) == "a,b\n"


async def test_files_that_a_run_wrote_are_bounded_and_the_rest_is_named(caller: Client, context: str) -> None:
    program = (
        "for i in range(20): open(f'f{i:02}', 'w').write('x')\n"
        "open('a-big.bin', 'wb').truncate(5 << 20)\nimport os; os.symlink('/etc/passwd', 'link')"
    )
    told = await Told.asked(caller, ask(data({"code": program}), context=context))
    attached = [name for name in told.artifacts if name.startswith("file:")]
    assert len(attached) == 16
    named = {each["path"]: each["attached"] for each in told.result["files"]}
    assert len(named) == 21
    assert named["/workspace/a-big.bin"] is False
    assert sum(named.values()) == 16


async def test_cancelling_kills_the_command(caller: Client, sdk: AsyncSandboxClient, context: str) -> None:
    told = Told()

    async def sleeps() -> bool:
        return "sleep" in {each.comm for each in await sdk.processes(session_id_of(context))}

    async for event in caller.send_message(ask(data({"command": "echo begun; sleep 600"}), context=context)):
        told.hear(event)
        if told.text() and told.states[-1] == WORKING:
            await until(sleeps)
            canceled = await caller.cancel_task(CancelTaskRequest(id=told.task_id))
            assert canceled.status.state == CANCELED
            break
    assert (await Told.got(caller, told.task_id)).text() == "begun\n"

    async def is_quiet() -> bool:
        return not await sleeps()

    await until(is_quiet)
    with pytest.raises(TaskNotCancelableError):
        await caller.cancel_task(CancelTaskRequest(id=told.task_id))


@pytest.mark.parametrize("path", ["/a2a", "/a2a/message:stream"])
async def test_a_stream_shows_that_it_lives_while_the_program_says_nothing(
    agent: Agent, plain: Client, context: str, path: str
) -> None:
    message = {
        "messageId": str(uuid.uuid4()),
        "role": "ROLE_USER",
        "contextId": context,
        "parts": [{"data": {"command": "until [ -e go ]; do sleep 0.05; done; echo said"}}],
    }
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    content = call if path == "/a2a" else {"message": message}
    async with (
        # Patient, but not as patient as the library itself, which shows something every 15 s.
        AsyncClient(base_url=agent.url, headers={"a2a-version": "1.0"}, timeout=Timeout(PATIENCE_S, read=12)) as http,
        http.stream("POST", path, json=content) as answer,
    ):
        pings, events = 0, ""
        async for line in answer.aiter_lines():
            pings += line.startswith(":")
            events += line if line.startswith("data:") else ""
            # It would wait for ever, and so would we, if nothing came by itself.
            if line.startswith(":") and pings == 2:
                await stdout(plain, "touch go", context)
    assert pings >= 2
    assert "said" in events


@pytest.mark.parametrize(("binding", "version"), bindings)
async def test_a_task_goes_on_without_its_listener_and_can_be_heard_again(
    agent: Agent, tidy: None, context: str, binding: str, version: str
) -> None:
    first = Told()
    async with peer(agent.url, binding=binding, version=version) as lost:
        async for event in lost.send_message(ask(data({"code": WAITS}), context=context)):
            first.hear(event)
            if first.text():
                break
    second = Told()
    async with peer(agent.url, binding=binding, version=version) as caller:
        async for event in caller.subscribe(SubscribeToTaskRequest(id=first.task_id)):
            second.hear(event)
            if second.events == 1:
                assert second.text() == "ready\n"
                await stdout(caller, "touch go", context)
        assert (second.states[-1], second.text()) == (COMPLETED, "ready\ngone\n")
        with pytest.raises((UnsupportedOperationError, A2AClientError)):
            [_ async for _ in caller.subscribe(SubscribeToTaskRequest(id=first.task_id))]


async def test_a_message_can_be_left_to_itself_and_looked_at_later(plain: Client) -> None:
    told = await Told.asked(plain, ask(data({"command": "echo done"}), at_once=True))

    async def is_done() -> bool:
        return (await Told.got(plain, told.task_id)).states == [COMPLETED]

    await until(is_done)
    assert (await Told.got(plain, told.task_id)).text() == "done\n"


async def test_ten_mebibytes_come_through_and_more_is_cut_and_said(caller: Client, context: str) -> None:
    program = "import sys\nfor i in range({n}): sys.stdout.write('x' * 1048575 + '\\n')"
    whole = await Told.asked(caller, ask(data({"code": program.format(n=10)}), context=context))
    assert (whole.states[-1], len(whole.text()), whole.result["truncated"]) == (COMPLETED, 10 * MIB, False)
    cut = await Told.asked(caller, ask(data({"code": program.format(n=12)}), context=context))
    assert (cut.states[-1], len(cut.text()), cut.result["truncated"]) == (COMPLETED, 10 * MIB, True)
    assert len((await Told.got(caller, cut.task_id)).text()) == 10 * MIB


async def test_a_reader_that_is_slow_gets_everything_and_slows_nobody(agent: Agent, plain: Client) -> None:
    program = "import sys\nfor i in range(8): sys.stdout.write(str(i) * 1048576)"
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": {"code": program}}]}
    told = Told()
    async with (
        AsyncClient(base_url=agent.url, timeout=PATIENCE_S, headers={"a2a-version": "1.0"}) as http,
        http.stream("POST", "/a2a/message:stream", json={"message": message}) as answer,
    ):
        lines = (line[6:] async for line in answer.aiter_lines() if line.startswith("data: "))
        told.hear(Parse(await anext(lines), StreamResponse()))

        async def is_done() -> bool:
            return (await Told.got(plain, told.task_id)).states == [COMPLETED]

        # It is over while nobody has read more than its first event.
        await until(is_done)
        async for line in lines:
            told.hear(Parse(line, StreamResponse()))
    assert (told.states[-1], told.text()) == (COMPLETED, "".join(str(i) * MIB for i in range(8)))


async def test_ten_thousand_lines_arrive_in_order_and_in_far_fewer_events(caller: Client) -> None:
    told = await Told.asked(caller, ask(data({"code": "for i in range(10000): print(i, flush=True)"})))
    assert told.text() == "".join(f"{number}\n" for number in range(10000))
    assert told.events < 5000


async def test_output_that_is_no_text_is_replaced_and_breaks_nothing(caller: Client) -> None:
    told = await Told.asked(caller, ask(data({"code": "import sys; sys.stdout.buffer.write(b'a\\xff\\xe2\\x82')"})))
    assert (told.states[-1], told.text()) == (COMPLETED, "a��")


async def test_tasks_are_listed_page_by_page(caller: Client, context: str) -> None:
    made = {(await Told.asked(caller, ask(data({"command": "echo x"}), context=context))).task_id for _ in range(3)}
    page = await caller.list_tasks(ListTasksRequest(context_id=context, page_size=2))
    rest = await caller.list_tasks(ListTasksRequest(context_id=context, page_size=2, page_token=page.next_page_token))
    assert (page.total_size, len(page.tasks), len(rest.tasks), rest.next_page_token) == (3, 2, 1, "")
    assert {task.id for task in (*page.tasks, *rest.tasks)} == made
    assert not any(task.artifacts for task in page.tasks)
    full = await caller.list_tasks(ListTasksRequest(context_id=context, include_artifacts=True))
    assert all(Told.all(task).text() == "x\n" for task in full.tasks)


async def test_nothing_is_ever_pushed_to_an_address(caller: Client) -> None:
    told = await Told.asked(caller, ask(data({"command": "true"})))
    with pytest.raises(PushNotificationNotSupportedError):
        await caller.create_task_push_notification_config(
            TaskPushNotificationConfig(task_id=told.task_id, url="http://169.254.169.254/")
        )
    request = ask(data({"command": "true"}))
    request.configuration.task_push_notification_config.url = "http://127.0.0.1:1/"
    with pytest.raises(PushNotificationNotSupportedError):
        await Told.asked(caller, request)


async def test_only_so_many_tasks_of_one_owner_run_at_a_time(plain: Client, context: str) -> None:
    unclear = await Told.asked(plain, ask(text("what can you do?"), context=context))
    sleeping = [
        (await Told.asked(plain, ask(data({"command": "sleep 600"}), context=context, at_once=True))).task_id
        for _ in range(16)
    ]
    told = await Told.asked(plain, ask(data({"command": "echo no"}), context=context))
    assert (told.states[-1], "cancel" in told.words[-1]) == (REJECTED, True)
    with pytest.raises(UnsupportedOperationError, match="run already"):
        await Told.asked(plain, ask(text("$ echo no"), task=unclear.task_id))
    for task_id in sleeping:
        await plain.cancel_task(CancelTaskRequest(id=task_id))
    assert await stdout(plain, "echo again", context) == "again\n"
    assert (await Told.asked(plain, ask(text("$ echo yes"), task=unclear.task_id))).text() == "yes\n"


@pytest.fixture
def keys(server: Server) -> Iterator[dict[str, str]]:
    """Two people with a key each; what they made is gone afterwards."""
    names = [f"a2a-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    with SandboxClient(target=server.target()) as admin:
        made = {name: admin.create_api_key(name, owner=name).key for name in names}
        yield dict(zip(("mine", "theirs"), made.values(), strict=True))
        for name, key in made.items():
            with SandboxClient(target=dataclasses.replace(server.target(), api_key=key)) as someone:
                for session in someone.sessions("all"):
                    someone.destroy_session(session.session_id)
            admin.delete_api_key(name)


async def test_a_task_and_a_context_are_their_owners_alone(agent: Agent, keys: dict[str, str], context: str) -> None:
    mine_key, their_key = keys["mine"], keys["theirs"]
    async with peer(agent.url, key=mine_key, streaming=False) as mine, peer(agent.url, key=their_key) as theirs:
        made = await Told.asked(mine, ask(data({"command": "echo secret | tee note"}), context=context))
        open_one = await Told.asked(mine, ask(data({"command": "sleep 600"}), context=context, at_once=True))
        for task_id in (made.task_id, open_one.task_id, str(uuid.uuid4())):
            with pytest.raises(TaskNotFoundError):
                await theirs.get_task(GetTaskRequest(id=task_id))
            with pytest.raises(TaskNotFoundError):
                await theirs.cancel_task(CancelTaskRequest(id=task_id))
            with pytest.raises(TaskNotFoundError):
                [_ async for _ in theirs.subscribe(SubscribeToTaskRequest(id=task_id))]
            with pytest.raises(TaskNotFoundError):
                await Told.asked(theirs, ask(data({"command": "true"}), task=task_id))
        assert (await theirs.list_tasks(ListTasksRequest())).total_size == 0
        assert (await theirs.list_tasks(ListTasksRequest(context_id=context))).total_size == 0
        # The same context of another owner is another sandbox.
        assert await stdout(theirs, "cat note || echo none", context) == "none\n"
        # The control: to the owner all of this is open.
        assert (await Told.got(mine, made.task_id)).text() == "secret\n"
        assert (await mine.list_tasks(ListTasksRequest(context_id=context))).total_size == 2
        assert await stdout(mine, "cat note", context) == "secret\n"
        canceled = await mine.cancel_task(CancelTaskRequest(id=open_one.task_id))
        assert canceled.status.state == CANCELED


ROLES = ("user", "approver")


@pytest.fixture
def colleagues(server: Server, keys: dict[str, str]) -> Iterator[dict[str, str]]:
    """Further keys of mine, one for each role."""
    with SandboxClient(target=dataclasses.replace(server.target(), api_key=keys["mine"])) as mine:
        owner = mine.whoami().owner
    with SandboxClient(target=server.target()) as admin:
        yield {role: admin.create_api_key(f"{owner}-{role}", role=role, owner=owner).key for role in ROLES}
        for role in ROLES:
            admin.delete_api_key(f"{owner}-{role}")


async def test_an_approver_of_the_same_owner_sees_follows_and_cancels_nothing(
    agent: Agent, keys: dict[str, str], colleagues: dict[str, str], context: str
) -> None:
    async with peer(agent.url, key=keys["mine"], streaming=False) as mine:
        made = await Told.asked(mine, ask(data({"command": "sleep 600"}), context=context, at_once=True))
    async with peer(agent.url, key=colleagues["approver"]) as judge:
        for attempt in (
            judge.list_tasks(ListTasksRequest()),
            judge.get_task(GetTaskRequest(id=made.task_id)),
            judge.cancel_task(CancelTaskRequest(id=made.task_id)),
            anext(aiter(judge.subscribe(SubscribeToTaskRequest(id=made.task_id)))),
            Told.asked(judge, ask(data({"command": "id"}), context=context)),
        ):
            with pytest.raises(A2AClientError, match="403"):
                await attempt
    async with AsyncClient(base_url=agent.url, timeout=PATIENCE_S, headers={"a2a-version": "1.0"}) as http:
        bearer = {"authorization": f"Bearer {colleagues['approver']}"}
        message = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "$ id"}]}}
        for method, path, content in (
            ("GET", "/a2a/tasks", None),
            ("GET", f"/a2a/v1/tasks/{made.task_id}", None),
            ("POST", f"/a2a/tasks/{made.task_id}:cancel", {}),
            ("POST", "/a2a/message:send", message),
        ):
            assert (await http.request(method, path, json=content, headers=bearer)).status_code == 403
    # The control: to a user of the same owner all of this is open.
    async with peer(agent.url, key=colleagues["user"]) as other:
        assert [each.id for each in (await other.list_tasks(ListTasksRequest())).tasks] == [made.task_id]
        assert (await Told.got(other, made.task_id)).states == [WORKING]
        assert (await other.cancel_task(CancelTaskRequest(id=made.task_id))).status.state == CANCELED


async def test_where_a_key_is_required_only_a_good_one_opens(server: Server, keys: dict[str, str]) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    with running(server.environ, "--require-key") as guarded:
        async with AsyncClient(base_url=guarded.url, timeout=PATIENCE_S, headers={"a2a-version": "1.0"}) as http:
            assert (await http.get("/.well-known/agent-card.json")).status_code == 200
            for header in ({}, {"authorization": "Bearer k8e-nobody"}, {"authorization": "Basic eDp5"}):
                for answer in (
                    await http.post("/a2a", json=request, headers=header),
                    await http.get("/a2a/tasks", headers=header),
                    await http.get("/a2a/v1/tasks/x", headers=header),
                    await http.post("/a2a/message:send", json={}, headers=header),
                ):
                    assert (answer.status_code, "Bearer" in answer.headers["www-authenticate"]) == (401, True)
            good = {"authorization": f"Bearer {keys['mine']}"}
            assert (await http.post("/a2a", json=request, headers=good)).json()["result"]["totalSize"] == 0
            assert (await http.get("/a2a/tasks", headers=good)).status_code == 200


@pytest.mark.parametrize(
    ("name", "origin", "wanted"), [("evil.example", "", 421), ("", "https://evil.example", 403), ("", "", 200)]
)
async def test_a_web_page_cannot_reach_it(agent: Agent, name: str, origin: str, wanted: int) -> None:
    headers = {"a2a-version": "1.0"} | ({"host": name} if name else {}) | ({"origin": origin} if origin else {})
    async with AsyncClient(base_url=agent.url, timeout=PATIENCE_S) as http:
        assert (await http.get("/a2a/tasks", headers=headers)).status_code == wanted
        assert (await http.get("/.well-known/agent-card.json", headers=headers)).status_code == wanted


HOSTILE = {
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "nested arrays": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "nested in params": b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":'
    + b'{"a":' * 500
    + b"1"
    + b"}" * 501,
    "nested data": b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER",'
    b'"parts":[{"data":' + b"[" * 500 + b"]" * 500 + b"}]}}}",
    "a number": b"1",
    "a batch": b"[]",
    "no method": b'{"jsonrpc":"2.0","id":1}',
    "an unknown method": b'{"jsonrpc":"2.0","id":1,"method":"Shutdown","params":{}}',
    "another version": b'{"jsonrpc":"1.0","id":1,"method":"GetTask","params":{"id":"x"}}',
    "params of another kind": b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":[1,2]}',
    "no parts": b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER"}}}',
    "half a character": b'{"jsonrpc":"2.0","id":"\\ud800","method":"SendMessage","params":{"message":{"messageId":"m",'
    b'"role":"ROLE_USER","parts":[{"text":"\\ud800"}]}}}',
    "no number": b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageSize":NaN}}',
    "a long number": b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageSize":' + b"9" * 10_000 + b"}}",
    "a huge context": b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER",'
    b'"contextId":"' + b"c" * 10_000 + b'","parts":[{"text":"$ ls"}]}}}',
}


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in HOSTILE.items()])
@pytest.mark.parametrize("path", ["/a2a", "/a2a/message:send", "/a2a/v1/message:stream"])
async def test_a_hostile_body_is_refused_and_the_next_one_served(agent: Agent, path: str, body: bytes) -> None:
    async with AsyncClient(base_url=agent.url, timeout=PATIENCE_S, headers={"a2a-version": "1.0"}) as http:
        answer = await http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 500
        assert "error" in answer.json()
        assert "Traceback" not in answer.text
        assert (await http.get("/a2a/tasks")).status_code == 200


async def test_a_body_may_have_ten_mebibytes_of_files_and_has_an_end(
    agent: Agent, caller: Client, context: str
) -> None:
    big = Part(raw=b"x" * (10 * MIB), filename="big")
    told = await Told.asked(caller, ask(big, data({"command": "wc -c < big"}), context=context))
    assert (told.states[-1], told.text().strip()) == (COMPLETED, str(10 * MIB))
    async with AsyncClient(base_url=agent.url, timeout=PATIENCE_S, headers={"a2a-version": "1.0"}) as http:
        answer = await http.post("/a2a", content=b" " * (17 * MIB))
        assert answer.status_code == 413


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/passwd", "a/../../b", "a\0b", ""])
async def test_a_files_name_cannot_leave_the_workspace(caller: Client, context: str, name: str) -> None:
    told = await Told.asked(caller, ask(Part(raw=b"x", filename=name), data({"command": "echo ran"}), context=context))
    assert (told.states, told.text()) == ([REJECTED], "")
    told = await Told.asked(caller, ask(Part(raw=b"x", filename="a/b"), data({"command": "echo ran"}), context=context))
    assert (told.states[-1], told.text()) == (COMPLETED, "ran\n")


async def test_a_restart_forgets_tasks_and_keeps_contexts(
    server: Server, sdk: AsyncSandboxClient, tidy: None, context: str
) -> None:
    async def is_quiet() -> bool:
        return "sleep" not in {each.comm for each in await sdk.processes(session_id_of(context))}

    with running(server.environ) as before:
        async with peer(before.url, streaming=False) as client:
            told = await Told.asked(client, ask(data({"command": "echo kept > note"}), context=context))
            lost = await Told.asked(client, ask(data({"command": "sleep 600"}), context=context, at_once=True))
        assert before.stop() == 0
    with running(server.environ) as after:
        async with peer(after.url) as client:
            for task_id in (told.task_id, lost.task_id):
                with pytest.raises(TaskNotFoundError, match="restarted"):
                    await client.get_task(GetTaskRequest(id=task_id))
            await until(is_quiet)
            assert await stdout(client, "cat note", context) == "kept\n"


async def test_an_agent_that_is_killed_leaves_no_command_behind(
    server: Server, sdk: AsyncSandboxClient, tidy: None, context: str
) -> None:
    async def sleeps() -> bool:
        return "sleep" in {each.comm for each in await sdk.processes(session_id_of(context))}

    async def is_quiet() -> bool:
        return not await sleeps()

    with running(server.environ) as agent:
        async with peer(agent.url) as caller:
            async for event in caller.send_message(ask(data({"command": "echo begun; sleep 600"}), context=context)):
                if event.HasField("artifact_update"):
                    break
        await until(sleeps)
        agent.process.kill()
        agent.process.wait(PATIENCE_S)
    await until(is_quiet)


@pytest.mark.parametrize("isolation", RUNTIMES)
async def test_a_run_survives_the_death_of_the_server(
    host: Provisioned, lend: Lend, port: int, isolation: str, context: str
) -> None:
    # At one address, as an operator's is: the agent finds the next server where the last one was.
    flags = (*NO_POOL, "--default-runtime", isolation)
    server = Server(lend("a2a"), *flags, listen=f"127.0.0.1:{port}")
    server.start()
    try:
        with running(server.environ) as agent:
            async with peer(agent.url) as caller:
                told, deaths = Told(), 0
                async for event in caller.send_message(ask(data({"code": WAITS}), context=context)):
                    told.hear(event)
                    if told.text() == "ready\n" and not deaths:
                        deaths += 1
                        server.kill()
                        server.start()
                        assert await stdout(caller, "touch go; echo on", context) == "on\n"
        assert (told.states[-1], told.text(), told.result["exit_code"]) == (COMPLETED, "ready\ngone\n", 0)
    finally:
        server.destroy()


async def test_cancelling_after_the_death_of_the_server_still_kills_the_command(
    host: Provisioned, lend: Lend, port: int, context: str
) -> None:
    server = Server(lend("a2a"), *NO_POOL, "--default-runtime", "container", listen=f"127.0.0.1:{port}")
    server.start()
    try:
        with running(server.environ) as agent:
            async with peer(agent.url) as caller:
                told, deaths, command = (
                    Told(),
                    0,
                    "echo begun; until [ -e go ]; do sleep 0.05; done; echo after; sleep 600",
                )
                async for event in caller.send_message(ask(data({"command": command}), context=context)):
                    told.hear(event)
                    if told.text() == "begun\n" and not deaths:
                        deaths += 1
                        server.kill()
                        server.start()
                        assert await stdout(caller, "touch go; echo on", context) == "on\n"
                    if told.text() == "begun\nafter\n":  # so it was taken up again
                        canceled = await caller.cancel_task(CancelTaskRequest(id=told.task_id))
                        assert canceled.status.state == CANCELED
                        break
                assert (deaths, told.text()) == (1, "begun\nafter\n"), told.words
        async with AsyncSandboxClient(target=server.target()) as sdk:

            async def is_quiet() -> bool:
                return "sleep" not in {each.comm for each in await sdk.processes(session_id_of(context))}

            await until(is_quiet)
    finally:
        server.destroy()


@pytest.mark.parametrize(("decision", "state", "printed"), [(True, COMPLETED, "deploy\n"), (False, FAILED, "")])
async def test_a_run_that_waits_for_a_person_says_so_and_goes_on_with_the_answer(
    host: Provisioned, lend: Lend, context: str, decision: bool, state: TaskState, printed: str
) -> None:
    server = Server(lend("gated"), *NO_POOL, "--gates", "command=deploy")
    server.start()
    try:
        with SandboxClient(target=server.target()) as admin:
            key = admin.create_api_key("judge", role="approver", owner=admin.whoami().owner).key
        with running(server.environ) as agent:
            async with peer(agent.url, streaming=False) as plain, peer(agent.url) as caller:
                assert await stdout(plain, "echo free", context) == "free\n"
                asked = await Told.asked(plain, ask(data({"command": "echo deploy"}), context=context))
                assert (asked.states, asked.text()) == ([AUTH_REQUIRED], "")
                with SandboxClient(target=dataclasses.replace(server.target(), api_key=key)) as judge:
                    judge.approve(question(asked), approved=decision)
                with contextlib.suppress(UnsupportedOperationError):
                    async for _ in caller.subscribe(SubscribeToTaskRequest(id=asked.task_id)):
                        pass
                told = await Told.got(plain, asked.task_id)
                assert (told.states[-1], told.text()) == (state, printed)
    finally:
        server.destroy()


def question(told: Told) -> str:
    """The one that a task's status names."""
    found = re.search(r"k8e sandbox approve (\S+)`", told.words[0])
    assert found is not None
    return found[1]


async def test_tasks_of_one_context_each_name_their_own_question(host: Provisioned, lend: Lend, context: str) -> None:
    server = Server(lend("gated"), *NO_POOL, "--gates", "command=deploy")
    server.start()
    try:
        with SandboxClient(target=server.target()) as admin:
            key = admin.create_api_key("judge", role="approver", owner=admin.whoami().owner).key
        with running(server.environ) as agent:
            async with peer(agent.url, streaming=False) as plain:
                first = await Told.asked(
                    plain, ask(text(f"```sh\necho deploy 1\n```\n```python\n{WAITS}```"), context=context)
                )
                second = await Told.asked(plain, ask(text("$ echo deploy 2"), context=context))
                assert (first.states, second.states) == ([AUTH_REQUIRED], [AUTH_REQUIRED])
                assert ("deploy 1" in first.words[0], "deploy 2" in second.words[0]) == (True, True)
                with SandboxClient(target=dataclasses.replace(server.target(), api_key=key)) as judge:
                    judge.approve(question(first))

                async def is_running() -> bool:
                    return (await Told.got(plain, first.task_id)).text() == "deploy 1\nready\n"

                # What comes after the one that was asked about waits for nobody, whatever else is asked meanwhile.
                await until(is_running)
                assert (await Told.got(plain, first.task_id)).states == [WORKING]
                assert (await Told.got(plain, second.task_id)).states == [AUTH_REQUIRED]
    finally:
        server.destroy()


async def test_gates_that_came_with_a_new_server_are_noticed_in_an_old_context(
    host: Provisioned, lend: Lend, port: int, context: str
) -> None:
    place = lend("gated")
    flags = NO_POOL
    server = Server(place, *flags, listen=f"127.0.0.1:{port}")
    server.start()
    try:
        with running(server.environ) as agent:
            async with peer(agent.url, streaming=False) as plain:
                assert await stdout(plain, "echo deploy", context) == "deploy\n"
                server.stop()
                server = Server(place, *flags, "--gates", "command=deploy", listen=f"127.0.0.1:{port}")
                server.start()
                async with asyncio.timeout(PATIENCE_S):
                    asked = await Told.asked(plain, ask(data({"command": "echo deploy"}), context=context))
                assert (asked.states, asked.text()) == ([AUTH_REQUIRED], "")
    finally:
        server.destroy()


async def test_whoever_listens_when_it_ends_is_told(server: Server, tidy: None) -> None:
    with running(server.environ) as agent:
        async with peer(agent.url) as caller:
            told, ends = Told(), 0
            async for event in caller.send_message(ask(data({"command": "echo begun; sleep 600"}))):
                told.hear(event)
                # Once: the second time it would be in a hurry, and might leave without the last word.
                if told.text() and told.states[-1] == WORKING and not ends:
                    ends += 1
                    agent.process.terminate()
        assert (told.states[-1], told.text()) == (CANCELED, "begun\n")
        assert agent.process.wait(PATIENCE_S) == 0
        assert len(agent.said().splitlines()) == 1


async def test_it_is_also_at_the_http_door_for_mcp(server: Server, tidy: None, context: str) -> None:
    with running(server.environ, command=("sandbox-mcp", "--http", "--http-addr")) as door:
        async with peer(door.url) as caller:
            assert await stdout(caller, "echo here, too", context) == "here, too\n"


def test_it_ends_by_the_keyboard_and_says_when_its_port_is_taken(server: Server, k8e: Run) -> None:
    with running(server.environ) as agent:
        taken = k8e("a2a", "--addr", agent.url.removeprefix("http://"))
        assert taken.returncode == 1
        assert b"Address already in use" in taken.stderr
        assert agent.stop(signal.SIGINT) == 0
    refused = k8e("a2a", "--addr", "0.0.0.0:0")
    assert (refused.returncode, b"--require-key" in refused.stderr) == (1, True)
    assert k8e("a2a", "--public-url", "agents.example").returncode == 1


def test_a_proxys_address_is_the_one_on_the_card(server: Server) -> None:
    with running(server.environ, "--require-key", "--public-url", "https://agents.example.com/k8e") as agent:
        asked = ["curl", "-s", f"{agent.url}/.well-known/agent-card.json", "-H", "host: agents.example.com"]
        shown = subprocess.run(asked, capture_output=True, check=True).stdout
    assert b'"url":"https://agents.example.com/k8e/a2a"' in shown
