"""JSON of frozen dataclasses: written from their fields, and read back strictly.

Reading refuses what it does not know: another type, a field that is missing and has no default, a field too many. So a
record is either exactly what its class says or an error that names the place, and nothing behind the store looks twice.

Fields may be `str`, `int`, `float`, `bool`, `bytes` (hexadecimal in JSON), enumerations of strings, `tuple[X, ...]`,
`Mapping[str, X]`, other dataclasses, and `X | None`. A number that JSON cannot say, such as infinity, is no value of a
record: `None` says that there is none.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NewType, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["Malformed", "Parts", "decoder", "encoded", "encoded_with", "fields_of"]

R = TypeVar("R")
Decode = Callable[[Any], Any]
Parts: TypeAlias = Mapping[str, tuple[object, str]]
"""Fields of a record that are dataclasses themselves, each with its JSON."""
_NOTHING: Final = types.NoneType


class Malformed(ValueError):
    """Text that is not what a class says; the message names the place in it."""

    def inside(self, place: str) -> Malformed:
        """The same error as seen from one level further out."""
        return Malformed(f"{place}: {self}")


def encoded(value: object) -> str:
    """A dataclass as JSON, in ASCII: text that stands for arbitrary bytes (`surrogateescape`) survives."""
    return _encode(value)


def encoded_with(value: object, former: Parts) -> tuple[str, Parts]:
    """The same, and what is dear about it: where a part is the former's very object, its JSON is taken from there."""
    kind: Any = type(value)
    names, get = _fields(kind)
    fields = dict(zip(names, get(value), strict=True))
    parts: dict[str, tuple[object, str]] = {}
    for name in _part_names(kind):
        part, known = fields.pop(name), former.get(name)
        parts[name] = known if known is not None and known[0] is part else (part, _encode(part))
    more = "".join([f',"{name}":{text}' for name, (_, text) in parts.items()])
    return f"{_encode(fields)[:-1]}{more}}}", parts


def decoder(kind: type[R]) -> Callable[[str], R]:
    """A function that reads such JSON. Its callers get a value of `kind`, or Malformed."""
    decode = _of(kind)

    def read(text: str) -> R:
        try:
            parsed = _parse(text)
        except ValueError as error:
            raise Malformed(f"no JSON: {error}") from error
        found: R = decode(parsed)
        return found

    return read


def fields_of(text: str) -> Mapping[str, object]:
    """What such JSON says of its fields, true or not; nothing where it is no object at all."""
    try:
        parsed = _parse(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _plain(value: object) -> object:
    """What the encoder of the standard library does not know by itself."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    kind: Any = type(value)
    names, get = _fields(kind)
    return dict(zip(names, get(value), strict=True))


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, ...], Callable[[object], tuple[object, ...]]]:
    """The names of a dataclass's fields, and what gets all of them at once; two at least."""
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is no value of a record")
    names = tuple(each.name for each in dataclasses.fields(kind))
    return names, operator.attrgetter(*names)


@functools.cache
def _part_names(kind: Any) -> tuple[str, ...]:
    """Not the first field: what follows is put behind it."""
    hints = get_type_hints(kind)
    return tuple(each.name for each in dataclasses.fields(kind)[1:] if dataclasses.is_dataclass(hints[each.name]))


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


_encode: Final = json.JSONEncoder(default=_plain, separators=(",", ":"), allow_nan=False, check_circular=False).encode
_parse: Final = json.JSONDecoder(parse_constant=_no_number).decode


def _of(kind: Any) -> Decode:
    """The function that turns parsed JSON into a value of this type."""
    kind = _unwrapped(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (inner,) = (each for each in args if each is not _NOTHING)
        return _optional(_of(inner))
    if origin is tuple:
        return _sequence(_of(args[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_of(args[1]))
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if issubclass(kind, StrEnum):
        return _word(kind)
    return _SCALARS[kind]


def _exactly(kind: type, name: str) -> Decode:
    def decode(value: Any) -> Any:
        if type(value) is not kind:  # `True` is an `int` for `isinstance`
            raise Malformed(f"{type(value).__name__} instead of {name}")
        return value

    return decode


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise Malformed(f"{type(value).__name__} instead of a number")
    try:
        return float(value)
    except OverflowError as error:
        raise Malformed("a number that is too large") from error


def _bytes(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError) as error:
        raise Malformed("no hexadecimal text") from error


_SCALARS: Final[Mapping[type, Decode]] = {
    str: _exactly(str, "text"),
    int: _exactly(int, "an integer"),
    bool: _exactly(bool, "true or false"),
    float: _number,
    bytes: _bytes,
}


def _optional(inner: Decode) -> Decode:
    return lambda value: None if value is None else inner(value)


def _sequence(inner: Decode) -> Decode:
    is_list = _exactly(list, "a list")
    return lambda value: tuple([inner(each) for each in is_list(value)])


def _mapping(inner: Decode) -> Decode:
    is_object = _exactly(dict, "an object")
    return lambda value: {name: inner(each) for name, each in is_object(value).items()}


def _word(kind: type[StrEnum]) -> Decode:
    words = {str(word): word for word in kind}

    def decode(value: Any) -> StrEnum:
        try:
            return words[value]
        except (KeyError, TypeError) as error:
            raise Malformed(f"{value!r} is none of {', '.join(words)}") from error

    return decode


def _dataclass(kind: Any) -> Decode:
    hints = get_type_hints(kind)
    fields = {each.name: _unwrapped(hints[each.name]) for each in dataclasses.fields(kind)}
    # Where the parsed value already is what the field holds, it costs a comparison and no call.
    decoders = {name: (each if each in _SCALARS else None, _of(each)) for name, each in fields.items()}
    needed = frozenset(
        each.name
        for each in dataclasses.fields(kind)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    )
    is_object = _exactly(dict, "an object")

    def decode(value: Any) -> Any:
        found: dict[str, Any] = is_object(value)
        if found.keys() != decoders.keys():
            if unknown := found.keys() - decoders.keys():
                raise Malformed(f"{min(unknown)!r} is no field of it")
            if missing := needed - found.keys():
                raise Malformed(f"{min(missing)!r} is missing")
        for name, each in found.items():
            as_it_is, read = decoders[name]
            if type(each) is not as_it_is:
                try:
                    found[name] = read(each)
                except Malformed as error:
                    raise error.inside(name) from error
        return kind(**found)

    return decode


def _unwrapped(kind: Any) -> Any:
    return _unwrapped(kind.__supertype__) if isinstance(kind, NewType) else kind
