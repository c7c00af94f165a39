"""Generation: a stream of tokens, read from a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterator, Optional, TypeVar

import grpc

from lintel import _channel, _collect
from lintel.errors import LOCAL_ENDINGS, LintelError, from_rpc_error, make_error
from lintel.results import Sample, SampleResult, Token
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from lintel.client import Client

T = TypeVar("T")


class Stream(Generic[T]):
    """One server stream, begun again while nothing has come of it."""

    def __init__(
        self, client: Client, method: Callable[..., Any], request: Any, attempts: Attempts
    ) -> None:
        self._client = client
        self._method = method
        self._request = request
        self._attempts = attempts
        self._delivered = False
        self._cancelled = threading.Event()
        self.ended = False  # with OK
        self._lost = False  # ended without the server's word
        self.request_id = _channel.new_request_id()
        self._begin()

    def _begin(self) -> None:
        self._call = self._client._invoke(
            self._method, self._request, self._attempts, self.request_id
        )
        if self._cancelled.is_set():  # meanwhile, in another thread
            self._call.cancel()

    @property
    def cut_short(self) -> bool:
        """The server may still be at it, or has just put it away."""
        return self._lost or (self._cancelled.is_set() and not self.ended)

    def read(self) -> Optional[T]:
        """The next message; None: the stream has ended with OK."""
        if self.ended:
            return None
        while True:
            try:
                message: T = next(self._call)
                self._delivered = True
                return message
            except StopIteration:
                self.ended = True
                return None
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(
                    rpc_error, self.request_id, self._client._connection.encrypted
                )
            except BaseException:  # KeyboardInterrupt: the server need not go on
                self.cancel()
                raise
            try:
                if self._delivered or self._cancelled.is_set():
                    raise error from None
                self._client._wait_or_raise(error, self._attempts, self._cancelled)
                self._begin()
            except LintelError as final:
                self._lost = final.code in LOCAL_ENDINGS
                raise

    def cancel(self) -> None:
        """From any thread. Nothing happens to a stream that has ended."""
        self._cancelled.set()
        if not self.ended:
            self._call.cancel()

    def nonsense(self, what: str) -> LintelError:
        return make_error(grpc.StatusCode.INTERNAL, what, self.request_id)


class Generation:
    """A stream of tokens: iterate over it, once. The call has begun already.

    The server stops, and what it held is free, as soon as nobody reads any more: leaving the loop,
    close(), the end of a `with`, or dropping the object cancel the call. Not for several threads,
    but close() may be called from another one, which ends the loop with Cancelled.
    """

    def __init__(self, stream: Stream[pb.GenerateResponse], num_samples: int) -> None:
        self._stream = stream
        self._results = _collect.Results(num_samples, stream.request_id)

    @property
    def request_id(self) -> str:
        """By which the server's log knows the call."""
        return self._stream.request_id

    @property
    def result(self) -> SampleResult:
        """How the first sample ended. RuntimeError before the stream has."""
        return self.results[0]

    @property
    def results(self) -> list[SampleResult]:
        """How each sample ended. RuntimeError before the stream has."""
        if not self._stream.ended:
            raise RuntimeError("the stream has not been read to its end")
        return self._results.complete()

    def _responses(self) -> Iterator[pb.GenerateResponse]:
        try:
            while (response := self._stream.read()) is not None:
                self._results.take(response)
                yield response
            self._results.complete()
        finally:
            self._stream.cancel()  # however the reader went away

    def __iter__(self) -> Iterator[Token]:
        for response in self._responses():
            yield from _collect.tokens_of(response)

    def samples(self) -> list[Sample]:
        """Reads to the end. Faster than token by token."""
        collector = _collect.SampleCollector()
        for response in self._responses():
            collector.take(response)
        return collector.samples(self.results)

    def close(self) -> None:
        """Cancels what has not ended."""
        self._stream.cancel()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
