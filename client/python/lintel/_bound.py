# SPDX-License-Identifier: Apache-2.0
"""The default of max_new_tokens: images have an end of their own, texts do not."""

from __future__ import annotations

from lintel.v1 import generation_pb2 as pb

DEFAULT_NEW_TOKENS = 256  # of a model that is none of images


def is_open(request: pb.GenerateRequest) -> bool:
    """Whether the end of the request depends on the model. Sets the bound where the prompt's form
    decides it.
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
