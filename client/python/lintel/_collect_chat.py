# SPDX-License-Identifier: Apache-2.0
"""Messages of Complete and Create streams -> deltas, events, answers and responses."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, Optional

import grpc

from lintel.chat_results import (
    Answer,
    CallDelta,
    ChatDelta,
    ChatFinishReason,
    ContentToken,
    Response,
    ResponseEvent,
    ToolCall,
    Usage,
    read_delta,
    read_response,
    whole_calls,
)
from lintel.errors import make_error
from lintel.results import read_timings
from lintel.v1 import chat_pb2, response_pb2


class _Parts:
    """The parts of one choice."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, CallDelta] = {}
        self.arguments: defaultdict[int, list[str]] = defaultdict(list)
        self.tokens: list[ContentToken] = []
        self.token_ids: list[int] = []
        self.finish: Optional[chat_pb2.ChatFinish] = None

    def take(self, delta: ChatDelta) -> None:
        self.content.append(delta.content)
        self.reasoning.append(delta.reasoning)
        if delta.call is not None:
            self.calls.setdefault(delta.call.index, delta.call)
            self.arguments[delta.call.index].append(delta.call.arguments)
        self.tokens += delta.tokens
        self.token_ids += delta.token_ids

    def answer(self, choice: int, collector: AnswerCollector) -> Answer:
        calls = (
            ToolCall(call.id, call.name, "".join(self.arguments[index]))
            for index, call in sorted(self.calls.items())
        )
        finish = self.finish or chat_pb2.ChatFinish()
        known = finish.reason in (reason.value for reason in ChatFinishReason)
        return Answer(
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            calls=whole_calls(calls),
            finish_reason=ChatFinishReason(finish.reason if known else 0),
            seed=finish.seed,
            model=collector.model,
            usage=collector.usage,
            choice=choice,
            tokens=tuple(self.tokens),
            token_ids=tuple(self.token_ids),
            prompt_ids=collector.prompt_ids,
            stop_string=finish.stop_string,
            at_context_end=finish.at_context_end,
            timings=read_timings(finish.timings),
            schema=collector.schema,
        )


class AnswerCollector:
    """Joins the deltas of a stream into answers."""

    def __init__(self, choices: int, schema: Any, request_id: str) -> None:
        self._parts = [_Parts() for _ in range(choices)]
        self._request_id = request_id
        self.schema = schema
        self.model = ""
        self.usage = Usage()
        self.prompt_ids: tuple[int, ...] = ()

    def take(self, message: chat_pb2.ChatResponse) -> list[ChatDelta]:
        """The message's deltas. Internal where the server answers what was not asked."""
        for item in (*message.deltas, *message.finished):
            if item.choice >= len(self._parts):
                raise self._nonsense("the server sent a choice that was not requested")
        deltas = [read_delta(delta) for delta in message.deltas]
        for delta in deltas:
            self._parts[delta.choice].take(delta)
        for finish in message.finished:
            self._parts[finish.choice].finish = finish
        self.model = self.model or message.model
        self.prompt_ids = self.prompt_ids or tuple(message.prompt_ids)
        if message.HasField("usage"):
            usage = message.usage
            self.usage = Usage(
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                usage.reasoning_tokens,
            )
        return deltas

    def complete(self) -> list[Answer]:
        """REQUIRES: the stream has ended with OK."""
        if any(parts.finish is None for parts in self._parts):
            raise self._nonsense("the stream ended before every answer had")
        return self.answers()

    def answers(self) -> list[Answer]:
        """The answers so far."""
        return [parts.answer(i, self) for i, parts in enumerate(self._parts)]

    def _nonsense(self, what: str) -> Exception:
        return make_error(grpc.StatusCode.INTERNAL, what, self._request_id)


class ResponseCollector:
    """The response at the end of a stream of events."""

    def __init__(self, schema: Any, request_id: str) -> None:
        self._schema = schema
        self._request_id = request_id
        self._response = b""

    def take(self, message: response_pb2.ResponseEvents) -> list[ResponseEvent]:
        self._response = message.response or self._response
        return [ResponseEvent(event.type, json.loads(event.body)) for event in message.events]

    @property
    def has_response(self) -> bool:
        return bool(self._response)

    def complete(self) -> Response:
        """REQUIRES: the stream has ended with OK, or has_response. Internal for a response that failed."""
        code = grpc.StatusCode.INTERNAL
        if not self._response:
            raise make_error(code, "the stream ended without the response", self._request_id)
        response = read_response(self._response, self._schema)
        if response.status == "failed":
            error = response.data.get("error") or {}
            raise make_error(
                code,
                f"response {response.id} failed: {error.get('message', '')}",
                self._request_id,
                reason=str(error.get("code", "")),
                facts={"response": response.id},
            )
        return response
