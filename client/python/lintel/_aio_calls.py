# SPDX-License-Identifier: Apache-2.0
"""Calls to one server from asyncio: see _calls."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Optional, TypeVar

import grpc
import grpc.aio

from lintel import _channel, _request, _servers
from lintel._calls import CallsBase, is_reached
from lintel.errors import LintelError, NotFound, closed_in_wait, make_error
from lintel.retry import Attempts, RetryPolicy
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import model_pb2, session_pb2

if TYPE_CHECKING:
    from lintel._streaming import StreamBase

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
    """Whether a call of _seek_connections() came to a server; it ends with this."""
    try:
        code = await seeker.code()
        return is_reached(code)
    finally:
        seeker.cancel()


class AsyncCalls(CallsBase):
    """Calls from one event loop."""

    def __init__(
        self, connection: _channel.Connection, retry: Optional[RetryPolicy], timeout: float
    ) -> None:
        super().__init__(connection, retry, timeout)
        self.closed = False
        self._waits: set[asyncio.Event] = set()  # of calls that wait to be tried again
        # gRPC ends only those whose read() it finds outermost in a task.
        self.streams: weakref.WeakSet[StreamBase] = weakref.WeakSet()
        self._stubs: Any = None  # made in the loop that uses it

    @property
    def stubs(self) -> Any:
        if self.closed:
            raise make_error(grpc.StatusCode.CANCELLED, "the client is closed", "")
        if self._stubs is None:
            asyncio.get_running_loop()  # RuntimeError outside of one
            self._stubs = self._open_servers(grpc.aio).stubs
        return self._stubs

    async def close(self) -> None:
        """Ends every call that runs, and the connection."""
        self.closed = True
        for stopped in self._waits:
            stopped.set()
        for stream in list(self.streams):
            stream.cancel()
        if self._stubs is not None:
            for channel in self._servers.channels():
                await channel.close()

    def invoke(
        self, method: Callable[..., T], request: Any, attempts: Attempts, request_id: str
    ) -> T:
        """One attempt; the result is awaitable or, of a stream, has started."""
        try:
            return self._send(method, request, attempts, request_id)
        except grpc.aio.UsageError:  # what gRPC has to say of a closed channel
            if not self.closed:
                raise
            code = grpc.StatusCode.CANCELLED
            raise make_error(code, "the client is closed", request_id) from None

    async def unary(
        self, method: Callable[..., Awaitable[T]], request: Any, attempts: Attempts
    ) -> T:
        request_id = _channel.new_request_id()
        while True:
            call: Any = self.invoke(method, request, attempts, request_id)
            try:
                return await call  # type: ignore[no-any-return]
            except grpc.RpcError as rpc_error:
                error = self.error_of(rpc_error, request_id, attempts)
            except asyncio.CancelledError:
                if self.closed and not task_is_cancelled():
                    raise make_error(
                        grpc.StatusCode.CANCELLED, "the client was closed", request_id
                    ) from None
                by_server = await cancelled_by_server(call, request_id)
                if by_server is None:
                    raise
                error = by_server
            await self.wait_or_raise(error, attempts, asyncio.Event())

    async def wait_or_raise(
        self, error: LintelError, attempts: Attempts, stopped: asyncio.Event
    ) -> None:
        """Returns when it is time to try again. Cancelled once `stopped` is set, which close()
        does too.
        """
        if self.closed and error.code == grpc.StatusCode.CANCELLED:
            raise error
        found: list[str] = []
        if attempts.server is not None and attempts.looks_for_others(error):
            loop = asyncio.get_running_loop()
            address = attempts.server.address
            found = await loop.run_in_executor(None, _servers.addresses_of, address)
        delay = self._delay_after(error, attempts, found)
        if self.closed:
            stopped.set()
        self._waits.add(stopped)
        try:
            await self._wait(error, attempts, delay, stopped)
            if not stopped.is_set():
                return
        finally:
            self._waits.discard(stopped)
        raise closed_in_wait(error) from error

    async def _wait(
        self, error: LintelError, attempts: Attempts, delay: float, stopped: asyncio.Event
    ) -> None:
        """For `delay` seconds, until `stopped`, or until a server that was not reached is there."""
        if stopped.is_set():
            return
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

    async def prepare(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """Before each attempt of a generation: what only the server knows."""
        await self.bound(request, attempts)
        if self.is_unsure(request, attempts):
            try:
                await self.get_session(request.session_id, Attempts(None, attempts.remaining(), reads=True))
            except LintelError:
                return  # the generation's own error says more
            self.expect(request, attempts)

    async def bound(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """Bounds a request that has no bound, where its model is known to need one."""
        if not _request.is_open(request):
            return
        once = Attempts(None, attempts.remaining(), reads=True)
        try:
            name = request.model
            if request.session_id:
                name = (await self.get_session(request.session_id, once)).model
            if name not in self._modalities:
                ask = model_pb2.GetModelRequest(name=name)
                model = await self.unary(self.stubs.get_model, ask, once)
                self._modalities[name] = model.modality
            _request.bound(request, self._modalities[name])
        except LintelError:
            pass  # the generation's own error says more

    async def get_session(self, id: str, attempts: Attempts) -> session_pb2.Session:
        request = session_pb2.GetSessionRequest(id=id)
        return self.note(await self.unary(self.stubs.get_session, request, attempts))

    async def delete_session(self, id: str, attempts: Attempts) -> None:
        try:
            request = session_pb2.DeleteSessionRequest(id=id)
            await self.unary(self.stubs.delete_session, request, attempts)
        except NotFound:
            # The answer of an attempt may have been lost after the session was.
            if not attempts.retried:
                raise
