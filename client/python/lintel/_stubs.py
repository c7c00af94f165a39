# SPDX-License-Identifier: Apache-2.0
"""What both kinds of client call, over either kind of channel, and the requests of unary calls."""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np

from lintel import _foreign_pb2 as foreign
from lintel import _values
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import generation_pb2_grpc, model_pb2_grpc, session_pb2_grpc


class Stubs:
    def __init__(self, channel: Any) -> None:
        generation: Any = generation_pb2_grpc.GenerationServiceStub(channel)  # type: ignore
        models: Any = model_pb2_grpc.ModelServiceStub(channel)  # type: ignore
        sessions: Any = session_pb2_grpc.SessionServiceStub(channel)  # type: ignore
        self.generate = generation.Generate
        self.score = generation.Score
        self.list_models = models.List
        self.get_model = models.Get
        self.create_session = sessions.Create
        self.get_session = sessions.Get
        self.list_sessions = sessions.List
        self.delete_session = sessions.Delete
        self.fork_session = sessions.Fork
        self.rewind_session = sessions.Rewind
        self.snapshot_session = sessions.Snapshot
        self.restore_session = sessions.Restore
        self.read_history = sessions.ReadHistory
        self.save_state = sessions.SaveState
        self.list_states = sessions.ListStates
        self.delete_state = sessions.DeleteState
        self.check_health = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=foreign.HealthCheckRequest.SerializeToString,
            response_deserializer=foreign.HealthCheckResponse.FromString,
        )


def score_request(
    model: str, adapter: str, sequences: Iterable[_values.Values]
) -> pb.ScoreRequest:
    """TypeError for a single sequence: its values, or the rows of an image, would be taken for
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
    request = pb.ScoreRequest(model=model, adapter=adapter)
    for sequence in sequences:
        if isinstance(sequence, (int, np.integer)):
            raise TypeError("score takes several sequences: put a single one into a list")
        request.sequences.append(_values.to_wire(sequence))
    return request
