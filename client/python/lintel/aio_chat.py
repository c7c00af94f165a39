# SPDX-License-Identifier: Apache-2.0
"""AsyncChatStream and AsyncResponseStream: answers of models with a chat template, read from asyncio."""

from __future__ import annotations

from typing import AsyncIterator

from lintel._aio_calls import Pieces, close_quietly
from lintel._calls import awaiting
from lintel.chat import ChatStream, ChatStreamBase, ResponseStream, ResponseStreamBase
from lintel.chat_results import ChatDelta, ResponseEvent


class AsyncChatStream(ChatStreamBase):
    """An answer as it comes: iterate over it with `async for`, once; or await answer() for the whole. The
    call has started already.

    The server stops when the client stops reading: leaving the loop, close(), the end of an `async with`,
    cancelling the task or dropping the object cancel the call.
    """

    answer = awaiting(ChatStream.answer)
    answers = awaiting(ChatStream.answers)

    def __aiter__(self) -> AsyncIterator[ChatDelta]:
        return Pieces(self._read, self.close)

    async def __aenter__(self) -> AsyncChatStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        close_quietly(self.close)


class AsyncResponseStream(ResponseStreamBase):
    """A response as it comes: iterate over its events with `async for`, once; or await response() for the
    whole. It ends as an AsyncChatStream does.
    """

    response = awaiting(ResponseStream.response)

    def __aiter__(self) -> AsyncIterator[ResponseEvent]:
        return Pieces(self._read, self.close)

    async def __aenter__(self) -> AsyncResponseStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        close_quietly(self.close)
