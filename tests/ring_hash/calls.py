# SPDX-License-Identifier: Apache-2.0
"""A call on each of some sessions by gRPC's own core.

Standard input has JSON: `target`, `options` of the channel, and `calls`, an array of {id, key, seed, count}. Writes
an array of {replica, tokens} in the same order: who answered, and what.
"""

import json
import sys

import grpc
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import generation_pb2_grpc

asked = json.load(sys.stdin)
answers = []
with grpc.insecure_channel(asked["target"], [tuple(option) for option in asked["options"]]) as channel:
    generation = generation_pb2_grpc.GenerationServiceStub(channel)
    for wanted in asked["calls"]:
        request = pb.GenerateRequest(session_id=wanted["id"], max_new_tokens=wanted["count"])
        request.sampling.seed = wanted["seed"]
        call = generation.Generate(request, timeout=60, metadata=[("lintel-affinity", wanted["key"])])
        tokens = [token for message in call for chunk in message.chunks for token in chunk.tokens]
        answers.append({"replica": dict(call.initial_metadata())["lintel-replica"], "tokens": tokens})
json.dump(answers, sys.stdout)
