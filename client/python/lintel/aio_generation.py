# SPDX-License-Identifier: Apache-2.0
"""AsyncGeneration: a stream of tokens, read from asyncio."""

from __future__ import annotations

import asyncio
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Generic,
    Iterator,
    Optional,
    TypeVar,
)

import grpc
import grpc.aio

from lintel import _collect, _request
from lintel._aio_calls import AsyncCalls, cancelled_by_server, task_is_cancelled
from lintel._streaming import GenerationBase, StreamBase
from lintel.errors import LOCAL_ENDINGS, LintelError, make_error
from lintel.results import Sample, Token
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb

T = TypeVar("T")


class AsyncStream(StreamBase, Generic[T]):
    """One server stream, restarted while nothing has come of it."""

    _calls: AsyncCalls

    def __init__(
        self,
        calls: AsyncCalls,
        method: Callable[..., Any],
        request: Any,
        attempts: Attempts,
        prepare: Optional[Callable[[Any, Attempts], Awaitable[None]]] = None,
    ) -> None:
        """prepare: awaited with the request before each attempt; with it the first one is made when
        the stream is read.
        """
        super().__init__(calls, method, request, attempts, asyncio.Event())
        self._prepare = prepare
        calls.streams.add(self)
        if prepare is None:
            self._begin()

    async def _prepare_and_begin(self) -> None:
        if self._prepare is not None:
            await self._prepare(self._request, self._attempts)
        self._begin()

    async def read(self) -> Optional[T]:
        """The next message; None: the stream has ended with OK."""
        if self.ended:
            return None
        try:
            if not self.has_started:
                await self._prepare_and_begin()
            while True:
                try:
                    message: Any = await self._call.read()
                    if message is grpc.aio.EOF:
                        self.ended = True
                        return None
                    if self._is_news(message):
                        return message  # type: ignore[no-any-return]
                    continue
                except grpc.RpcError as rpc_error:
                    error = self._calls.error_of(rpc_error, self.request_id, self._attempts)
                except asyncio.CancelledError:
                    if self._cancelled.is_set() or self._calls.closed:
                        raise
                    by_server = await cancelled_by_server(self._call, self.request_id)
                    if by_server is None:
                        raise
                    error = by_server
                if self._ends_with(error):
                    return None
                await self._calls.wait_or_raise(error, self._attempts, self._cancelled)
                await self._prepare_and_begin()
        except asyncio.CancelledError:
            closed = self._cancelled.is_set() or self._calls.closed
            self.cancel()
            if closed and not task_is_cancelled():
                code = grpc.StatusCode.CANCELLED
                raise make_error(code, "the call was closed", self.request_id) from None
            raise
        except LintelError as final:
            self._lost = final.code in LOCAL_ENDINGS
            raise


class AsyncGeneration(GenerationBase):
    """A stream of tokens: iterate over it with `async for`, once. The call has started already, unless
    the server must be asked first where it ends (max_new_tokens), or whether its session outlives the
    server; then it begins when it is read.

    The server stops, and frees the call's memory, when the client stops reading: leaving the loop,
    close(), the end of an `async with`, cancelling the task or dropping the object cancel the call.
    """

    _stream: AsyncStream[pb.GenerateResponse]

    async def _read(self) -> Optional[pb.GenerateResponse]:
        try:
            response = await self._stream.read()
            if response is None:
                self._results.complete()
            else:
                self._results.take(response)
            return response
        except BaseException:
            self._stream.cancel()
            raise

    def __aiter__(self) -> AsyncIterator[Token]:
        return _Tokens(self)

    async def samples(self) -> list[Sample]:
        """Reads to the end. Faster than token by token. Of a call that fails, what came is in the
        error: LintelError.partial.
        """
        collector = _collect.SampleCollector()
        try:
            while (response := await self._read()) is not None:
                collector.take(response)
        except LintelError as error:
            error.partial = collector.partial(self._results, self._stream.request, error.code)
            raise
        return collector.samples(self.results)

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        _close_quietly(self)


class _Tokens(AsyncIterator[Token]):
    """What `async for` holds. No async generator: the loop would close that later, not at once."""

    def __init__(self, generation: AsyncGeneration) -> None:
        self._generation = generation
        self._here: Iterator[Token] = iter(())  # of the last message

    async def __anext__(self) -> Token:
        while True:
            for token in self._here:
                return token
            response = await self._generation._read()
            if response is None:
                raise StopAsyncIteration
            self._here = _collect.tokens_of(response)

    def __del__(self) -> None:
        _close_quietly(self._generation)


def _close_quietly(generation: AsyncGeneration) -> None:
    try:
        generation.close()
    except (AttributeError, RuntimeError):  # half made, or the loop is closed
        pass


def begin(calls: AsyncCalls, request: pb.GenerateRequest, attempts: Attempts) -> AsyncGeneration:
    calls.expect(request, attempts)
    unsure = _request.is_open(request) or calls.is_unsure(request, attempts)
    stream: AsyncStream[pb.GenerateResponse] = AsyncStream(
        calls,
        calls.stubs.generate,
        request,
        attempts,
        prepare=calls.prepare if unsure else None,
    )
    return AsyncGeneration(stream, _request.num_samples(request))
