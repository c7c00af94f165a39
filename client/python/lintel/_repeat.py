# SPDX-License-Identifier: Apache-2.0
"""Calls on sessions that outlive the server (SessionInfo.durability), repeated where they were cut off."""

from __future__ import annotations

import random
import time
import uuid
from typing import Optional

import grpc

from lintel.errors import LOST_SERVER, LintelError, make_error
from lintel.v1 import generation_pb2 as pb

_FIRST_PAUSE = 0.1  # seconds; doubling
_LONGEST_PAUSE = 2.0

# ABORTED: the server has not noticed yet that the last try is over.
_MAY_PASS = (
    *LOST_SERVER,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class Repeat:
    """One such call: the same under one name, from the first position that was not seen."""

    def __init__(self, request: pb.GenerateRequest, patience: float) -> None:
        """Names the call and draws its seed: a server that forgot the call draws all values again,
        some of which were seen. patience: seconds since something came.
        """
        if not request.call_id:
            request.call_id = uuid.uuid4().hex
        if not request.sampling.HasField("seed"):
            request.sampling.seed = random.SystemRandom().getrandbits(64)
        self._request = request
        self._patience = patience
        self._give_up: Optional[float] = None  # set by the first failure since something came
        self._pause = 0.0
        self._seen = False
        self._sent = False
        self.finished = False  # there is nothing more to come

    def take(self, response: pb.GenerateResponse) -> bool:
        """Cuts off what was seen already; False: all was. Internal where positions are left out."""
        self._give_up, self._pause = None, 0.0
        for chunk in response.chunks:
            seen = self._request.from_position - chunk.first_position
            if self._seen and seen < 0:
                raise make_error(
                    grpc.StatusCode.INTERNAL,
                    f"the server left out the values from position {self._request.from_position} to "
                    f"{chunk.first_position - 1}",
                    "",
                )
            if seen > 0:
                seen = min(seen, len(chunk.tokens))
                chunk.first_position += seen
                for values in (chunk.tokens, chunk.log2_probs, chunk.top):
                    del values[:seen]
            if chunk.tokens:
                self._request.from_position = chunk.first_position + len(chunk.tokens)
                self._seen = True
        for i in reversed(range(len(response.chunks))):
            if not response.chunks[i].tokens:
                del response.chunks[i]
        self.finished = self.finished or bool(response.finished)
        return bool(response.chunks or response.finished)

    def concerns(self, error: LintelError) -> bool:
        """Whether the call was cut off: before it was, its refusals are those of any call; but a server
        that is gone may hold the session for a while. REQUIRES that the call was not cancelled here.
        """
        is_held = error.code == grpc.StatusCode.ABORTED and error.reason.startswith("SESSION_")
        return self._sent or is_held or error.code in LOST_SERVER

    def goes_on(self) -> None:
        """It is sent again at once, to another server."""
        self._sent = True

    def delay_after(self, error: LintelError) -> float:
        """Seconds after which to send it again. Raises the error where that is of no use, or patience
        is at its end.
        """
        if error.code not in _MAY_PASS or (
            error.code == grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_delay is None
        ):
            raise error from None
        self._sent = True
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + self._patience
        if now >= self._give_up:
            raise error from None
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        # So that clients that lost their server together do not come back together.
        pause = self._pause * random.uniform(0.8, 1.2)
        return min(max(pause, error.retry_delay or 0.0), self._give_up - now)

