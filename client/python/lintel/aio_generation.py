# SPDX-License-Identifier: Apache-2.0
"""AsyncGeneration: a stream of tokens, read from asyncio."""

from __future__ import annotations

from typing import AsyncIterator, Iterator

from lintel._calls import awaiting
from lintel.generation import Generation, GenerationBase
from lintel.results import Token


class AsyncGeneration(GenerationBase):
    """A stream of tokens: iterate over it with `async for`, once. The call has started already, unless
    the server must be asked first where it ends (max_new_tokens), or whether its session outlives the
    server; then it begins when it is read.

    The server stops, and frees the call's memory, when the client stops reading: leaving the loop,
    close(), the end of an `async with`, cancelling the task or dropping the object cancel the call.
    """

    samples = awaiting(Generation.samples)

    def __aiter__(self) -> AsyncIterator[Token]:
        return _Tokens(self)

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
            self._here = self._generation._tokens.tokens_of(response)

    def __del__(self) -> None:
        _close_quietly(self._generation)


def _close_quietly(generation: AsyncGeneration) -> None:
    try:
        generation.close()
    except (AttributeError, RuntimeError):  # half made, or the loop is closed
        pass
