# SPDX-License-Identifier: Apache-2.0
"""Calls to one server and its streams from asyncio: see _calls."""

from __future__ import annotations

import asyncio
import weakref
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Optional,
    TypeVar,
)

import grpc
import grpc.aio

from lintel import _channel, _servers
from lintel._calls import CallsBase, StreamBase, is_reached
from lintel.errors import LintelError, make_error
from lintel.retry import Attempts, RetryPolicy

T = TypeVar("T")


def task_is_cancelled() -> bool:
    """gRPC raises CancelledError for a cancelled call, too. Python 3.11 can distinguish them."""
    task = asyncio.current_task()
    return task is not None and hasattr(task, "cancelling") and task.cancelling() > 0


async def cancelled_by_server(call: Any, request_id: str) -> Optional[LintelError]:
    """The error of a `call` that the server cancelled, which it does when it shuts down.
    None: this side cancelled it, or Python is too old to know.
    """
    task = asyncio.current_task()
    if not hasattr(task, "cancelling") or task_is_cancelled() or call is None:
        return None
    if not (call.done() and call.cancelled()):
        return None
    return make_error(grpc.StatusCode.CANCELLED, await call.details() or "", request_id)


async def _until_reached(seeker: Any) -> bool:
    """Returns whether a call of _seek_connections() came to a server; it ends with this."""
    try:
        code = await seeker.code()
        return is_reached(code)
    finally:
        seeker.cancel()


class AsyncStream(StreamBase[T]):
    """Read from asyncio. With `prepare` it starts when it is read, else at once."""

    def _start(self) -> None:
        self._calls.streams.add(self)
        if self._prepare is None:
            self._begin()

    async def _next(self) -> Optional[T]:
        try:
            message: Any = await self._call.read()
        except asyncio.CancelledError:
            if self._cancelled.is_set() or self._calls.closed:
                raise
            by_server = await cancelled_by_server(self._call, self.request_id)
            if by_server is None:
                raise
            raise by_server from None
        return None if message is grpc.aio.EOF else message

    async def read(self) -> Optional[T]:
        try:
            return await super().read()
        except asyncio.CancelledError:
            closed = self._cancelled.is_set() or self._calls.closed
            self.cancel()
            if closed and not task_is_cancelled():
                code = grpc.StatusCode.CANCELLED
                raise make_error(code, "the call was closed", self.request_id) from None
            raise


class Pieces(AsyncIterator[T]):
    """The parts of a stream's messages, one by one: what `async for` holds. No async generator: the loop
    would close that later, not at once.
    """

    def __init__(
        self, read: Callable[[], Awaitable[Optional[Iterable[T]]]], close: Callable[[], None]
    ) -> None:
        """read: the parts of the next message; None at the end."""
        self._read = read
        self._close = close
        self._here: Iterator[T] = iter(())  # of the last message

    async def __anext__(self) -> T:
        while True:
            for piece in self._here:
                return piece
            pieces = await self._read()
            if pieces is None:
                raise StopAsyncIteration
            self._here = iter(pieces)

    def __del__(self) -> None:
        close_quietly(self._close)


def close_quietly(close: Callable[[], None]) -> None:
    try:
        close()
    except (AttributeError, RuntimeError):  # half made, or the loop is closed
        pass


class AsyncCalls(CallsBase):
    """Calls from one event loop."""

    event_type = asyncio.Event
    _stream_type = AsyncStream
    _closed_error = grpc.aio.UsageError

    def __init__(
        self, connection: _channel.Connection, retry: Optional[RetryPolicy], timeout: float
    ) -> None:
        super().__init__(connection, retry, timeout)
        # gRPC ends only those whose read() it finds outermost in a task.
        self.streams: weakref.WeakSet[AsyncStream[Any]] = weakref.WeakSet()
        self._stubs = None  # made in the loop that uses it

    @property
    def stubs(self) -> Any:
        if self.closed:
            raise make_error(grpc.StatusCode.CANCELLED, "the client is closed", "")
        if self._stubs is None:
            asyncio.get_running_loop()  # RuntimeError outside of one
            self._stubs = self._open_servers(grpc.aio).stubs
        return self._stubs

    async def close(self) -> None:
        self.closed = True
        self._end_waits()
        for stream in list(self.streams):
            stream.cancel()
        if self._stubs is not None:
            for channel in self._servers.channels():
                await channel.close()

    async def _answer(
        self, method: Callable[..., Any], request: Any, attempts: Attempts, request_id: str
    ) -> Any:
        call = self.invoke(method, request, attempts, request_id)
        try:
            return await call
        except asyncio.CancelledError:
            if self.closed and not task_is_cancelled():
                code = grpc.StatusCode.CANCELLED
                raise make_error(code, "the client was closed", request_id) from None
            by_server = await cancelled_by_server(call, request_id)
            if by_server is None:
                raise
            raise by_server from None

    async def _addresses_of(self, name: str) -> list[str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, _servers.addresses_of, name)

    async def _wait(
        self, error: LintelError, attempts: Attempts, delay: float, stopped: asyncio.Event
    ) -> None:
        reached = [
            asyncio.ensure_future(_until_reached(seeker))
            for seeker in self._seek_connections(error, attempts, delay)
        ]
        waits = {asyncio.ensure_future(stopped.wait()), *reached}
        end = asyncio.get_running_loop().time() + delay
        pending = set(waits)
        try:
            while pending and (left := end - asyncio.get_running_loop().time()) > 0:
                done, pending = await asyncio.wait(
                    pending, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if any(wait.result() for wait in done):
                    return
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
