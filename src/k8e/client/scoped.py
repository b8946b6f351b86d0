"""Methods of the client as methods of one session: the session's id is given once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from k8e.client.signatures import seen

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

    @property
    def __signature__(self) -> inspect.Signature:
        """Of the method with a scope in place of client and session."""
        return seen(self._method)

    def __call__(self, scope: Scope, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._method(scope.client, scope.session_id, *args, **kwargs)

    @overload
    def __get__(self, scope: None, owner: type) -> Self: ...
    @overload
    def __get__(self, scope: Scope, owner: type) -> Callable[P, R]: ...
    def __get__(self, scope: Scope | None, owner: type) -> Self | Callable[P, R]:
        if scope is None:
            return self
        method = self._method

        @functools.wraps(method, updated=())
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            return method(scope.client, scope.session_id, *args, **kwargs)

        cast("Any", bound).__signature__ = seen(self)
        return bound
