# SPDX-License-Identifier: Apache-2.0
"""Calls to one server and its streams, sent again where that is safe: what clients and sessions share.

What both kinds of client do is written once, as coroutines. Those over AsyncCalls are awaited; those
over Calls wait in their thread and never suspend, so that run() brings them to their end.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Generic, Optional, TypeVar

import grpc

from lintel import _channel, _request, _servers
from lintel import _foreign_pb2 as foreign
from lintel.errors import (
    LOCAL_ENDINGS,
    LintelError,
    NotFound,
    closed_in_wait,
    from_rpc_error,
    make_error,
)
from lintel.retry import Attempts, Repeat, RetryPolicy
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import model_pb2, session_pb2

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")
Prepare = Callable[[pb.GenerateRequest, Attempts], Coroutine[Any, Any, None]]

_MOST_KNOWN = 4096  # sessions; beyond that the server is asked once more
_SLICE = 0.02  # seconds between two looks whether a server is there


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine over Calls. It waits in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a coroutine of a blocking call was suspended")


def blocking(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A method of a class for threads, written as a coroutine. `self` has Calls."""

    @functools.wraps(method)
    def wait(*arguments: P.args, **options: P.kwargs) -> T:
        return run(method(*arguments, **options))

    return wait


def awaiting(
    method: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The coroutine of a `blocking` method, as a method of the class for asyncio. It must use of `self`
    what both classes have.
    """
    coroutine: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]] = method.__wrapped__  # type: ignore
    return coroutine


class CallsBase:
    """Common parts of calls from threads and from asyncio."""

    event_type: Any  # threading.Event or asyncio.Event
    _stream_type: type[StreamBase[Any]]
    _stubs: Any
    _closed_error: type[Exception]  # raised by gRPC for a closed channel

    def __init__(
        self, connection: _channel.Connection, retry: Optional[RetryPolicy], timeout: float
    ) -> None:
        """OSError for a file of the connection that cannot be read."""
        self.connection = connection
        self.closed = False
        self._credentials = connection.credentials()
        self._retry = retry
        self._timeout = timeout
        Attempts(retry, timeout)  # refuses a timeout that makes no sense now
        self._modalities: dict[str, str] = {}  # of models that were asked, by name
        self._durable: dict[str, bool] = {}  # by id; True for sessions that outlive the server
        self._waits: set[Any] = set()  # events of calls that wait to be tried again
        self._waits_lock = threading.RLock()  # a signal's handler may close, too

    @property
    def stubs(self) -> Any:
        return self._stubs

    def stream(
        self,
        method: Callable[..., Any],
        request: Any,
        attempts: Attempts,
        prepare: Optional[Prepare] = None,
    ) -> StreamBase[Any]:
        """A stream of answers. prepare: called with the request before each attempt."""
        return self._stream_type(self, method, request, attempts, prepare)

    async def close(self) -> None:
        """Ends every call that runs, and the connection."""
        raise NotImplementedError

    async def _answer(
        self, method: Callable[..., Any], request: Any, attempts: Attempts, request_id: str
    ) -> Any:
        """One attempt of a unary call. RpcError, or LintelError of a call that was cancelled."""
        raise NotImplementedError

    async def _addresses_of(self, name: str) -> list[str]:
        raise NotImplementedError

    async def _wait(
        self, error: LintelError, attempts: Attempts, delay: float, stopped: Any
    ) -> None:
        """For `delay` seconds, until `stopped`, or until a server that was not reached is there."""
        raise NotImplementedError

    def attempts(self, timeout: Optional[float]) -> Attempts:
        """The attempts of one call. timeout: seconds; None: the client's."""
        return Attempts(self._retry, self._timeout if timeout is None else timeout)

    def invoke(
        self, method: Callable[..., T], request: Any, attempts: Attempts, request_id: str
    ) -> T:
        """One attempt. A stream has started when this returns; in asyncio the result is awaitable."""
        attempts.server = self._servers.current
        session_id = getattr(request, "session_id", "") or getattr(request, "id", "")
        try:
            return method(
                request,
                timeout=attempts.remaining(),
                metadata=self.connection.metadata(request_id, session_id),
            )
        except self._closed_error:
            if not self.closed:
                raise
            code = grpc.StatusCode.CANCELLED
            raise make_error(code, "the client is closed", request_id) from None

    async def unary(self, method: Callable[..., Any], request: Any, attempts: Attempts) -> Any:
        request_id = _channel.new_request_id()
        while True:
            try:
                return await self._answer(method, request, attempts, request_id)
            except grpc.RpcError as rpc_error:
                error = self.error_of(rpc_error, request_id, attempts)
            except LintelError as cancelled:
                error = cancelled
            await self.wait_or_raise(error, attempts, self.event_type())

    async def wait_or_raise(self, error: LintelError, attempts: Attempts, stopped: Any) -> None:
        """Returns when it is time to try again. Cancelled once the event `stopped` is set, which close()
        does too.
        """
        if self.closed and error.code == grpc.StatusCode.CANCELLED:
            raise error
        found: list[str] = []
        if attempts.server is not None and attempts.looks_for_others(error):
            found = await self._addresses_of(attempts.server.address)
        delay = self._delay_after(error, attempts, found)
        with self._waits_lock:
            self._waits.add(stopped)
        try:
            if self.closed:  # before the wait was known to close()
                stopped.set()
            if not stopped.is_set():
                await self._wait(error, attempts, delay, stopped)
            if not stopped.is_set():
                return
        finally:
            with self._waits_lock:
                self._waits.discard(stopped)
        raise closed_in_wait(error) from error

    async def prepare(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """Before each attempt of a generation: what only the server knows."""
        await self._bound(request, attempts)
        if self.is_unsure(request, attempts):
            try:
                once = Attempts(None, attempts.remaining(), reads=True)
                await self.get_session(request.session_id, once)
            except LintelError:
                return  # the generation's own error says more
            self.expect(request, attempts)

    async def _bound(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
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

    async def create_session(
        self, request: session_pb2.CreateSessionRequest, attempts: Attempts
    ) -> str:
        return self.note(await self.unary(self.stubs.create_session, request, attempts)).id

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

    def note(self, session: session_pb2.Session) -> session_pb2.Session:
        """Remembers whether a session outlives the server."""
        if len(self._durable) >= _MOST_KNOWN:
            self._durable.clear()
        self._durable[session.id] = session.durability > session_pb2.DURABILITY_NONE
        return session

    def is_unsure(self, request: pb.GenerateRequest, attempts: Attempts) -> bool:
        """True if the server has to be asked whether the call is to be repeated where it is cut off."""
        return (
            bool(request.session_id)
            and attempts.repeat_for > 0
            and request.session_id not in self._durable
        )

    def expect(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """Sets what is known here about the outcome of the call."""
        attempts.changes_session = bool(request.session_id)
        durable = self._durable.get(request.session_id, False)
        if durable and attempts.repeat_for > 0 and attempts.repeat is None:
            attempts.repeat = Repeat(request, attempts.repeat_for)

    def error_of(
        self, rpc_error: grpc.RpcError, request_id: str, attempts: Attempts
    ) -> LintelError:
        connection = self.connection
        return from_rpc_error(
            rpc_error,
            request_id,
            ", ".join(connection.addresses),
            connection.encrypted,
            attempts.timeout,
        )

    def _open_servers(self, of: Any) -> _servers.Servers:
        """Channels of the module `of`, grpc or grpc.aio."""

        def open_channel(address: str, name: str) -> Any:
            options = self.connection.options(address, name)
            if self._credentials is None:
                return of.insecure_channel(address, options)
            return of.secure_channel(address, self._credentials, options)

        self._servers = _servers.Servers(self.connection.addresses, open_channel)
        return self._servers

    def _end_waits(self) -> None:
        with self._waits_lock:
            for stopped in list(self._waits):
                stopped.set()

    def _delay_after(self, error: LintelError, attempts: Attempts, found: list[str]) -> float:
        """Seconds after which to try again, which is elsewhere after what another server may do; at
        once on one that was not tried yet. found: as of Servers.leave(). Raises the error where it
        stands.
        """
        if error.unreached and attempts.server is not None:
            attempts.unreached.append(attempts.server)
        if attempts.server is not None and attempts.names_a_server(error):
            others = self._servers.leave(attempts.server, found)
            attempts.moves += 1
            if others and attempts.moves < len(self._servers) and attempts.goes_elsewhere(error):
                return 0.0
        delay = attempts.delay_after(error)
        attempts.moves = 0
        return delay

    def _seek_connections(self, error: LintelError, attempts: Attempts, delay: float) -> list[Any]:
        """Calls that end when a server that was not reached can be: see is_reached(). None where the
        server has said how long to wait. Without a call gRPC looks at the sockets of its connections
        every five seconds only, so that a server that is back at once would be missed for as long.
        """
        unreached, attempts.unreached = attempts.unreached, []
        seekers: list[Any] = []
        if error.retry_delay is not None:
            return seekers
        for server in unreached:
            method = server.stubs.check_health
            # Threads call the method that does not block.
            begin = getattr(method, "future", method)
            seekers.append(
                begin(
                    foreign.HealthCheckRequest(),
                    timeout=max(delay, 0.001),
                    metadata=self.connection.metadata(_channel.new_request_id()),
                    wait_for_ready=True,
                )
            )
        return seekers


class StreamBase(Generic[T]):
    """One server stream, restarted while nothing has come of it."""

    def __init__(
        self,
        calls: CallsBase,
        method: Callable[..., Any],
        request: Any,
        attempts: Attempts,
        prepare: Optional[Prepare],
    ) -> None:
        """See CallsBase.stream."""
        self._calls: Any = calls
        self._method = method
        self.request = request
        self._attempts = attempts
        self._prepare = prepare
        self._delivered = False
        self._cancelled = calls.event_type()
        self.ended = False  # with OK
        self._lost = False  # ended without the server's word
        self.request_id = _channel.new_request_id()
        self._call: Any = None  # not started
        self._start()

    def _start(self) -> None:
        """Makes the first attempt, where it does not wait for read()."""
        raise NotImplementedError

    async def _next(self) -> Optional[T]:
        """The next message of this attempt; None: its end. RpcError, or LintelError where the server
        cancelled it.
        """
        raise NotImplementedError

    def _begin(self) -> None:
        self._call = self._calls.invoke(self._method, self.request, self._attempts, self.request_id)
        if self._cancelled.is_set():  # meanwhile, in another thread
            self._call.cancel()

    async def _prepare_and_begin(self) -> None:
        if self._prepare is not None:
            await self._prepare(self.request, self._attempts)
        self._begin()

    async def read(self) -> Optional[T]:
        """The next message; None: the stream has ended with OK."""
        if self.ended:
            return None
        try:
            if self._call is None:
                await self._prepare_and_begin()
            while True:
                try:
                    message = await self._next()
                except grpc.RpcError as rpc_error:
                    error = self._calls.error_of(rpc_error, self.request_id, self._attempts)
                except LintelError as cancelled:
                    error = cancelled
                else:
                    if message is None:
                        self.ended = True
                        return None
                    if self._is_news(message):
                        return message
                    continue
                if self._ends_with(error):
                    return None
                await self._calls.wait_or_raise(error, self._attempts, self._cancelled)
                await self._prepare_and_begin()
        except LintelError as final:
            self._lost = final.code in LOCAL_ENDINGS
            raise

    async def read_all(self, take: Callable[[T], None]) -> None:
        """Passes each message to `take`."""
        try:
            while (message := await self.read()) is not None:
                take(message)
        finally:
            self.cancel()

    def _is_news(self, message: Any) -> bool:
        """Notes that something came; False where all of it was seen before."""
        self._delivered = True
        self._attempts.moves = 0
        repeat = self._attempts.repeat
        return repeat is None or repeat.take(message)

    def _ends_with(self, error: LintelError) -> bool:
        """Returns whether everything had come before the error, which is raised where it ends the stream."""
        repeat = self._attempts.repeat
        if self._cancelled.is_set() or (repeat is None and self._delivered):
            raise error from None
        if repeat is None or not repeat.finished:
            return False
        self.ended = True
        return True

    @property
    def cut_short(self) -> bool:
        """The server may still be at it, or has just put it away."""
        return self._lost or (self._cancelled.is_set() and not self.ended)

    def cancel(self) -> None:
        """Nothing happens to a stream that has ended. Of Stream: from any thread."""
        self._cancelled.set()
        if not self.ended and self._call is not None:
            self._call.cancel()


def is_reached(code: grpc.StatusCode) -> bool:
    """True if a call that waited for a connection reached the server, by the code it ended with."""
    return code not in LOCAL_ENDINGS


class Stream(StreamBase[T]):
    """Read from a thread. It starts at once."""

    def _start(self) -> None:
        run(self._prepare_and_begin())

    async def _next(self) -> Optional[T]:
        try:
            return next(self._call, None)
        except grpc.RpcError:
            raise
        except BaseException:  # KeyboardInterrupt: the server stops, too
            self.cancel()
            raise


class Calls(CallsBase):
    """Calls from threads: any number of them."""

    event_type = threading.Event
    _stream_type = Stream
    _closed_error = ValueError

    def __init__(
        self, connection: _channel.Connection, retry: Optional[RetryPolicy], timeout: float
    ) -> None:
        super().__init__(connection, retry, timeout)
        self._stubs = self._open_servers(grpc).stubs

    async def close(self) -> None:
        self.closed = True
        self._end_waits()
        for channel in self._servers.channels():
            channel.close()

    async def _answer(
        self, method: Callable[..., Any], request: Any, attempts: Attempts, request_id: str
    ) -> Any:
        return self.invoke(method, request, attempts, request_id)

    async def _addresses_of(self, name: str) -> list[str]:
        return _servers.addresses_of(name)

    async def _wait(
        self, error: LintelError, attempts: Attempts, delay: float, stopped: threading.Event
    ) -> None:
        try:
            seekers = self._seek_connections(error, attempts, delay)
        except ValueError:  # closed meanwhile, which sets `stopped`, too
            seekers = []
        end = time.monotonic() + delay
        try:
            while (left := end - time.monotonic()) > 0 and not any(
                seeker.done() and is_reached(seeker.code()) for seeker in seekers
            ):
                if stopped.wait(min(left, _SLICE) if seekers else left):
                    break
        finally:
            for seeker in seekers:
                seeker.cancel()
