# SPDX-License-Identifier: Apache-2.0
"""Calls to one server, sent again where that is safe: what clients, streams and sessions share."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Optional, TypeVar

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

T = TypeVar("T")

_MOST_KNOWN = 4096  # sessions; beyond that the server is asked once more
_SLICE = 0.02  # seconds between two looks whether a server is there


class CallsBase:
    """What calls from threads and from asyncio have in common."""

    def __init__(
        self, connection: _channel.Connection, retry: Optional[RetryPolicy], timeout: float
    ) -> None:
        """OSError for a file of the connection that cannot be read."""
        self.connection = connection
        self._credentials = connection.credentials()
        self._retry = retry
        self._timeout = timeout
        Attempts(retry, timeout)  # refuses a timeout that makes no sense now
        self._modalities: dict[str, str] = {}  # of models that were asked, by name
        self._durable: dict[str, bool] = {}  # whether sessions outlive the server, by id

    def attempts(self, timeout: Optional[float]) -> Attempts:
        """Of one call. timeout: seconds; None: the client's."""
        return Attempts(self._retry, self._timeout if timeout is None else timeout)

    def note(self, session: session_pb2.Session) -> session_pb2.Session:
        """Remembers whether a session outlives the server."""
        if len(self._durable) >= _MOST_KNOWN:
            self._durable.clear()
        self._durable[session.id] = session.durability > session_pb2.DURABILITY_NONE
        return session

    def is_unsure(self, request: pb.GenerateRequest, attempts: Attempts) -> bool:
        """Whether the server has to be asked if the call is to be repeated where it is cut off."""
        return (
            bool(request.session_id)
            and attempts.repeat_for > 0
            and request.session_id not in self._durable
        )

    def expect(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """What may become of the call, as far as it is known here."""
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

    def _send(
        self, method: Callable[..., T], request: Any, attempts: Attempts, request_id: str
    ) -> T:
        attempts.server = self._servers.current
        session_id = getattr(request, "session_id", "") or getattr(request, "id", "")
        return method(
            request,
            timeout=attempts.remaining(),
            metadata=self.connection.metadata(request_id, session_id),
        )

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
            # Of threads: one that does not block.
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


def is_reached(code: grpc.StatusCode) -> bool:
    """Whether a call that waited for a connection reached the server, by the code it ended with."""
    return code not in LOCAL_ENDINGS


class Calls(CallsBase):
    """Calls from threads: any number of them."""

    def __init__(
        self, connection: _channel.Connection, retry: Optional[RetryPolicy], timeout: float
    ) -> None:
        super().__init__(connection, retry, timeout)
        self._closing = threading.Event()
        self._waits: set[threading.Event] = set()  # of calls that wait to be tried again
        self._waits_lock = threading.RLock()  # a signal's handler may close, too
        self.stubs = self._open_servers(grpc).stubs

    def close(self) -> None:
        """Ends every call that runs, and the connection."""
        self._closing.set()
        with self._waits_lock:
            for stopped in list(self._waits):
                stopped.set()
        for channel in self._servers.channels():
            channel.close()

    def invoke(
        self, method: Callable[..., T], request: Any, attempts: Attempts, request_id: str
    ) -> T:
        """One attempt; a stream has started when this returns."""
        try:
            return self._send(method, request, attempts, request_id)
        except ValueError:  # what gRPC has to say of a closed channel
            if not self._closing.is_set():
                raise
            code = grpc.StatusCode.CANCELLED
            raise make_error(code, "the client is closed", request_id) from None

    def unary(self, method: Callable[..., T], request: Any, attempts: Attempts) -> T:
        request_id = _channel.new_request_id()
        while True:
            try:
                return self.invoke(method, request, attempts, request_id)
            except grpc.RpcError as rpc_error:
                error = self.error_of(rpc_error, request_id, attempts)
            self.wait_or_raise(error, attempts, threading.Event())

    def wait_or_raise(
        self, error: LintelError, attempts: Attempts, stopped: threading.Event
    ) -> None:
        """Returns when it is time to try again. Cancelled once `stopped` is set, which close()
        does too.
        """
        if self._closing.is_set() and error.code == grpc.StatusCode.CANCELLED:
            raise error
        found: list[str] = []
        if attempts.server is not None and attempts.looks_for_others(error):
            found = _servers.addresses_of(attempts.server.address)
        delay = self._delay_after(error, attempts, found)
        with self._waits_lock:
            self._waits.add(stopped)
        try:
            if self._closing.is_set():  # before the wait was known to close()
                stopped.set()
            if not self._wait(error, attempts, delay, stopped):
                return
        finally:
            with self._waits_lock:
                self._waits.discard(stopped)
        raise closed_in_wait(error) from error

    def _wait(
        self, error: LintelError, attempts: Attempts, delay: float, stopped: threading.Event
    ) -> bool:
        """For `delay` seconds, or until a server that was not reached is there. Whether `stopped`."""
        if stopped.is_set():
            return True
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
        return stopped.is_set()

    def prepare(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """Before each attempt of a generation: what only the server knows."""
        self.bound(request, attempts)
        if self.is_unsure(request, attempts):
            try:
                self.get_session(request.session_id, Attempts(None, attempts.remaining(), reads=True))
            except LintelError:
                return  # the generation's own error says more
            self.expect(request, attempts)

    def bound(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """Bounds a request that has no bound, where its model is known to need one."""
        if not _request.is_open(request):
            return
        once = Attempts(None, attempts.remaining(), reads=True)
        try:
            name = request.model
            if request.session_id:
                name = self.get_session(request.session_id, once).model
            if name not in self._modalities:
                model = model_pb2.GetModelRequest(name=name)
                self._modalities[name] = self.unary(self.stubs.get_model, model, once).modality
            _request.bound(request, self._modalities[name])
        except LintelError:
            pass  # the generation's own error says more

    def get_session(self, id: str, attempts: Attempts) -> session_pb2.Session:
        request = session_pb2.GetSessionRequest(id=id)
        return self.note(self.unary(self.stubs.get_session, request, attempts))

    def delete_session(self, id: str, attempts: Attempts) -> None:
        try:
            request = session_pb2.DeleteSessionRequest(id=id)
            self.unary(self.stubs.delete_session, request, attempts)
        except NotFound:
            # The answer of an attempt may have been lost after the session was.
            if not attempts.retried:
                raise
