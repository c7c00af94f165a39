# SPDX-License-Identifier: Apache-2.0
"""Generation: a stream of tokens, read from a thread."""

from __future__ import annotations

import threading
from typing import Any, Callable, Generic, Iterator, Optional, TypeVar

import grpc

from lintel import _collect, _request
from lintel._calls import Calls
from lintel._streaming import GenerationBase, StreamBase
from lintel.errors import LOCAL_ENDINGS, LintelError
from lintel.results import Sample, Token
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb

T = TypeVar("T")


class Stream(StreamBase, Generic[T]):
    """One server stream, restarted while nothing has come of it."""

    _calls: Calls

    def __init__(
        self,
        calls: Calls,
        method: Callable[..., Any],
        request: Any,
        attempts: Attempts,
        prepare: Optional[Callable[[Any, Attempts], None]] = None,
    ) -> None:
        """prepare: called with the request before each attempt."""
        self._prepare = prepare
        super().__init__(calls, method, request, attempts, threading.Event())
        self._begin()

    def _begin(self) -> None:
        if self._prepare is not None:
            self._prepare(self._request, self._attempts)
        super()._begin()

    def read(self) -> Optional[T]:
        """The next message; None: the stream has ended with OK."""
        if self.ended:
            return None
        while True:
            try:
                message: T = next(self._call)
                if self._is_news(message):
                    return message
                continue
            except StopIteration:
                self.ended = True
                return None
            except grpc.RpcError as rpc_error:
                error = self._calls.error_of(rpc_error, self.request_id, self._attempts)
            except BaseException:  # KeyboardInterrupt: the server stops, too
                self.cancel()
                raise
            try:
                if self._ends_with(error):
                    return None
                self._calls.wait_or_raise(error, self._attempts, self._cancelled)
                self._begin()
            except LintelError as final:
                self._lost = final.code in LOCAL_ENDINGS
                raise


class Generation(GenerationBase):
    """A stream of tokens: iterate over it, once. The call has started already.

    The server stops, and frees the call's memory, when the client stops reading: leaving the loop,
    close(), the end of a `with`, or dropping the object cancel the call. Not for several threads,
    but close() may be called from another one, which ends the loop with Cancelled.
    """

    _stream: Stream[pb.GenerateResponse]

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
        """Reads to the end. Faster than token by token. Of a call that fails, what came is in the
        error: LintelError.partial.
        """
        collector = _collect.SampleCollector()
        try:
            for response in self._responses():
                collector.take(response)
        except LintelError as error:
            error.partial = collector.partial(self._results, self._stream.request, error.code)
            raise
        return collector.samples(self.results)

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def begin(calls: Calls, request: pb.GenerateRequest, attempts: Attempts) -> Generation:
    calls.expect(request, attempts)
    stream: Stream[pb.GenerateResponse] = Stream(
        calls, calls.stubs.generate, request, attempts, prepare=calls.prepare
    )
    return Generation(stream, _request.num_samples(request))
