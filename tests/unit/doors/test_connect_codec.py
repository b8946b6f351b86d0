"""JSON and protobuf ↔ messages: exact for every message of the service, and every refusal names what is wrong."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.connect.codec import JSON, PROTO, STRUCTURE_BYTES, Codec
from k8e.doors.service import SERVICE
from k8e.doors.service.decoding import REQUEST_BYTES
from k8e.errors import InvalidSpec

SAMPLES: dict[int, object] = {
    FieldDescriptor.TYPE_STRING: 'ä"\\\n\u2028',
    FieldDescriptor.TYPE_BYTES: bytes(range(256)),
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_DOUBLE: 0.1,
    FieldDescriptor.TYPE_ENUM: 1,
}


def filled(kind: type[Message], depth: int = 3) -> Message:
    """A message with something in every field."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        each: Any = getattr(message, field.name)
        inner_type: Any = field.message_type
        if field.type == FieldDescriptor.TYPE_MESSAGE and inner_type.GetOptions().map_entry:
            value = inner_type.fields_by_name["value"]
            each["key ä"] = SAMPLES.get(value.type, 7)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = filled(GetMessageClass(inner_type), depth - 1) if depth else None
            if inner is not None:
                each.append(inner) if field.is_repeated else each.CopyFrom(inner)
        elif field.is_repeated:
            each.append(SAMPLES.get(field.type, 7))
        else:
            setattr(message, field.name, SAMPLES.get(field.type, 7))
    return message


@pytest.mark.parametrize("codec", [JSON, PROTO])
@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: str(method.name))
def test_every_message_of_the_service_survives(method: MethodDescriptor, codec: Codec) -> None:
    for descriptor in (method.input_type, method.output_type):
        kind: type[Message] = GetMessageClass(descriptor)
        message = filled(kind)
        assert codec.decode(kind, codec.encoding.message(message)) == message
        assert codec.decode(kind, codec.encoding.message(kind())) == kind()


def test_names_are_the_schemas_own_and_zeros_are_shown() -> None:
    shown = json.loads(JSON.encoding.message(pb.ExecResponse(stdout="a", duration_ms=5)))
    assert (shown["stdout"], shown["exit_code"], shown["duration_ms"]) == ("a", 0, "5")


def test_both_spellings_of_a_name_are_understood() -> None:
    assert JSON.decode(pb.ExecRequest, b'{"session_id":"s"}') == JSON.decode(pb.ExecRequest, b'{"sessionId":"s"}')


def test_bytes_are_base64() -> None:
    decoded = JSON.decode(pb.ExecRequest, json.dumps({"code": base64.b64encode(b"\xff\0").decode()}).encode())
    assert decoded.code == b"\xff\0"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "empty"),
        (b"{", "this is not JSON"),
        (b"null", ""),
        (b"[]", "must be an object with the fields of ExecRequest"),
        (b"7", ""),
        (b'"x"', ""),
        (b"\xff", "not UTF-8 at byte 0"),
        (b'{"comand":"x"}', "comand: ExecRequest has no such field"),
        (b'{"command":7}', "command"),
        (b'{"command":"a","command":"b"}', "twice"),
        (b'{"timeout":1e99}', "timeout"),
        (b'{"timeout":9999999999}', "timeout"),
        (b'{"command":"\\ud800"}', ""),
        (b'{"code":"print(1)"}', "code: is bytes: send them as base64"),
        (b'{"argv":["dHJ1ZQ==","-n"," "]}', "argv: is bytes"),
        (b'{"env":{"A":"*"}}', "env[A]: is bytes"),
        (b'{"code":"QQ==QQ=="}', "code: is bytes"),
        (b'{"code":"A"}', "code"),
        (b'{"[sandbox.v1.x]":1}', "no such field"),
        (b'{"a\\nb\\ud800":1}', "a?b?: ExecRequest has no such field"),
        (b'{"env":[]}', "env"),
        (b'{"argv":"x"}', "argv"),
        (b'{"background":"yes"}', "background"),
        (b'{"timeout":' + b"9" * 10_000 + b"}", ""),
        (b"[" * 100_000, ""),
        (b'{"a":' * 100_000, ""),
        (b'{"command":' + b"[" * 5_000 + b"]" * 5_000 + b"}", ""),
        (b"\xef\xbb\xbf{}", "BOM"),
    ],
)
def test_what_is_no_request_is_refused_with_a_short_text(text: bytes, told: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        JSON.decode(pb.ExecRequest, text)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()
    str(caught.value).encode()


def test_an_unknown_field_deep_inside_is_named() -> None:
    with pytest.raises(InvalidSpec) as caught:
        JSON.decode(pb.ExecInput, b'{"start":{"comand":"x"}}')
    assert caught.value.field == "start.comand"


def test_a_long_text_of_many_values_is_refused_before_it_costs_memory() -> None:
    many = b'{"argv":[' + b"{}," * STRUCTURE_BYTES + b"{}]}"
    with pytest.raises(InvalidSpec, match="outside of its strings"):
        JSON.decode(pb.ExecRequest, many)
    # The control: as long, but one value, full of what would be structure outside of a string.
    one = json.dumps({"command": "{}," * STRUCTURE_BYTES}).encode()
    assert len(JSON.decode(pb.ExecRequest, one).command) == 3 * STRUCTURE_BYTES


@pytest.mark.parametrize(
    "text", [b'"' + b'\\"' * (8 * STRUCTURE_BYTES), b'"\\' * (8 * STRUCTURE_BYTES), b'"' * 16_000_001]
)
def test_strings_that_never_end_are_looked_at_once(text: bytes) -> None:
    with pytest.raises(InvalidSpec):
        JSON.decode(pb.ExecRequest, text + b"," * (STRUCTURE_BYTES + 1))


@given(st.binary(max_size=200))
def test_no_bytes_get_through_either_codec_as_anything_but_a_message_or_a_refusal(data: bytes) -> None:
    for codec in (JSON, PROTO):
        try:
            assert isinstance(codec.decode(pb.CreateSessionRequest, data), pb.CreateSessionRequest)
        except InvalidSpec as refused:
            str(refused).encode()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary().map(lambda b: base64.b64encode(b).decode()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([field.name for field in pb.CreateSessionRequest.DESCRIPTOR.fields])


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_values_in_known_fields_are_a_message_or_a_refusal(values: dict[str, object]) -> None:
    try:
        JSON.decode(pb.CreateSessionRequest, json.dumps(values).encode())
    except InvalidSpec as refused:
        str(refused).encode()


@pytest.mark.parametrize("codec", [JSON, PROTO])
def test_only_what_carries_a_file_may_be_large(codec: Codec) -> None:
    text = "x" * REQUEST_BYTES
    for kind, message in (
        (pb.ListFilesRequest, pb.ListFilesRequest(session_id=text)),
        (pb.ExecRequest, pb.ExecRequest(command=text)),
    ):
        with pytest.raises(InvalidSpec, match=f"{kind.DESCRIPTOR.name}: .* may have {REQUEST_BYTES}"):
            codec.decode(kind, codec.encoding.message(message))
    whole = pb.WriteFileRequest(content=text)
    assert codec.decode(pb.WriteFileRequest, codec.encoding.message(whole)) == whole
