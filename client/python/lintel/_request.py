# SPDX-License-Identifier: Apache-2.0
"""Arguments of calls -> requests. What they may be is the server's to judge."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Generic, Iterable, Mapping, Optional, TypeVar, Union

import numpy as np

from lintel.results import Durability
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import session_pb2

if TYPE_CHECKING:
    import numpy.typing as npt

DEFAULT_NEW_TOKENS = 256  # of a model that is none of images
_PIECE_BYTES = 256 << 10  # of a snapshot, in a message

# Text for models with a tokenizer (str is sent as UTF-8), token ids for every model, and for
# image models a uint8 array of two or more dimensions, in raster order. A uint8 array of one
# dimension is token ids, like any other array of integers.
Values = Union[str, bytes, bytearray, memoryview, Iterable[int], "npt.NDArray[Any]"]
Bytes = Union[bytes, bytearray, memoryview]
StopItem = Union[int, str, bytes]
Given = Union[Mapping[int, Values], Iterable["tuple[int, Values]"]]

GenerationT = TypeVar("GenerationT")


class Generates(Generic[GenerationT]):
    """generate(), as clients and sessions of both kinds have it."""

    _generation_type: type[GenerationT]

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> GenerationT:
        raise NotImplementedError

    def generate(
        self,
        prompt: Optional[Values] = None,
        *,
        # fields: keywords (scripts/fields.py)
        model: str = "",
        session: str = "",
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
        ignore_eos: bool = False,
        min_tokens: int = 0,
        num_samples: Optional[int] = None,
        log2_probs: bool = False,
        top_log2_probs: int = 0,
        echo_prompt: bool = False,
        particles: int = 0,
        window: Optional[int] = None,
        adapter: str = "",
        initial_state: str = "",
        parse_special: bool = False,
        add_special: Optional[bool] = None,
        max_tokens_per_message: int = 0,
        # end of fields
        stop: Union[StopItem, Iterable[StopItem], None] = None,
        include_stop: bool = False,
        given: Optional[Given] = None,
        text: Optional[bool] = None,
        time_limit: Optional[float] = None,
        timeout: Optional[float] = None,
    ) -> GenerationT:
        """Reads a prompt and streams what follows: iterate over what this returns.

        prompt: str or bytes for models with a tokenizer, token ids (any iterable or array of integers), or a
            uint8 image of two or more dimensions in raster order. None: the start token, or what a
            session has pending.
        stop: token ids, and for models with a tokenizer str or bytes; one or several. A text prompt
            also stops at the model's eos_tokens.
        include_stop: the stop token or text is part of the output.
        given: tokens from a position on that are fed in place of samples: {position: tokens}.
        text: tokens come with what they add to the text, Token.text and Sample.text. None: where the
            prompt is text.
        time_limit: seconds after which generation ends, with what there is and DEADLINE.
        timeout: seconds after which the call fails, retries included; None: the client's. What came
            by then samples() puts into the error's `partial`.

        Of a session its own model and adapter stand where none is named; Session.generate() fills `session`.
        Where max_new_tokens is None, a model of images generates to the end of the image, and any other 256
        tokens, unless there is a time_limit; the model is asked which it is where the prompt does not tell.
        The result has the seed that the server drew and the window that it chose. The other arguments, with
        their defaults in brackets:

        model: Model that answers [the one that is served]
        session: Continue this session [none]
        max_new_tokens: Most tokens to produce, given ones included [16 in /v1/completions; else up to the
            end of the sequence, and the clients ask for 256 of a text]
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
        ignore_eos: Tokens that end the model's texts do not end the answer [false]
        min_tokens: Nothing ends the answer before it has so many tokens [0]
        num_samples: Samples of one prompt, which is read once [1]
        log2_probs: Report the log2-probability of every token [false]
        top_log2_probs: Report the N most likely tokens at each position [0]
        echo_prompt: The answer begins with the prompt [false]
        particles: Draw so many in parallel with regard to later given tokens; 0 or 1: no filter [0]
        window: For text longer than the model was trained on: reset the state whenever it has read N
            tokens, and re-read the last N/2; 0: never [the session's, the initial state's, or what the
            model was trained on]
        adapter: LoRA adapter of the model [none]
        initial_state: Begin with this named state; not with a session [none]
        parse_special: Special tokens that are spelt out in a text prompt become their ids [false]
        add_special: Add the tokens that the model wants before and after a text, as <s> [at the beginning
            of a sequence]
        max_tokens_per_message: At most N tokens in a message; 1: each as it comes [the server decides]
        """
        # fields: request (scripts/fields.py)
        request = pb.GenerateRequest(
            model=model,
            session_id=session,
            max_new_tokens=max_new_tokens,
            num_samples=num_samples,
            log2_probs=log2_probs,
            top_log2_probs=top_log2_probs,
            echo_prompt=echo_prompt,
            particles=particles,
            window=window,
            adapter=adapter,
            initial_state=initial_state,
            parse_special=parse_special,
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
            stop=pb.Stop(
                ignore_eos=ignore_eos,
                min_tokens=min_tokens,
            ),
        )
        if add_special is not None:
            request.add_special = add_special
        # end of fields
        if prompt is not None:
            request.prompt.CopyFrom(to_wire(prompt))
        request.token_bytes = request.prompt.HasField("text") if text is None else text
        if stop is not None:
            _fill_stop(stop, include_stop, request.stop)
        if given is not None:
            spans = given.items() if isinstance(given, Mapping) else given
            for position, tokens in spans:
                request.given.add(position=position, values=to_wire(tokens))
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


def is_open(request: pb.GenerateRequest) -> bool:
    """True if the end of the request depends on the model: images have an end of their own, texts do
    not. Sets the bound where the prompt's form decides it.
    """
    if request.HasField("max_new_tokens") or request.HasField("time_limit"):
        return False
    form = request.prompt.WhichOneof("form")
    if form == "text":
        bound(request, "bytes")
    return form not in ("text", "pixels")


def bound(request: pb.GenerateRequest, modality: str) -> None:
    if modality != "image":
        request.max_new_tokens = DEFAULT_NEW_TOKENS


def score_request(
    model: str,
    adapter: str,
    sequences: Iterable[Values],
    add_special: Optional[bool] = None,
    parse_special: bool = False,
) -> pb.ScoreRequest:
    """TypeError for a single sequence: its tokens, or the rows of an image, would be taken for
    sequences.
    """
    if isinstance(sequences, (str, bytes, bytearray)) or (
        isinstance(sequences, np.ndarray) and sequences.ndim < 2
    ):
        raise TypeError("score takes several sequences: put a single one into a list")
    if isinstance(sequences, np.ndarray) and sequences.ndim == 2 and sequences.dtype == np.uint8:
        raise TypeError(
            f"a uint8 array {list(sequences.shape)} is one image, as for generate: score takes "
            "several, so write score([image]) or score(image[np.newaxis]); rows of token ids are "
            "an array of another type, e.g. astype(np.int32)"
        )
    request = pb.ScoreRequest(model=model, adapter=adapter, parse_special=parse_special)
    if add_special is not None:
        request.add_special = add_special
    for sequence in sequences:
        if isinstance(sequence, (int, np.integer)):
            raise TypeError("score takes several sequences: put a single one into a list")
        request.sequences.append(to_wire(sequence))
    request.token_bytes = any(sequence.HasField("text") for sequence in request.sequences)
    return request


def durability_to_wire(durability: Optional[Durability]) -> session_pb2.Durability:
    wire: session_pb2.Durability = session_pb2.DURABILITY_UNSPECIFIED
    if durability is not None:
        wire = durability.value
    return wire


def restore_request(
    snapshot: Bytes,
    model: str,
    verify: bool,
    accept_other_numerics: bool,
    durability: Optional[Durability],
) -> list[session_pb2.RestoreSessionRequest]:
    """The messages of one Restore."""
    view = memoryview(snapshot).cast("B")
    header = session_pb2.RestoreHeader(
        model=model,
        total_bytes=len(view),
        verify=verify,
        accept_other_numerics=accept_other_numerics,
        durability=durability_to_wire(durability),
    )
    messages = [session_pb2.RestoreSessionRequest(header=header)]
    for at in range(0, len(view), _PIECE_BYTES):
        piece = bytes(view[at : at + _PIECE_BYTES])
        messages.append(session_pb2.RestoreSessionRequest(data=piece))
    return messages


def to_wire(tokens: Values) -> pb.Values:
    """Raises TypeError or ValueError for what can be no tokens of any model."""
    if isinstance(tokens, str):
        return pb.Values(text=tokens.encode())
    if isinstance(tokens, (bytes, bytearray, memoryview)):
        return pb.Values(text=bytes(tokens))
    if isinstance(tokens, np.ndarray):
        return _array_to_wire(tokens)
    ids = list(tokens)
    for token in ids:
        if isinstance(token, (bool, np.bool_)) or not hasattr(token, "__index__"):
            raise TypeError(f"token ids are integers, not {type(token).__name__}: {token!r}")
    return _tokens([operator.index(token) for token in ids])


def _array_to_wire(array: npt.NDArray[Any]) -> pb.Values:
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"an array of tokens is of integers, not {array.dtype}")
    if array.ndim >= 2:
        if array.dtype != np.uint8:
            raise TypeError(f"an image is an array of uint8, not {array.dtype}")
        return pb.Values(pixels=array.tobytes())
    return _tokens(array.reshape(-1).tolist())


def _tokens(ids: list[int]) -> pb.Values:
    for extreme in (min(ids), max(ids)) if ids else ():
        if not -(2**31) <= extreme < 2**31:
            raise ValueError(f"{extreme} is no token id: it does not fit 32 bits")
    wire = pb.Values()
    wire.tokens.SetInParent()  # also when there are none
    wire.tokens.ids.extend(ids)
    return wire
