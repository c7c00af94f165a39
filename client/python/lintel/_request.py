# SPDX-License-Identifier: Apache-2.0
"""Arguments of generate() -> lintel.v1.GenerateRequest. What they may be is the server's to judge."""

from __future__ import annotations

from typing import Generic, Iterable, Mapping, Optional, TypeVar, Union

from lintel import _values
from lintel.v1 import generation_pb2 as pb

StopItem = Union[int, str, bytes]
Given = Union[Mapping[int, _values.Values], Iterable["tuple[int, _values.Values]"]]

GenerationT = TypeVar("GenerationT")


class Generates(Generic[GenerationT]):
    """generate(), as clients and sessions of both kinds have it."""

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> GenerationT:
        raise NotImplementedError

    def generate(
        self,
        prompt: Optional[_values.Values] = None,
        *,
        model: str = "",
        session: str = "",
        adapter: str = "",
        initial_state: str = "",
        window: Optional[int] = None,
        max_new_tokens: Optional[int] = None,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        frequency_penalty: Optional[float] = None,
        penalty_window: int = 0,
        logit_bias: Optional[Mapping[int, float]] = None,
        seed: Optional[int] = None,
        stop: Union[StopItem, Iterable[StopItem], None] = None,
        include_stop: bool = False,
        given: Optional[Given] = None,
        particles: int = 0,
        num_samples: Optional[int] = None,
        log2_probs: bool = False,
        top_log2_probs: int = 0,
        echo_prompt: bool = False,
        max_tokens_per_message: int = 0,
        time_limit: Optional[float] = None,
        timeout: Optional[float] = None,
    ) -> GenerationT:
        """Reads a prompt and streams what follows: iterate over what this returns.

        prompt: str or bytes for byte models, token ids (any iterable or array of integers), or a
            uint8 image of two or more dimensions in raster order. None: the start token, or what a
            session has pending.
        model: may be empty when one model is loaded; of a session, the session's.
        session: id of the session to continue; Session.generate() fills it.
        adapter: a LoRA adapter of the model; of a session, the session's.
        initial_state: a named state to begin with; not with a session.
        window: having read so many values the state is reset and re-reads the last half, for text longer
            than the model was trained on; 0: never. None: the session's, or the server's choice:
            what the model was trained on, where that is known (see result.window).
        max_new_tokens: None: of an image, to its end; of anything else 256, unless there is a
            time_limit. The model is asked which it is where the prompt does not tell.
        temperature to logit_bias: see message Sampling of proto/lintel/v1/generation.proto; what is
            None has the server's default.
        seed: repeats a generation, bit for bit. None: the server draws one, see result.seed.
        stop: token ids, and for byte models str or bytes; one or several.
        include_stop: the stop token or text is part of the output.
        given: values from a position on that are fed in place of samples: {position: values}.
        particles: so many draw side by side, weighed by what they make of `given`, and the samples are
            chosen among them: draws given all that is known, also what comes later. 0 or 1: none.
        num_samples: of one prompt; sample i is what seed + i gives. Not with a session.
        log2_probs, top_log2_probs: each value's log2-probability, and the N most likely values.
        echo_prompt: streams the prompt too.
        max_tokens_per_message: 0: the server gathers; 1: every value as soon as it is there.
        time_limit: seconds after which generation ends, with what there is and DEADLINE.
        timeout: seconds after which the call fails, retries included; None: the client's. What came
            by then samples() puts into the error's `partial`.
        """
        request = pb.GenerateRequest(
            model=model,
            session_id=session,
            adapter=adapter,
            initial_state=initial_state,
            window=window,
            max_new_tokens=max_new_tokens,
            log2_probs=log2_probs,
            top_log2_probs=top_log2_probs,
            echo_prompt=echo_prompt,
            num_samples=num_samples,
            particles=particles,
            max_tokens_per_message=max_tokens_per_message,
            sampling=pb.Sampling(
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                presence_penalty=presence_penalty,
                frequency_penalty=frequency_penalty,
                penalty_window=penalty_window,
                logit_bias=logit_bias,
                seed=seed,
            ),
        )
        if prompt is not None:
            request.prompt.CopyFrom(_values.to_wire(prompt))
        if stop is not None:
            _fill_stop(stop, include_stop, request.stop)
        if given is not None:
            spans = given.items() if isinstance(given, Mapping) else given
            for position, values in spans:
                request.given.add(position=position, values=_values.to_wire(values))
        if time_limit is not None:
            request.time_limit.FromNanoseconds(round(time_limit * 1e9))
        return self._start_generation(request, timeout)


def _fill_stop(
    stop: Union[StopItem, Iterable[StopItem]], include: bool, wire: pb.Stop
) -> None:
    wire.include_in_output = include
    items = [stop] if isinstance(stop, (int, str, bytes)) else stop
    for item in items:
        if isinstance(item, str):
            wire.strings.append(item.encode())
        elif isinstance(item, bytes):
            wire.strings.append(item)
        else:
            wire.token_ids.append(item)


def num_samples(request: pb.GenerateRequest) -> int:
    return request.num_samples if request.HasField("num_samples") else 1
