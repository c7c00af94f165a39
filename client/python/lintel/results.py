# SPDX-License-Identifier: Apache-2.0
"""Results of calls, as plain Python and NumPy."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from lintel.v1 import generation_pb2 as pb
from lintel.v1 import model_pb2
from lintel.v1 import session_pb2

if TYPE_CHECKING:
    import numpy.typing as npt


class Source(enum.Enum):
    """The origin of a token."""

    UNSPECIFIED = pb.VALUE_SOURCE_UNSPECIFIED
    SAMPLED = pb.VALUE_SOURCE_SAMPLED
    GIVEN = pb.VALUE_SOURCE_GIVEN
    PROMPT = pb.VALUE_SOURCE_PROMPT  # echoed


class FinishReason(enum.Enum):
    """The reason why a sample ended."""

    UNSPECIFIED = pb.FINISH_REASON_UNSPECIFIED
    LENGTH = pb.FINISH_REASON_LENGTH  # max_new_tokens reached
    STOP_TOKEN = pb.FINISH_REASON_STOP_TOKEN
    STOP_STRING = pb.FINISH_REASON_STOP_STRING
    END_OF_SEQUENCE = pb.FINISH_REASON_END_OF_SEQUENCE  # image complete, or position table full
    CANCELLED = pb.FINISH_REASON_CANCELLED
    DEADLINE = pb.FINISH_REASON_DEADLINE  # the request's time_limit


class TopValue(NamedTuple):
    """One of the most likely tokens at a position."""

    token: int
    log2_prob: float  # of the model, before temperature, penalties and filters


class Token(NamedTuple):
    """One token of a stream."""

    position: int  # in the sequence; the first token is 0
    token: int
    source: Source
    sample: int
    log2_prob: Optional[float] = None  # None: not asked for, or the first token of its sequence
    top: tuple[TopValue, ...] = ()  # most likely first
    # The text that it adds, in whole characters: one of several tokens comes with its last one.
    text: str = ""


class Timings(NamedTuple):
    """Seconds on the server."""

    queued: float  # accepted until first row in a batch
    prompt: float  # first row until the first new token
    generation: float  # first new token until the last
    per_token: float  # generation / (tokens - 1)


@dataclass(frozen=True)
class SampleResult:
    """The result of one sample."""

    sample: int
    finish_reason: FinishReason
    seed: int  # repeats this sample
    prompt_tokens: int  # read by this call (a start token counts)
    reused_tokens: int  # of the session's earlier calls, not read again
    generated_tokens: int  # sampled or given tokens produced by this call
    given_tokens: int  # of which given
    drafted_tokens: int  # proposed by the server's speculation
    accepted_tokens: int  # of which right
    position: int  # tokens of the sequence so far
    stop_string: bytes  # the one that matched
    timings: Timings
    replayed_tokens: int = 0  # tokens the sequence had, read once more: after a rewind, say
    cached_tokens: int = 0  # of the prompt, not read: a state was kept of an earlier one
    digest: str = ""  # of the session's history after this call
    # With particles: log2 of an estimate of the probability of all that was given.
    log2_evidence: Optional[float] = None
    # Tokens of the prompt that were not read: in a window, those that no token depends on.
    skipped_tokens: int = 0
    window: int = 0  # tokens after which the state was reset; 0: it had no window
    window_restarts: int = 0  # the number of resets, for the tokens of this call


@dataclass(frozen=True)
class Sample:
    """One sample, whole. The arrays of a kind are parallel."""

    first_position: int  # of tokens[0] in the sequence
    tokens: npt.NDArray[np.int32]  # sampled and given ones
    log2_probs: npt.NDArray[np.float32]  # NaN where there is none
    given: npt.NDArray[np.bool_]  # fed rather than sampled
    top: tuple[tuple[TopValue, ...], ...]
    prompt: npt.NDArray[np.int32]  # with echo_prompt
    prompt_log2_probs: npt.NDArray[np.float32]
    result: SampleResult
    token_bytes: tuple[bytes, ...] = ()  # bytes that each token adds to the text, on request

    @property
    def text(self) -> bytes:
        """The text of the tokens, which generate(text=True) or a text prompt asks for; of a byte model
        always. It ends before a stop string. ValueError where it is not known.
        """
        return b"".join(self.token_bytes) if self.token_bytes else bytes(self.tokens.tolist())


@dataclass(frozen=True)
class Score:
    """The model's probabilities of one sequence."""

    log2_probs: npt.NDArray[np.float32]  # of tokens 1, 2, ...; the first has no probability
    bits_per_dim: float  # their mean, negated
    # For a sequence that was text: all its tokens, and the bytes that each of them adds to the text.
    tokens: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    token_bytes: tuple[bytes, ...] = ()

    @property
    def bits(self) -> npt.NDArray[np.float32]:
        """Bits that each token costs."""
        return -self.log2_probs


@dataclass(frozen=True)
class ImageShape:
    height: int
    width: int
    channels: int
    start_token: Optional[int]  # the first token when there is no prompt


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter of a model, as it is served."""

    name: str
    rank: int  # the largest of its modules
    modules: int  # matrices of the model that it changes
    bytes: int
    fingerprint: str


@dataclass(frozen=True)
class Model:
    """A model as it is served."""

    name: str
    config: dict[str, Any]  # config.json as loaded
    modality: str  # "image", "bytes" or "tokens"
    image: Optional[ImageShape]
    head: str
    attention: str
    vocab_size: int
    max_length: int  # positions that can be fed; 0: unbounded
    parameters: int
    weight_type: str
    weight_type_reason: str  # the finding of `--weight-type auto`; empty where nothing was compared
    weight_bytes: int
    state_bytes: int  # of a session of max_length tokens; 0: grows without an end
    constant_state: bool  # the state does not grow with the sequence
    fingerprint: str
    workers: int
    max_batch_rows: int  # per worker
    limits: dict[str, int]  # of one request, by the names of ModelLimits
    warnings: tuple[str, ...] = field(default=())
    trained_length: int = 0  # tokens it was trained on at once; 0: unknown
    kernels: str = ""  # the kernels of the matrices on the server's machine
    adapters: tuple[Adapter, ...] = ()  # adapters that calls can name
    state_bytes_per_value: int = 0  # bytes that a token adds to a state that grows without an end
    prompt_rows: int = 0  # of a step that reads nothing but prompts
    kv_type: str = ""  # of cached keys and values: "f32", "bf16", "int8"; empty: no KV cache
    kv_session_bytes: int = 0  # with a KV cache: of a session before its first token
    kv_token_bytes: int = 0  # bytes that each token adds
    tokenizer: str = ""  # its kind; empty: its tokens are ids alone
    eos_tokens: tuple[int, ...] = ()  # at which a text prompt stops


class Durability(enum.Enum):
    """The part of a session that outlives the server."""

    NONE = session_pb2.DURABILITY_NONE  # nothing
    CALL = session_pb2.DURABILITY_CALL  # calls whose end was seen
    INPUT = session_pb2.DURABILITY_INPUT  # calls from their beginning: interrupted ones are continued
    TOKEN = session_pb2.DURABILITY_TOKEN  # each token before it is sent


class InterruptedCall(NamedTuple):
    """A call that ended with its server. It is continued under its name, or abandoned by
    Session.rewind().
    """

    call_id: str
    start_position: int
    stored_position: int  # tokens that are stored, those before the call included


@dataclass(frozen=True)
class SessionInfo:
    """Recurrent state that lives on the server between calls."""

    id: str
    model: str
    position: int  # tokens of the sequence so far, a pending one included
    has_pending_value: bool  # the last token was produced but not yet fed
    busy: bool
    state_bytes: int
    max_tokens: int  # 0: unbounded
    create_time: datetime
    last_used_time: datetime
    idle_timeout: timedelta  # evicted when unused for this long
    adapter: str = ""  # the adapter that it was made with
    oldest_position: int = 0  # the lowest that rewind() and fork() take
    digest: str = ""  # of its history: equal histories have equal digests
    numerics: str = ""  # of the model that computes it: equal ones give equal bits
    window: int = 0  # tokens after which the state is reset; 0: never
    durability: Durability = Durability.NONE  # the part of it that outlives the server
    in_memory: bool = True  # else in the server's store alone: the next call brings it back
    interrupted: Optional[InterruptedCall] = None
    expire_time: Optional[datetime] = None  # removed when unused until then
    numerics_changed_at: int = 0  # tokens before it have the bits of another machine or KV type


class HistoryRun(NamedTuple):
    """Tokens of a session, one after another, that came from the same source."""

    first_position: int
    source: Source
    tokens: npt.NDArray[np.int32]


@dataclass(frozen=True)
class NamedState:
    """The history of a session, under a name, for sessions and calls to begin with."""

    name: str
    model: str
    adapter: str
    position: int  # tokens that were seen
    bytes: int
    numerics: str
    is_public: bool
    digest: str


def _seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos * 1e-9)


def _time(timestamp: Any) -> datetime:
    return datetime.fromtimestamp(timestamp.seconds + timestamp.nanos * 1e-9, timezone.utc)


def read_timings(wire: pb.Timings) -> Timings:
    return Timings(
        queued=_seconds(wire.queued),
        prompt=_seconds(wire.prompt),
        generation=_seconds(wire.generation),
        per_token=_seconds(wire.per_token),
    )


def read_finish(wire: pb.SampleFinish) -> SampleResult:
    known = wire.reason in (reason.value for reason in FinishReason)
    return SampleResult(
        sample=wire.sample,
        finish_reason=FinishReason(wire.reason) if known else FinishReason.UNSPECIFIED,
        seed=wire.seed,
        prompt_tokens=wire.prompt_tokens,
        reused_tokens=wire.reused_tokens,
        generated_tokens=wire.generated_tokens,
        given_tokens=wire.given_tokens,
        drafted_tokens=wire.drafted_tokens,
        accepted_tokens=wire.accepted_tokens,
        position=wire.position,
        replayed_tokens=wire.replayed_tokens,
        cached_tokens=wire.cached_tokens,
        skipped_tokens=wire.skipped_tokens,
        window=wire.window,
        window_restarts=wire.window_restarts,
        digest=wire.digest,
        log2_evidence=wire.log2_evidence if wire.HasField("log2_evidence") else None,
        stop_string=wire.stop_string,
        timings=read_timings(wire.timings),
    )


def read_score(wire: pb.ScoreResponse) -> Score:
    return Score(
        np.array(wire.log2_probs, dtype=np.float32),
        wire.bits_per_dim,
        np.array(wire.tokens, dtype=np.int32),
        tuple(wire.token_bytes),
    )


def read_model(wire: model_pb2.Model) -> Model:
    image = None
    if wire.HasField("image"):
        start = wire.image.start_token if wire.image.HasField("start_token") else None
        image = ImageShape(wire.image.height, wire.image.width, wire.image.channels, start)
    limits = {f.name: getattr(wire.limits, f.name) for f in wire.limits.DESCRIPTOR.fields}
    return Model(
        name=wire.name,
        config=json.loads(wire.config_json or "{}"),
        modality=wire.modality,
        image=image,
        head=wire.head,
        attention=wire.attention,
        vocab_size=wire.vocab_size,
        max_length=wire.max_length,
        parameters=wire.parameters,
        weight_type=wire.weight_type,
        weight_type_reason=wire.weight_type_reason,
        weight_bytes=wire.weight_bytes,
        state_bytes=wire.state_bytes,
        constant_state=wire.constant_state,
        fingerprint=wire.fingerprint,
        workers=wire.workers,
        max_batch_rows=wire.max_batch_rows,
        limits=limits,
        warnings=tuple(wire.warnings),
        trained_length=wire.trained_length,
        kernels=wire.kernels,
        adapters=tuple(
            Adapter(a.name, a.rank, a.modules, a.bytes, a.fingerprint) for a in wire.adapters
        ),
        state_bytes_per_value=wire.state_bytes_per_value,
        kv_type=wire.kv_type,
        kv_session_bytes=wire.kv_session_bytes,
        kv_token_bytes=wire.kv_token_bytes,
        prompt_rows=wire.prompt_rows,
        tokenizer=wire.tokenizer,
        eos_tokens=tuple(wire.eos_tokens),
    )


def read_session(wire: session_pb2.Session) -> SessionInfo:
    return SessionInfo(
        id=wire.id,
        model=wire.model,
        position=wire.position,
        has_pending_value=wire.has_pending_value,
        busy=wire.busy,
        state_bytes=wire.state_bytes,
        max_tokens=wire.max_tokens,
        create_time=_time(wire.create_time),
        last_used_time=_time(wire.last_used_time),
        idle_timeout=timedelta(seconds=_seconds(wire.idle_timeout)),
        adapter=wire.adapter,
        oldest_position=wire.oldest_position,
        digest=wire.digest,
        numerics=wire.numerics,
        window=wire.window,
        durability=Durability(wire.durability or session_pb2.DURABILITY_NONE),
        # Servers without a store do not say where it is.
        in_memory=wire.in_memory or wire.durability <= session_pb2.DURABILITY_NONE,
        interrupted=(
            InterruptedCall(
                wire.interrupted.call_id,
                wire.interrupted.start_position,
                wire.interrupted.stored_position,
            )
            if wire.HasField("interrupted")
            else None
        ),
        expire_time=_time(wire.expire_time) if wire.HasField("expire_time") else None,
        numerics_changed_at=wire.numerics_changed_at,
    )


def read_state(wire: session_pb2.NamedState) -> NamedState:
    return NamedState(
        name=wire.name,
        model=wire.model,
        adapter=wire.adapter,
        position=wire.position,
        bytes=wire.bytes,
        numerics=wire.numerics,
        is_public=wire.is_public,
        digest=wire.digest,
    )


def read_run(chunk: pb.Chunk) -> HistoryRun:
    tokens = np.array(chunk.tokens, dtype=np.int32)
    return HistoryRun(chunk.first_position, Source(chunk.source), tokens)
