"""The TLS front: who it lets through to gRPC, as whom, and what it does with those who misbehave."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.doors.grpc import Address, FrontSettings
from k8e.doors.grpc.address import listening_sockets, plain
from k8e.doors.grpc.lobby import Lobby
from k8e.identity import ServerCertificate, TcpPeer, ensure_server_certificate
from tests.support.door import NAMES, OpenDoor, open_door
from tests.support.inside import exists, gone
from tests.support.requests import key_pem, request_pem

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path) as door:
        yield door


def dialled(door: OpenDoor) -> tuple[str, int]:
    host, _, port = door.target.endpoint.rpartition(":")
    return host, int(port)


def trusting(door: OpenDoor) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=door.credentials.ca.decode())
    context.set_alpn_protocols(["h2"])
    return context


def shake(door: OpenDoor, context: ssl.SSLContext) -> tuple[bytes | None, str | None, str | None]:
    """One handshake: the server's certificate, the protocol and the version of TLS. Raises: OSError."""
    with (
        socket.create_connection(dialled(door), timeout=PATIENCE_S) as plain_socket,
        context.wrap_socket(plain_socket, server_hostname="localhost") as connection,
    ):
        if not connection.recv(1):  # in TLS 1.3 a refused certificate shows only now
            raise ConnectionResetError("the server has closed the connection")
        return connection.getpeercert(binary_form=True), connection.selected_alpn_protocol(), connection.version()


async def who(door: OpenDoor, **metadata: str) -> pb.WhoAmIResponse:
    async with open_channel(door.target) as channel:
        sent = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
        return await SandboxStub(channel).WhoAmI(pb.WhoAmIRequest(), metadata=sent)


async def test_it_speaks_http2_over_tls_of_either_version(door: OpenDoor) -> None:
    _, protocol, version = await asyncio.to_thread(shake, door, trusting(door))
    assert (protocol, version) == ("h2", "TLSv1.3")
    old = trusting(door)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert (await asyncio.to_thread(shake, door, old))[2] == "TLSv1.2"


async def test_the_chain_has_the_ca_at_its_end_for_whoever_pins_it(door: OpenDoor) -> None:
    def chain() -> list[bytes]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(dialled(door), timeout=PATIENCE_S) as raw,
            context.wrap_socket(raw) as connection,
        ):
            found = connection._sslobj.get_unverified_chain()  # type: ignore[attr-defined]  # public from 3.13 on
            return [ssl.PEM_cert_to_DER_cert(each.public_bytes(1)) for each in found]

    assert (await asyncio.to_thread(chain))[-1] == ssl.PEM_cert_to_DER_cert(door.credentials.ca.decode())


async def test_without_a_certificate_the_kernel_says_who_it_is(door: OpenDoor) -> None:
    me = await who(door)
    assert (me.identity, me.role, me.via) == (f"uid:{os.geteuid()}", "admin", "loopback")


async def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_go_on(
    door: OpenDoor, tmp_path: Path
) -> None:
    first, _, _ = await asyncio.to_thread(shake, door, trusting(door))
    async with open_channel(door.target) as channel:
        stub = SandboxStub(channel)
        await stub.WhoAmI(pb.WhoAmIRequest())
        later = datetime.datetime.now(datetime.UTC)
        renewed = ensure_server_certificate(tmp_path / "server" / "tls", names=[*NAMES, "another.example"], now=later)
        door.door.renew(renewed)
        second, _, _ = await asyncio.to_thread(shake, door, trusting(door))
        assert first != second
        assert (await stub.WhoAmI(pb.WhoAmIRequest())).identity == f"uid:{os.geteuid()}"


async def test_a_handshake_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    # What takes so long is the machine's affair: whoever does shake hands is tried again with more time.
    for handshake_s in (0.1, 1.0, 10.0):
        async with open_door(tmp_path, settings=FrontSettings(handshake_s=handshake_s)) as door:
            reader, writer = await asyncio.open_connection(*dialled(door))
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b""
            writer.close()
            try:
                me = await who(door)
            except aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                assert me.via == "loopback"
                return
    pytest.fail("nobody comes through the door any more")


async def test_what_is_not_tls_is_cut_off_and_the_door_goes_on(door: OpenDoor) -> None:
    for junk in (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff",
        os.urandom(4096),
    ):
        reader, writer = await asyncio.open_connection(*dialled(door))
        writer.write(junk)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await reader.read(4096):
                    pass
            except ConnectionError:
                pass
        writer.close()
    assert (await who(door)).via == "loopback"


async def is_full(door: OpenDoor) -> bool:
    """Whether the door closes a connection as it comes."""
    try:
        _, writer = await asyncio.open_connection(*dialled(door), ssl=trusting(door))
    except OSError:
        return True
    writer.transport.abort()
    return False


async def test_connections_have_a_bound(tmp_path: Path) -> None:
    async with open_door(tmp_path, settings=FrontSettings(connections=2)) as door:
        async with open_channel(door.target) as one, open_channel(door.target) as another:
            for channel in (one, another):
                await SandboxStub(channel).WhoAmI(pb.WhoAmIRequest())
            reader, writer = await asyncio.open_connection(*dialled(door))
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b""
            writer.close()
            for channel in (one, another):
                assert (await SandboxStub(channel).WhoAmI(pb.WhoAmIRequest())).via == "loopback", "they go on"
        async with asyncio.timeout(PATIENCE_S):
            while await is_full(door):
                await asyncio.sleep(0.01)
        assert (await who(door)).via == "loopback"


async def test_strangers_cannot_hold_the_door(tmp_path: Path) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
    async with open_door(tmp_path, settings=FrontSettings(connections=3)) as door, open_channel(door.target) as channel:
        await SandboxStub(channel).WhoAmI(pb.WhoAmIRequest())
        strangers = [await asyncio.open_connection(*dialled(door), ssl=trusting(door)) for _ in range(6)]
        for _, writer in strangers:
            writer.write(preface)
        assert (await who(door)).via == "loopback", "there is room for whoever is known"
        assert (await SandboxStub(channel).WhoAmI(pb.WhoAmIRequest())).via == "loopback", "and it keeps its place"
        for _, writer in strangers:
            writer.transport.abort()


async def test_a_foreign_or_self_made_certificate_ends_the_handshake(door: OpenDoor, tmp_path: Path) -> None:
    foreign = ensure_server_certificate(tmp_path / "foreign", names=NAMES, now=datetime.datetime.now(datetime.UTC))
    for name, certificate in {"foreign": foreign, "our own server's": door.credentials}.items():
        context = trusting(door)
        load(context, certificate, tmp_path)
        with pytest.raises(OSError, match=r"(?i)alert|reset|closed|certificate|pipe"):
            await asyncio.to_thread(shake, door, context)
        assert name
    await asyncio.to_thread(shake, door, trusting(door))


def load(context: ssl.SSLContext, certificate: ServerCertificate, directory: Path) -> None:
    path = directory / "client.pem"
    path.write_bytes(certificate.key + certificate.chain)
    context.load_cert_chain(path)


async def logged_in(door: OpenDoor, text: str) -> OpenDoor:
    """The same door with a client certificate for a key."""
    private = ec.generate_private_key(ec.SECP256R1())
    async with open_channel(door.target) as channel:
        answer = await SandboxStub(channel).Login(
            pb.LoginRequest(csr=request_pem(private), device_name="d", client_version="1"),
            metadata=(("authorization", f"Bearer {text}"),),
        )
    assert (answer.valid_days, answer.ca_cert.encode()) == (90, door.credentials.ca)
    target = dataclasses.replace(door.target, key=key_pem(private), certificate=answer.cert.encode())
    return dataclasses.replace(door, target=target)


@pytest.mark.parametrize(
    ("host", "dialled"), [("0.0.0.0", "127.0.0.1:5"), ("::", "[::1]:5"), ("10.0.0.1", "10.0.0.1:5")]
)
def test_what_listens_everywhere_is_dialled_by_a_name_of_its_certificate(host: str, dialled: str) -> None:
    assert str(Address(host, 5).from_here()) == dialled


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong"])
async def test_a_credential_that_is_not_good_is_nobodys(door: OpenDoor, authorization: str) -> None:
    assert (await who(door)).role == "admin", "the control: without any, the kernel says who it is"
    with pytest.raises(aio.AioRpcError, match="UNAUTHENTICATED"):
        await who(door, authorization=authorization)


async def test_a_certificate_from_login_is_the_keys_caller(door: OpenDoor) -> None:
    _, text = door.keys.create("laptop")
    me = await who(await logged_in(door, text))
    assert (me.owner, me.identity, me.role, me.via) == ("key:laptop", "key:laptop", "user", "certificate")


async def test_a_renewal_by_certificate_works_and_dies_with_the_key_on_open_connections(door: OpenDoor) -> None:
    _, text = door.keys.create("laptop")
    first = await logged_in(door, text)
    private = ec.generate_private_key(ec.SECP256R1())
    renewal = pb.LoginRequest(csr=request_pem(private))
    async with open_channel(first.target) as channel:
        stub = SandboxStub(channel)
        renewed = await stub.Login(renewal)
        target = dataclasses.replace(first.target, key=key_pem(private), certificate=renewed.cert.encode())
        second = dataclasses.replace(first, target=target)
        assert (await who(second)).identity == "key:laptop"
        async with open_channel(door.target) as chief:
            await SandboxStub(chief).DeleteApiKey(pb.DeleteApiKeyRequest(name="laptop"))
            await SandboxStub(chief).CreateApiKey(pb.CreateApiKeyRequest(name="laptop"))
        for call in (stub.WhoAmI(pb.WhoAmIRequest()), stub.Login(renewal), who(second)):
            with pytest.raises(aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_user_of_this_machine_needs_a_key_to_log_in(door: OpenDoor) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    async with open_channel(door.target) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await SandboxStub(channel).Login(pb.LoginRequest(csr=request_pem(private)))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "Bearer" in (caught.value.details() or "")


async def test_the_way_behind_the_front_is_nobodys(door: OpenDoor, tmp_path: Path) -> None:
    """Whoever reaches the socket itself is no one there, and only our own user can reach it."""
    run = tmp_path / "server" / "run"
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    (path,) = run.iterdir()
    async with aio.insecure_channel(f"unix:{path}") as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await SandboxStub(channel).WhoAmI(pb.WhoAmIRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (await who(door)).via == "loopback"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
async def test_another_user_cannot_reach_behind_the_front(
    door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (tmp_path, *tmp_path.parents[:2], tmp_path / "server"):
        each.chmod(0o755)
    probe = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534)\n"
        "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
        "except PermissionError: print('denied')\n"
        "else: print('connected')"
    )
    said = []
    (tmp_path / "open").mkdir()
    with socket.socket(socket.AF_UNIX) as control:
        monkeypatch.chdir(tmp_path)
        control.bind("open/s")
        (tmp_path / "open" / "s").chmod(0o777)
        control.listen()
        for path in ("open/s", "server/run/grpc"):
            process = await asyncio.create_subprocess_exec(
                "/usr/bin/env", "python3", "-c", probe, path, stdout=asyncio.subprocess.PIPE
            )
            said.append((await process.communicate())[0].strip())
    assert said == [b"connected", b"denied"]


async def test_health_is_for_everybody_and_the_schema_for_known_callers(tmp_path: Path) -> None:
    async def schema(channel: aio.Channel, **metadata: str) -> list[str]:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([asked]), metadata=tuple(metadata.items()))
        return [each.name async for answer in call for each in answer.list_services_response.service]

    async with open_door(tmp_path, loopback=False) as door, open_channel(door.target) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "sandbox.v1.SandboxService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(aio.AioRpcError) as caught:
            await schema(channel)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        _, text = door.keys.create("tool")
        assert "sandbox.v1.SandboxService" in await schema(channel, authorization=f"Bearer {text}")


async def test_large_messages_pass_in_both_directions(door: OpenDoor) -> None:
    """Almost 64 MiB, through the front's buffers and back."""
    async with open_channel(door.target) as channel:
        stub = SandboxStub(channel)
        session_id = (await stub.CreateSession(pb.CreateSessionRequest())).session_id
        content = os.urandom(1 << 19).hex() * 63
        await stub.WriteFile(pb.WriteFileRequest(session_id=session_id, path="big", content=content))
        answer = await stub.ReadFile(pb.ReadFileRequest(session_id=session_id, path="big"))
        assert answer.content == content


async def test_a_client_that_goes_away_ends_its_command(door: OpenDoor) -> None:
    async with open_channel(door.target) as channel:
        stub = SandboxStub(channel)
        session_id = (await stub.CreateSession(pb.CreateSessionRequest())).session_id
        call = stub.ExecStream(pb.ExecRequest(session_id=session_id, command="echo $$; exec sleep 600"))
        pid = int((await anext(aiter(call))).chunk)
        assert exists(pid)
    await gone(pid)


async def test_a_slow_reader_holds_the_command_back(door: OpenDoor) -> None:
    async with open_channel(door.target) as channel:
        stub = SandboxStub(channel)
        session_id = (await stub.CreateSession(pb.CreateSessionRequest())).session_id
        command = "yes 2>/dev/null | head -c 20000000; echo done > done"
        start = pb.ExecRequest(session_id=session_id, command=command)

        async def inputs() -> AsyncIterator[pb.ExecInput]:
            yield pb.ExecInput(start=start)

        call = stub.ExecAttach(inputs())
        reading = aiter(call)
        assert (await anext(reading)).started.session_id == session_id
        # Nobody reads: every buffer on the way fills, and the command waits. Other calls do not.
        for _ in range(20):
            with pytest.raises(aio.AioRpcError):
                await stub.StatFile(pb.StatFileRequest(session_id=session_id, path="done"))
        received = 0
        async for message in reading:
            received += len(message.chunk.data)
        assert received == 20_000_000
        assert (await stub.StatFile(pb.StatFileRequest(session_id=session_id, path="done"))).size == len("done\n")


def test_an_address_may_be_a_name_and_keeps_one_port() -> None:
    opened = listening_sockets(Address("localhost", 0))
    try:
        assert len({each.getsockname()[1] for each in opened}) == 1
        with pytest.raises(OSError, match="in use"):
            listening_sockets(Address("127.0.0.1", opened[0].getsockname()[1]))
    finally:
        for each in opened:
            each.close()
    with pytest.raises(OSError, match=r".+"):
        listening_sockets(Address("no-such-host.invalid", 0))


@pytest.mark.parametrize(
    ("shown", "meant"),
    [("::ffff:127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("2001:db8::1", "2001:db8::1")],
)
def test_a_mapped_address_is_the_ipv4_one(shown: str, meant: str) -> None:
    assert plain((shown, 1)) == (meant, 1)


async def test_the_lobby_cleans_up_after_a_server_that_was_killed(tmp_path: Path) -> None:
    directory = tmp_path / ("deep" * 30)
    directory.mkdir()
    (directory / "c-left").touch()
    peer = TcpPeer(("127.0.0.1", 1), ("127.0.0.1", 2))
    with Lobby.open(directory) as lobby:
        assert list(directory.iterdir()) == []
        with pytest.raises(OSError, match=r".+"):
            async with lobby.entered(peer, known=lambda: None):
                pass  # nobody listens there
        assert list(directory.iterdir()) == []
