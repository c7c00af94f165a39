# SPDX-License-Identifier: Apache-2.0
"""Requests about copies of sessions and named states, and what their streams become."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import numpy as np

from lintel.errors import Aborted, LintelError
from lintel.results import Durability, HistoryRun, Source
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import session_pb2

_PIECE_BYTES = 256 << 10

Bytes = Union[bytes, bytearray, memoryview]


def create_request(
    model: str,
    max_tokens: int,
    adapter: str,
    initial_state: str,
    checkpoint_every: int,
    checkpoints: int,
    history_tokens: int,
    window: Optional[int],
    durability: Optional[Durability],
    expire_after: Optional[float],
) -> session_pb2.CreateSessionRequest:
    request = session_pb2.CreateSessionRequest(
        model=model,
        max_tokens=max_tokens,
        adapter=adapter,
        initial_state=initial_state,
        history_tokens=history_tokens,
        window=window,
        durability=durability_to_wire(durability),
    )
    if expire_after is not None:
        request.expire_after.FromNanoseconds(round(expire_after * 1e9))
    if checkpoint_every or checkpoints:
        request.checkpoints.every_tokens = checkpoint_every
        request.checkpoints.keep = checkpoints
    return request


def durability_to_wire(durability: Optional[Durability]) -> session_pb2.Durability:
    wire: session_pb2.Durability = session_pb2.DURABILITY_UNSPECIFIED
    if durability is not None:
        wire = durability.value
    return wire


def fork_request(
    id: str, position: Optional[int], count: int, durability: Optional[Durability]
) -> session_pb2.ForkSessionRequest:
    return session_pb2.ForkSessionRequest(
        id=id, position=position, count=count, durability=durability_to_wire(durability)
    )


def fork_error(error: Aborted, position: Optional[int]) -> LintelError:
    """Of a fork that was refused because its session is in use."""
    if position is not None or error.reason:  # held elsewhere: a position does not help
        return error
    return error.with_hint("a copy of a session in use needs `position`: how many values it has")


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


def sends_all(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that takes a stream, as one that takes a list of messages, also when sent again."""

    def send(messages: list[Any], **options: Any) -> Any:
        return method(iter(messages), **options)

    return send


class SnapshotCollector:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def take(self, chunk: session_pb2.SnapshotChunk) -> None:
        self._pieces.append(chunk.data)

    def snapshot(self) -> bytes:
        return b"".join(self._pieces)


def read_run(chunk: pb.Chunk) -> HistoryRun:
    tokens = np.array(chunk.tokens, dtype=np.int32)
    return HistoryRun(chunk.first_position, Source(chunk.source), tokens)


def history_request(
    id: str, start: int, stop: Optional[int]
) -> session_pb2.ReadHistoryRequest:
    return session_pb2.ReadHistoryRequest(id=id, from_position=start, to_position=stop)
