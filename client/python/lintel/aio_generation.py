# SPDX-License-Identifier: Apache-2.0
"""AsyncGeneration: a stream of tokens, read from asyncio."""

from __future__ import annotations

from typing import AsyncIterator, Iterator, Optional

from lintel._aio_calls import Pieces, close_quietly
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
        return Pieces(self._read_tokens, self.close)

    async def _read_tokens(self) -> Optional[Iterator[Token]]:
        response = await self._read()
        return None if response is None else self._tokens.tokens_of(response)

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        close_quietly(self.close)
