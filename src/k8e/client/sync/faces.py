"""Async methods as plain ones. Nothing is written twice: each face runs the async method on the client's loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from k8e.client.signatures import seen
from k8e.client.sync.loop import LoopThread

__all__ = ["Blocking", "Face", "Iterating", "Making", "drained"]

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
C = TypeVar("C", bound=Callable[..., Any])
F = TypeVar("F")
P = ParamSpec("P")
R = TypeVar("R")


class Face(Protocol[A_co]):
    """Something plain in front of something async."""

    @property
    def calls(self) -> A_co: ...
    @property
    def loop(self) -> LoopThread: ...


class Blocking(Generic[A, P, R]):
    """An async method as one that waits."""

    def __init__(self, method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        functools.update_wrapper(cast("Any", self), method, updated=())

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...
    @overload
    def __get__(self, face: Face[A], owner: type) -> Callable[P, R]: ...
    def __get__(self, face: Face[A] | None, owner: type) -> Self | Callable[P, R]:
        if face is None:
            return self
        method = self._method

        @functools.wraps(method, updated=())
        def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
            return face.loop.wait(method(face.calls, *args, **kwargs))

        return shown(waiting, method)


class Making(Generic[A, P, R, F]):
    """An async method that returns an async object, as one that waits and returns that object's face."""

    def __init__(
        self, method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], face: Callable[[R, LoopThread], F]
    ) -> None:
        self._method = method
        self._face = face
        functools.update_wrapper(cast("Any", self), method, updated=())

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...
    @overload
    def __get__(self, face: Face[A], owner: type) -> Callable[P, F]: ...
    def __get__(self, face: Face[A] | None, owner: type) -> Self | Callable[P, F]:
        if face is None:
            return self
        method, make = self._method, self._face

        @functools.wraps(method, updated=())
        def waiting(*args: P.args, **kwargs: P.kwargs) -> F:
            return make(face.loop.wait(method(face.calls, *args, **kwargs)), face.loop)

        return shown(waiting, method)


class Iterating(Generic[A, P, R]):
    """An async iteration as a plain one; leaving the loop early ends the call."""

    def __init__(self, method: Callable[Concatenate[A, P], AsyncIterator[R]]) -> None:
        self._method = method
        functools.update_wrapper(cast("Any", self), method, updated=())

    @overload
    def __get__(self, face: None, owner: type) -> Self: ...
    @overload
    def __get__(self, face: Face[A], owner: type) -> Callable[P, Iterator[R]]: ...
    def __get__(self, face: Face[A] | None, owner: type) -> Self | Callable[P, Iterator[R]]:
        if face is None:
            return self
        method = self._method

        @functools.wraps(method, updated=())
        def iterating(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
            return drained(face.loop, cast("AsyncGenerator[R, None]", method(face.calls, *args, **kwargs)))

        return shown(iterating, method)


def shown(face: C, method: Callable[..., Any]) -> C:
    """A face with the signature that its callers see."""
    cast("Any", face).__signature__ = seen(method)
    return face


def drained(loop: LoopThread, items: AsyncGenerator[R, None]) -> Iterator[R]:
    async def following() -> R:
        return await anext(items)

    async def closing() -> None:
        await items.aclose()

    try:
        while True:
            try:
                item = loop.wait(following())
            except StopAsyncIteration:
                return
            yield item
    finally:
        # Closing the client ends its streams; one that was left half read then has nothing more to end.
        loop.finish(closing())
