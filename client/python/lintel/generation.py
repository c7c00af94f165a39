# SPDX-License-Identifier: Apache-2.0
"""Generation: a stream of tokens, read from a thread."""

from __future__ import annotations

from typing import Iterator, Optional, TypeVar

from lintel import _collect, _request
from lintel._calls import CallsBase, StreamBase, blocking, run
from lintel.errors import LintelError
from lintel.results import Sample, SampleResult, Token
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb

GenerationT = TypeVar("GenerationT", bound="GenerationBase")


class GenerationBase:
    """Common parts of Generation and AsyncGeneration."""

    def __init__(self, stream: StreamBase[pb.GenerateResponse], num_samples: int) -> None:
        self._stream = stream
        self._results = _collect.Results(num_samples, stream.request_id)
        self._tokens = _collect.TokenReader()

    @classmethod
    def _begin(
        cls: type[GenerationT], calls: CallsBase, request: pb.GenerateRequest, attempts: Attempts
    ) -> GenerationT:
        calls.expect(request, attempts)
        unsure = _request.is_open(request) or calls.is_unsure(request, attempts)
        stream = calls.stream(
            calls.stubs.generate, request, attempts, calls.prepare if unsure else None
        )
        return cls(stream, request.num_samples if request.HasField("num_samples") else 1)

    @property
    def request_id(self) -> str:
        """The id of the call in the server's log."""
        return self._stream.request_id

    @property
    def result(self) -> SampleResult:
        """The result of the first sample. RuntimeError before the stream has ended."""
        return self.results[0]

    @property
    def results(self) -> list[SampleResult]:
        """The result of each sample. RuntimeError before the stream has ended."""
        if not self._stream.ended:
            raise RuntimeError("the stream has not been read to its end")
        return self._results.complete()

    def close(self) -> None:
        """Cancels what has not ended."""
        self._stream.cancel()

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

    async def _samples(self) -> list[Sample]:
        collector = _collect.SampleCollector()
        try:
            while (response := await self._read()) is not None:
                collector.take(response)
        except LintelError as error:
            error.partial = collector.partial(self._results, self._stream.request, error.code)
            raise
        finally:
            self._stream.cancel()
        return collector.samples(self.results)


class Generation(GenerationBase):
    """A stream of tokens: iterate over it, once. The call has started already.

    The server stops, and frees the call's memory, when the client stops reading: leaving the loop,
    close(), the end of a `with`, or dropping the object cancel the call. Not for several threads,
    but close() may be called from another one, which ends the loop with Cancelled.
    """

    def __iter__(self) -> Iterator[Token]:
        try:
            while (response := run(self._read())) is not None:
                yield from self._tokens.tokens_of(response)
        finally:
            self._stream.cancel()  # however the reader went away

    @blocking
    async def samples(self) -> list[Sample]:
        """Reads to the end. Faster than token by token. Of a call that fails, what came is in the
        error: LintelError.partial.
        """
        return await self._samples()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
