# SPDX-License-Identifier: Apache-2.0
"""ChatStream and ResponseStream: answers of models with a chat template, read from a thread."""

from __future__ import annotations

import json
import uuid
from typing import Any, Iterator, Optional, TypeVar

from lintel._calls import CallsBase, StreamBase, blocking, run
from lintel._collect_chat import AnswerCollector, ResponseCollector
from lintel.chat_results import Answer, ChatDelta, Response, ResponseEvent
from lintel.errors import LintelError
from lintel.retry import Attempts, ResponseRepeat
from lintel.v1 import chat_pb2, response_pb2

ChatT = TypeVar("ChatT", bound="ChatStreamBase")
ResponseT = TypeVar("ResponseT", bound="ResponseStreamBase")


def to_body(members: dict[str, Any]) -> bytes:
    """TypeError for a member that is no JSON."""
    return json.dumps(members, ensure_ascii=False).encode("utf-8", "surrogatepass")


class ChatStreamBase:
    """Common parts of ChatStream and AsyncChatStream."""

    def __init__(self, stream: StreamBase[Any], choices: int, schema: Any) -> None:
        self._stream = stream
        self._collector = AnswerCollector(choices, schema, stream.request_id)

    @classmethod
    def _begin(
        cls: type[ChatT],
        calls: CallsBase,
        members: dict[str, Any],
        schema: Any,
        attempts: Attempts,
    ) -> ChatT:
        request = chat_pb2.ChatRequest(body=to_body(members))
        stream = calls.stream(calls.stubs.complete_chat, request, attempts)
        return cls(stream, members.get("n") or 1, schema)

    @property
    def request_id(self) -> str:
        """The id of the call in the server's log."""
        return self._stream.request_id

    def close(self) -> None:
        """Cancels what has not ended."""
        self._stream.cancel()

    async def _read(self) -> Optional[list[ChatDelta]]:
        try:
            message = await self._stream.read()
            if message is None:
                self._collector.complete()
                return None
            return self._collector.take(message)
        except BaseException:
            self._stream.cancel()
            raise

    async def _answers(self) -> list[Answer]:
        try:
            while await self._read() is not None:
                pass
        except LintelError as error:
            error.answers = self._collector.answers()
            raise
        return self._collector.complete()


class ChatStream(ChatStreamBase):
    """An answer as it comes: iterate over it, once; or answer() for the whole. The call has started already.

    The server stops when the client stops reading: leaving the loop, close(), the end of a `with`, or
    dropping the object cancel the call. Not for several threads, but close() may be called from another
    one, which ends the loop with Cancelled.
    """

    def __iter__(self) -> Iterator[ChatDelta]:
        try:
            while (deltas := run(self._read())) is not None:
                yield from deltas
        finally:
            self._stream.cancel()  # however the reader went away

    @blocking
    async def answer(self) -> Answer:
        """Reads to the end. The first choice, whole: also after the stream was read. Of a call that fails,
        what came is in the error: LintelError.answers.
        """
        return (await self._answers())[0]

    @blocking
    async def answers(self) -> list[Answer]:
        """Each of the `n` choices, as answer() has one."""
        return await self._answers()

    def __enter__(self) -> ChatStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class ResponseStreamBase:
    """Common parts of ResponseStream and AsyncResponseStream."""

    def __init__(self, stream: StreamBase[Any], schema: Any, in_background: bool) -> None:
        self._stream = stream
        self._in_background = in_background
        self._collector = ResponseCollector(schema, stream.request_id)

    @classmethod
    def _begin(
        cls: type[ResponseT],
        calls: CallsBase,
        members: dict[str, Any],
        schema: Any,
        idempotency_key: str,
        attempts: Attempts,
    ) -> ResponseT:
        request = response_pb2.CreateResponseRequest(
            body=to_body(members), idempotency_key=idempotency_key
        )
        if members.get("store") is not False:
            request.idempotency_key = idempotency_key or uuid.uuid4().hex  # it may be sent again
            if attempts.repeat_for > 0:
                attempts.repeat = ResponseRepeat(attempts.repeat_for)
        stream = calls.stream(calls.stubs.create_response, request, attempts)
        return cls(stream, schema, bool(members.get("background")))

    @property
    def request_id(self) -> str:
        """The id of the call in the server's log."""
        return self._stream.request_id

    def close(self) -> None:
        """Cancels what has not ended."""
        self._stream.cancel()

    async def _read(self) -> Optional[list[ResponseEvent]]:
        try:
            message = await self._stream.read()
            return None if message is None else self._collector.take(message)
        except BaseException:
            self._stream.cancel()
            raise

    async def _response(self) -> Response:
        while await self._read() is not None:
            if self._in_background and self._collector.has_response:
                self._stream.cancel()
                break
        return self._collector.complete()


class ResponseStream(ResponseStreamBase):
    """A response as it comes: iterate over its events, once; or response() for the whole. The call has
    started already. It ends as a ChatStream does; where the response is stored, the server keeps what came.
    """

    def __iter__(self) -> Iterator[ResponseEvent]:
        try:
            while (events := run(self._read())) is not None:
                yield from events
        finally:
            self._stream.cancel()  # however the reader went away

    @blocking
    async def response(self) -> Response:
        """Reads to the end. The response, whole: also after its events were read. Internal for one that
        failed.
        """
        return await self._response()

    def __enter__(self) -> ResponseStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
