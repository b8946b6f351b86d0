"""Methods of the client as methods of one session: the session's id is given once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

if TYPE_CHECKING:
    from k8e.client.aio import AsyncSandboxClient

__all__ = ["Scope", "Scoped"]

P = ParamSpec("P")
R = TypeVar("R")


class Scope(Protocol):
    """One session of one client."""

    @property
    def client(self) -> AsyncSandboxClient: ...
    @property
    def session_id(self) -> str: ...


class Scoped(Generic[P, R]):
    """A method of the client whose first argument is the session."""

    def __init__(self, method: Callable[Concatenate[Any, str, P], R]) -> None:
        self._method = method
        functools.update_wrapper(cast("Any", self), method, updated=())

    def __call__(self, scope: Scope, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._method(scope.client, scope.session_id, *args, **kwargs)

    @overload
    def __get__(self, scope: None, owner: type) -> Self: ...
    @overload
    def __get__(self, scope: Scope, owner: type) -> Callable[P, R]: ...
    def __get__(self, scope: Scope | None, owner: type) -> Self | Callable[P, R]:
        return self if scope is None else cast("Callable[P, R]", functools.partial(self, scope))
