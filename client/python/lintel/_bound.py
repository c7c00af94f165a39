"""How much is generated where nobody said: images end of themselves, texts do not."""

from __future__ import annotations

from lintel.v1 import generation_pb2 as pb

DEFAULT_NEW_TOKENS = 256  # of a model that is none of images


def is_open(request: pb.GenerateRequest) -> bool:
    """Whether only the model can tell where the request ends. Sets the bound of those whose prompt
    tells already.
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
