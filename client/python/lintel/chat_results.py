# SPDX-License-Identifier: Apache-2.0
"""Answers of chats and responses, as plain Python."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Optional

from lintel import _schema
from lintel.results import Timings
from lintel.v1 import chat_pb2


class ChatFinishReason(enum.Enum):
    """The reason why an answer ended."""

    UNSPECIFIED = chat_pb2.CHAT_FINISH_REASON_UNSPECIFIED
    STOP = chat_pb2.CHAT_FINISH_REASON_STOP  # the model ended, or a stop text came
    LENGTH = chat_pb2.CHAT_FINISH_REASON_LENGTH  # a limit cut it
    TOOL_CALLS = chat_pb2.CHAT_FINISH_REASON_TOOL_CALLS  # the model ended with a call


class Usage(NamedTuple):
    """Tokens of a call."""

    prompt_tokens: int = 0  # all of the prompt
    cached_tokens: int = 0  # of which were not read: the state after them was kept
    completion_tokens: int = 0  # of all choices, with reasoning and tags
    reasoning_tokens: int = 0


class ContentToken(NamedTuple):
    """A token of an answer's content, with logprobs=True."""

    token: int
    text: bytes
    log2_prob: float
    top: tuple[ContentToken, ...] = ()  # the most likely ones, with top_logprobs


@dataclass(frozen=True)
class CallDelta:
    """A piece of a call of a tool. The first one of a call has its id and name."""

    index: int
    id: str
    name: str
    arguments: str


class ChatDelta(NamedTuple):
    """A piece of an answer: reasoning, content or a call."""

    content: str = ""
    reasoning: str = ""
    call: Optional[CallDelta] = None
    choice: int = 0
    tokens: tuple[ContentToken, ...] = ()  # of the content, with logprobs=True
    token_ids: tuple[int, ...] = ()  # drawn since the delta before, with return_token_ids


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that the model asks for."""

    id: str
    name: str
    arguments: str  # a JSON object

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments, as JSON has them."""
        return dict(json.loads(self.arguments))

    def run(self, function: Callable[..., Any]) -> Any:
        """Calls a function with the arguments, as instances of its types; what an async function
        returns is to be awaited. ValueError, with the place, for arguments that do not fit the types.
        """
        return function(**_schema.build_arguments(function, json.loads(self.arguments)))

    def result(self, value: Any) -> dict[str, Any]:
        """The message of a chat that answers the call. value: a str, or what JSON has, dataclasses and
        enums included.
        """
        return {"role": "tool", "tool_call_id": self.id, "content": _schema.to_text(value)}

    def output(self, value: Any) -> dict[str, Any]:
        """The item of a response's input that answers the call. value: as of result()."""
        return {
            "type": "function_call_output",
            "call_id": self.id,
            "output": _schema.to_text(value),
        }


@dataclass(frozen=True)
class Answer:
    """One choice of a chat, whole."""

    content: str
    reasoning: str
    # Calls that are whole: one that broke off, which only a stream shows, is left out.
    calls: tuple[ToolCall, ...]
    finish_reason: ChatFinishReason
    seed: int  # repeats this answer
    model: str
    usage: Usage  # of all choices
    choice: int = 0
    tokens: tuple[ContentToken, ...] = ()  # of the content, with logprobs=True
    token_ids: tuple[int, ...] = ()  # of the answer, with return_token_ids
    prompt_ids: tuple[int, ...] = ()  # of the prompt, with return_token_ids
    stop_string: bytes = b""  # the one that ended it
    at_context_end: bool = False  # no further token has a place in the model's context
    timings: Timings = Timings(0.0, 0.0, 0.0, 0.0)
    schema: Any = field(default=None, repr=False)  # of the call

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, for the next call's `messages`."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return message

    @property
    def parsed(self) -> Any:
        """The content as an instance of the call's `schema`, a dict where that is a JSON schema; None
        where the answer is calls. ValueError for an answer that was cut, or that does not fit.
        """
        was_cut = self.finish_reason is ChatFinishReason.LENGTH
        return _parsed(self.schema, self.content, self.calls, was_cut)


@dataclass(frozen=True)
class Response:
    """A response, whole. `data` is all of it, in the form of OpenAI's /v1/responses."""

    id: str
    status: str  # "completed", "incomplete", "failed", "cancelled", "queued" or "in_progress"
    model: str
    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    output: tuple[dict[str, Any], ...]  # items
    usage: Usage
    previous_response_id: Optional[str]
    data: dict[str, Any] = field(repr=False)
    schema: Any = field(default=None, repr=False)  # of the call

    @property
    def parsed(self) -> Any:
        """The same as Answer.parsed."""
        was_cut = self.status == "incomplete"
        return _parsed(self.schema, self.content, self.calls, was_cut)


class ResponseEvent(NamedTuple):
    """An event of a response's stream, in the form of OpenAI's API."""

    type: str  # "response.output_text.delta"
    data: dict[str, Any]

    @property
    def content(self) -> str:
        """The text that the event adds; empty: nothing."""
        return self._delta("response.output_text.delta")

    @property
    def reasoning(self) -> str:
        """The reasoning that the event adds; empty: nothing."""
        return self._delta("response.reasoning.delta", "response.reasoning_text.delta")

    def _delta(self, *types: str) -> str:
        return str(self.data.get("delta", "")) if self.type in types else ""


class Rendered(NamedTuple):
    """The prompt that a request becomes."""

    text: bytes
    ids: tuple[int, ...]
    turn_boundary: int  # tokens that stay the same in the conversation's next turn
    before_generation_prompt: int  # tokens before what asks for an answer
    model: str


def _parsed(schema: Any, content: str, calls: tuple[ToolCall, ...], was_cut: bool) -> Any:
    if schema is None:
        raise ValueError("the call has no schema")
    if calls and not content:
        return None
    try:
        value = json.loads(content)
    except ValueError as error:
        if was_cut:
            raise ValueError("a limit cut the answer: a larger max_tokens may help") from None
        raise ValueError(f"the answer is no JSON: {error}") from None
    return value if isinstance(schema, Mapping) else _schema.build(schema, value)


def whole_calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls whose arguments are an object of JSON."""
    return tuple(call for call in calls if _is_object(call.arguments))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _content_token(wire: chat_pb2.ContentToken) -> ContentToken:
    return ContentToken(wire.id, wire.text, wire.log2_prob, tuple(map(_content_token, wire.top)))


def read_delta(wire: chat_pb2.ChatDelta) -> ChatDelta:
    call = wire.call
    return ChatDelta(
        wire.content,
        wire.reasoning,
        CallDelta(call.index, call.id, call.name, call.arguments) if wire.HasField("call") else None,
        wire.choice,
        tuple(map(_content_token, wire.tokens)),
        tuple(wire.token_ids),
    )


def read_response(body: bytes, schema: Any = None) -> Response:
    data: dict[str, Any] = json.loads(body)
    items = data["output"]
    usage = data.get("usage") or {}
    return Response(
        id=data["id"],
        status=data["status"],
        model=data["model"],
        content=_text_of(items, "message", "output_text"),
        reasoning=_text_of(items, "reasoning", "reasoning_text"),
        calls=whole_calls(
            ToolCall(item["call_id"], item["name"], item["arguments"])
            for item in items
            if item["type"] == "function_call"
        ),
        output=tuple(items),
        usage=Usage(
            usage.get("input_tokens", 0),
            usage.get("input_tokens_details", {}).get("cached_tokens", 0),
            usage.get("output_tokens", 0),
            usage.get("output_tokens_details", {}).get("reasoning_tokens", 0),
        ),
        previous_response_id=data.get("previous_response_id"),
        data=data,
        schema=schema,
    )


def _text_of(items: list[dict[str, Any]], item_type: str, part_type: str) -> str:
    return "".join(
        part["text"]
        for item in items
        if item["type"] == item_type
        for part in item.get("content") or ()
        if part["type"] == part_type
    )
