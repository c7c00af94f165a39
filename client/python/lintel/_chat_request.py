# SPDX-License-Identifier: Apache-2.0
"""Arguments of chats and responses -> bodies of requests. What they may be is the server's to judge."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Generic, Iterable, Mapping, Optional, TypeVar, Union

from lintel import _schema
from lintel.chat_results import Response

# A function with typed arguments, or a tool in the form of OpenAI's API.
Tool = Union[Callable[..., Any], Mapping[str, Any]]
ToolChoice = Union[str, Callable[..., Any], Mapping[str, Any]]
# A question, or messages in the form of OpenAI's API.
Messages = Union[str, Iterable[Mapping[str, Any]]]

ChatT = TypeVar("ChatT")
ResponseT = TypeVar("ResponseT")


class Chats(Generic[ChatT, ResponseT]):
    """chat() and respond(), as clients of both kinds have them."""

    def _start_chat(self, members: dict[str, Any], schema: Any, timeout: Optional[float]) -> ChatT:
        raise NotImplementedError

    def _start_response(
        self,
        members: dict[str, Any],
        schema: Any,
        idempotency_key: str,
        timeout: Optional[float],
    ) -> ResponseT:
        raise NotImplementedError

    def chat(
        self,
        messages: Messages,
        *,
        tools: Iterable[Tool] = (),
        tool_choice: Optional[ToolChoice] = None,
        parallel_tool_calls: Optional[bool] = None,
        schema: Any = None,
        grammar: Optional[str] = None,
        max_tokens: Optional[int] = None,
        reasoning_effort: Optional[str] = None,
        thinking_token_budget: Optional[int] = None,
        n: Optional[int] = None,
        logprobs: Optional[bool] = None,
        top_logprobs: Optional[int] = None,
        # fields: chat keywords (scripts/fields.py)
        model: Optional[str] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        frequency_penalty: Optional[float] = None,
        penalty_window: Optional[int] = None,
        logit_bias: Optional[Mapping[int, float]] = None,
        seed: Optional[int] = None,
        stop: Optional[Union[str, Iterable[str]]] = None,
        stop_token_ids: Optional[Iterable[int]] = None,
        include_stop_str_in_output: Optional[bool] = None,
        ignore_eos: Optional[bool] = None,
        min_tokens: Optional[int] = None,
        adapter: Optional[str] = None,
        # end of fields
        extra: Optional[Mapping[str, Any]] = None,
        timeout: Optional[float] = None,
    ) -> ChatT:
        """Asks a model with a chat template: iterate over what this returns, or take its answer().

        messages: a question, or messages as dicts with `role` and `content`. Answer.message continues
            a conversation, and ToolCall.result() answers a call.
        tools: functions, whose arguments have types that JSON has (dataclasses, Literal, enums, lists and
            so on) and whose docstring says what they do; or tools as OpenAI's API has them, dicts.
        tool_choice: "auto", "none", "required", or the function to call.
        parallel_tool_calls: False ends the answer after the first call.
        schema: what the answer is to be: a dataclass or another type (see Answer.parsed), or a JSON schema.
        grammar: what the answer is to be, as GBNF.
        max_tokens: most tokens of the answer, with its reasoning [up to the context, and --chat-max-tokens].
        reasoning_effort: "none" turns thinking off; "low", "medium", "high" and others turn it on.
        thinking_token_budget: tokens of reasoning after which the server ends it; 0: at once.
        n: answers of one prompt: see ChatStream.answers().
        logprobs, top_logprobs: of the content's tokens, with so many alternatives.
        extra: further members of the body of OpenAI's /v1/chat/completions, as docs/chat.md lists them.
        timeout: seconds after which the call fails, retries included; None: the client's.

        A chat changes nothing on the server and is sent again as a generation without a session is. The
        other arguments, with their defaults in brackets, which the model's checkpoint may change:

        model: Model that answers [the one that is served]
        temperature: 0: the most likely token; 1: the model's distribution [1]
        top_k: Keep the K most likely tokens; 0: all [all]
        top_p: Keep the smallest set of tokens with this probability [1]
        min_p: Drop tokens below this share of the most likely one's probability [0]
        repetition_penalty: Divides (multiplies) positive (negative) logits of tokens that occurred [1]
        presence_penalty: Subtracted once from the logits of tokens that occurred [0]
        frequency_penalty: Subtracted from logits once per occurrence of the token [0]
        penalty_window: Penalties count the last N tokens only; 0: all of the sequence [0]
        logit_bias: Added to the logit of a token [none]
        seed: The same one gives the same tokens; sample i has seed + i [random]
        stop: Texts that end the answer, at most --max-stop-strings [none]
        stop_token_ids: Tokens that end the answer, at most 256 [none]
        include_stop_str_in_output: The stop token or text is part of the answer [false]
        ignore_eos: Tokens that end the model's texts do not end the answer [false]
        min_tokens: Nothing ends the answer before it has so many tokens [0]
        adapter: LoRA adapter of the model [none]
        """
        members = {
            "messages": _messages(messages),
            "tools": [{"type": "function", "function": _function(tool)} for tool in tools],
            "tool_choice": _nested_choice(tool_choice),
            "parallel_tool_calls": parallel_tool_calls,
            "grammar": grammar,
            "max_completion_tokens": max_tokens,
            "reasoning_effort": reasoning_effort,
            "thinking_token_budget": thinking_token_budget,
            "n": n,
            "logprobs": logprobs,
            "top_logprobs": top_logprobs,
            # fields: chat members (scripts/fields.py)
            "model": model,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "penalty_window": penalty_window,
            "logit_bias": logit_bias,
            "seed": seed,
            "stop": _list(stop),
            "stop_token_ids": _list(stop_token_ids),
            "include_stop_str_in_output": include_stop_str_in_output,
            "ignore_eos": ignore_eos,
            "min_tokens": min_tokens,
            "adapter": adapter,
            # end of fields
        }
        if schema is not None:
            form = _format(schema)
            members["response_format"] = {"type": "json_schema", "json_schema": form}
        return self._start_chat(_given(members, extra), schema, timeout)

    def respond(
        self,
        input: Messages,
        *,
        previous_response_id: Union[str, Response, None] = None,
        instructions: Optional[str] = None,
        store: Optional[bool] = None,
        background: Optional[bool] = None,
        tools: Iterable[Tool] = (),
        tool_choice: Optional[ToolChoice] = None,
        parallel_tool_calls: Optional[bool] = None,
        schema: Any = None,
        max_tokens: Optional[int] = None,
        reasoning_effort: Optional[str] = None,
        thinking_token_budget: Optional[int] = None,
        # fields: responses keywords (scripts/fields.py)
        model: Optional[str] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        frequency_penalty: Optional[float] = None,
        penalty_window: Optional[int] = None,
        logit_bias: Optional[Mapping[int, float]] = None,
        seed: Optional[int] = None,
        stop: Optional[Union[str, Iterable[str]]] = None,
        stop_token_ids: Optional[Iterable[int]] = None,
        include_stop_str_in_output: Optional[bool] = None,
        ignore_eos: Optional[bool] = None,
        min_tokens: Optional[int] = None,
        adapter: Optional[str] = None,
        # end of fields
        extra: Optional[Mapping[str, Any]] = None,
        idempotency_key: str = "",
        timeout: Optional[float] = None,
    ) -> ResponseT:
        """Asks a model with a chat template in a conversation that the server keeps: iterate over the events
        of what this returns, or take its response().

        input: a question, or items in the form of OpenAI's /v1/responses: messages, or ToolCall.output()
            that answers a call.
        previous_response_id: continues after this response, or its id; two that name the same are branches.
        instructions: a system text of this call alone.
        store: False: nothing is kept, and the response cannot be continued.
        background: True: the response runs without its client. response() gives it as it begins, without
            events, and get_response() later how it is.
        extra: further members of the body of OpenAI's /v1/responses, as docs/chat.md lists them.
        idempotency_key: names the call: another one with the same key and arguments gives the same
            response [random, so that a call that was cut off can be sent again: see RetryPolicy].

        Other arguments are those of chat().
        """
        members = {
            "input": _items(input),
            "previous_response_id": (
                previous_response_id.id
                if isinstance(previous_response_id, Response)
                else previous_response_id
            ),
            "instructions": instructions,
            "store": store,
            "background": background,
            "stream": not background,
            "tools": [{"type": "function", **_function(tool)} for tool in tools],
            "tool_choice": _flat_choice(tool_choice),
            "parallel_tool_calls": parallel_tool_calls,
            "max_output_tokens": max_tokens,
            "thinking_token_budget": thinking_token_budget,
            # fields: responses members (scripts/fields.py)
            "model": model,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "penalty_window": penalty_window,
            "logit_bias": logit_bias,
            "seed": seed,
            "stop": _list(stop),
            "stop_token_ids": _list(stop_token_ids),
            "include_stop_str_in_output": include_stop_str_in_output,
            "ignore_eos": ignore_eos,
            "min_tokens": min_tokens,
            "adapter": adapter,
            # end of fields
        }
        if reasoning_effort is not None:
            members["reasoning"] = {"effort": reasoning_effort}
        if schema is not None:
            members["text"] = {"format": {"type": "json_schema", **_format(schema)}}
        return self._start_response(_given(members, extra), schema, idempotency_key, timeout)


class Members(Chats["dict[str, Any]", "dict[str, Any]"]):
    """The bodies, in place of calls."""

    def _start_chat(
        self, members: dict[str, Any], schema: Any, timeout: Optional[float]
    ) -> dict[str, Any]:
        return members

    def _start_response(
        self,
        members: dict[str, Any],
        schema: Any,
        idempotency_key: str,
        timeout: Optional[float],
    ) -> dict[str, Any]:
        return members


def _given(members: Mapping[str, Any], extra: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """The members that have a value."""
    given = {name: value for name, value in members.items() if value is not None and value != []}
    return {**given, **(extra or {})}


def _list(values: Any) -> Any:
    """A text as it is, any other iterable as JSON has it."""
    return values if values is None or isinstance(values, str) else list(values)


def _messages(messages: Messages) -> list[Any]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return _dicts(messages, "messages")


def _items(input: Messages) -> Union[str, list[Any]]:
    return input if isinstance(input, str) else _dicts(input, "input")


def _dicts(values: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    if isinstance(values, (bytes, Mapping)):
        raise TypeError(f"{name} is a str or a list of dicts, not {type(values).__name__}")
    return [dict(each) for each in values]


def _function(tool: Tool) -> dict[str, Any]:
    """The tool's name, description and parameters."""
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        own = inner if isinstance(inner, Mapping) else tool
        return {name: value for name, value in own.items() if name != "type"}
    if not callable(tool):
        raise TypeError(f"a tool is a function or a dict, not {type(tool).__name__}")
    function: dict[str, Any] = {"name": tool.__name__}
    if documentation := inspect.getdoc(tool):
        function["description"] = documentation
    return {**function, "parameters": _schema.function_schema(tool), "strict": True}


def _nested_choice(choice: Optional[ToolChoice]) -> Any:
    if callable(choice):
        return {"type": "function", "function": {"name": choice.__name__}}
    return choice


def _flat_choice(choice: Optional[ToolChoice]) -> Any:
    return {"type": "function", "name": choice.__name__} if callable(choice) else choice


def _format(schema: Any) -> dict[str, Any]:
    """Strict: a keyword that is not enforced is refused by name."""
    if isinstance(schema, Mapping):
        return {"name": str(schema.get("title", "answer")), "schema": dict(schema), "strict": True}
    name = getattr(schema, "__name__", "answer")
    return {"name": name, "schema": _schema.schema_of(schema), "strict": True}
