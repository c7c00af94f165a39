# SPDX-License-Identifier: Apache-2.0
"""Responses of a Generate stream -> tokens, samples and results."""

from __future__ import annotations

import codecs
from collections import defaultdict
from typing import Iterator, Optional

import grpc
import numpy as np

from lintel.errors import make_error
from lintel.results import (
    FinishReason,
    Sample,
    SampleResult,
    Score,
    Source,
    Timings,
    Token,
    TopValue,
    read_finish,
    read_score,
)
from lintel.v1 import generation_pb2 as pb

_SOURCES = {source.value: source for source in Source}

_REASONS = {
    grpc.StatusCode.CANCELLED: FinishReason.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED: FinishReason.DEADLINE,
}


def _top(wire: pb.TopValues) -> tuple[TopValue, ...]:
    return tuple(map(TopValue, wire.tokens, wire.log2_probs))


class TokenReader:
    """The tokens of a stream's messages."""

    def __init__(self) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")
        self._characters: defaultdict[int, codecs.IncrementalDecoder] = defaultdict(
            lambda: utf8("replace")
        )

    def tokens_of(self, response: pb.GenerateResponse) -> Iterator[Token]:
        """The tokens of one message, in order."""
        for chunk in response.chunks:
            source = _SOURCES.get(chunk.source, Source.UNSPECIFIED)
            log2_probs, top, token_bytes = chunk.log2_probs, chunk.top, chunk.token_bytes
            characters = self._characters[chunk.sample]
            for i, token in enumerate(chunk.tokens):
                yield Token(
                    chunk.first_position + i,
                    token,
                    source,
                    chunk.sample,
                    log2_probs[i] if i < len(log2_probs) else None,
                    _top(top[i]) if i < len(top) else (),
                    characters.decode(token_bytes[i]) if i < len(token_bytes) else "",
                )


class Results:
    """The results of the samples of a call."""

    def __init__(self, num_samples: int, request_id: str) -> None:
        self._num_samples = num_samples
        self._results: dict[int, SampleResult] = {}
        self._request_id = request_id

    def take(self, response: pb.GenerateResponse) -> None:
        """Raises Internal where the server answers what was not asked."""
        for item in (*response.chunks, *response.finished):
            if item.sample >= self._num_samples:
                raise self._nonsense("the server sent a sample that was not requested")
        for finish in response.finished:
            self._results[finish.sample] = read_finish(finish)

    def known(self, sample: int) -> Optional[SampleResult]:
        return self._results.get(sample)

    def complete(self) -> list[SampleResult]:
        """REQUIRES: the stream has ended with OK."""
        if len(self._results) < self._num_samples:
            raise self._nonsense("the stream ended before every sample had")
        return [self._results[i] for i in range(self._num_samples)]

    def _nonsense(self, what: str) -> Exception:
        return make_error(grpc.StatusCode.INTERNAL, what, self._request_id)


class SampleCollector:
    """Joins the chunks of a stream into samples."""

    def __init__(self) -> None:
        self._parts: defaultdict[int, _Parts] = defaultdict(_Parts)

    def take(self, response: pb.GenerateResponse) -> None:
        for chunk in response.chunks:
            self._parts[chunk.sample].take(chunk)

    def samples(self, results: list[SampleResult]) -> list[Sample]:
        return [self._parts[result.sample].sample(result) for result in results]

    def partial(
        self, results: Results, request: pb.GenerateRequest, code: grpc.StatusCode
    ) -> list[Sample]:
        """The samples of a stream that failed with `code`. The result of a sample that had not
        ended holds what this side knows; seed is the request's own, 0 where the server drew it.
        """
        reason = _REASONS.get(code, FinishReason.UNSPECIFIED)
        samples = []
        for i, parts in sorted(self._parts.items()):
            seed = request.sampling.seed + i if request.sampling.HasField("seed") else 0
            samples.append(parts.sample(results.known(i) or parts.result(i, seed, reason)))
        return samples


class ScoreCollector:
    """The scores of a Score stream, in the order of its sequences."""

    def __init__(self, num_sequences: int, request_id: str) -> None:
        self._num_sequences = num_sequences
        self._request_id = request_id
        self._scores: list[Score] = []

    def take(self, response: pb.ScoreResponse) -> None:
        if response.index != len(self._scores):
            raise self._nonsense("the server's scores are out of order")
        self._scores.append(read_score(response))

    def scores(self) -> list[Score]:
        """REQUIRES: the stream has ended with OK."""
        if len(self._scores) != self._num_sequences:
            raise self._nonsense("the stream ended before every sequence was scored")
        return self._scores

    def _nonsense(self, what: str) -> Exception:
        return make_error(grpc.StatusCode.INTERNAL, what, self._request_id)


class _Parts:
    """The parts of one sample."""

    def __init__(self) -> None:
        self.first_position: Optional[int] = None
        self.tokens: list[int] = []
        self.log2_probs: list[float] = []
        self.given: list[bool] = []
        self.top: list[tuple[TopValue, ...]] = []
        self.token_bytes: list[bytes] = []
        self.prompt: list[int] = []
        self.prompt_log2_probs: list[float] = []

    def take(self, chunk: pb.Chunk) -> None:
        missing = len(chunk.tokens) - len(chunk.log2_probs)
        log2_probs = [*chunk.log2_probs, *[float("nan")] * missing]
        if chunk.source == pb.VALUE_SOURCE_PROMPT:
            self.prompt += chunk.tokens
            self.prompt_log2_probs += log2_probs
            return
        if self.first_position is None:
            self.first_position = chunk.first_position
        self.tokens += chunk.tokens
        self.token_bytes += chunk.token_bytes
        self.log2_probs += log2_probs
        self.given += [chunk.source == pb.VALUE_SOURCE_GIVEN] * len(chunk.tokens)
        top = list(map(_top, chunk.top))
        self.top += [*top, *[()] * (len(chunk.tokens) - len(top))]

    def result(self, sample: int, seed: int, reason: FinishReason) -> SampleResult:
        """The result of a sample whose end did not come."""
        return SampleResult(
            sample=sample,
            finish_reason=reason,
            seed=seed,
            prompt_tokens=0,
            reused_tokens=0,
            generated_tokens=len(self.tokens),
            given_tokens=sum(self.given),
            drafted_tokens=0,
            accepted_tokens=0,
            position=(self.first_position or 0) + len(self.tokens),
            stop_string=b"",
            timings=Timings(0.0, 0.0, 0.0, 0.0),
        )

    def sample(self, result: SampleResult) -> Sample:
        return Sample(
            first_position=result.position if self.first_position is None else self.first_position,
            tokens=np.array(self.tokens, dtype=np.int32),
            log2_probs=np.array(self.log2_probs, dtype=np.float32),
            given=np.array(self.given, dtype=np.bool_),
            top=tuple(self.top),
            prompt=np.array(self.prompt, dtype=np.int32),
            prompt_log2_probs=np.array(self.prompt_log2_probs, dtype=np.float32),
            result=result,
            token_bytes=tuple(self.token_bytes),
        )
