# SPDX-License-Identifier: Apache-2.0
"""Conditions for sending a call again, and the pauses before it."""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass
from typing import Any, Optional

import grpc

from lintel._servers import Server
from lintel.errors import LOST_SERVER, LintelError, make_error
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import response_pb2


@dataclass(frozen=True)
class RetryPolicy:
    """Calls are sent again after UNAVAILABLE, after RESOURCE_EXHAUSTED with a RetryInfo (every
    refusal of the server has one; without it, the request itself is too large), and after CANCELLED
    where this side has not cancelled them: a server that shuts down cancels calls that do not end in
    time. In asyncio only Python 3.11 and later can distinguish the two.

    The waits grow exponentially and are shortened at random by up to half, so that clients do not
    come back together; a server's RetryInfo is always waited out. A wait that would reach past the
    call's timeout does not start: the error is raised at once.

    What is never sent again:
    - a stream of which anything has arrived: no token is delivered twice;
    - generation in a session after UNAVAILABLE or CANCELLED, unless there was no connection: the call
      may have started, and a session that has read the prompt would read it twice.
      RESOURCE_EXHAUSTED always comes before a session changes.

    But a call on a session that outlives the server (SessionInfo.durability) is repeated wherever it
    was cut off, for up to repeat_for seconds since something of it came. The server identifies it by
    its name and resumes with the first token that was not seen. So is a stored response, under its
    idempotency key: where the server still has it, its events continue with the first that was not seen.

    Of several servers one that was not tried yet is asked at once, without a wait.
    """

    max_attempts: int = 6  # the first included
    initial_backoff: float = 0.1  # seconds
    max_backoff: float = 5.0
    multiplier: float = 2.0
    repeat_for: float = 30.0  # 0: such calls are never repeated

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.initial_backoff <= 0 or self.multiplier < 1:
            raise ValueError(f"{self}: attempts and multiplier are at least 1, waits above 0")
        if not self.repeat_for >= 0:
            raise ValueError(f"{self}: repeat_for is a number of seconds, 0 or more")

    def delay(self, attempt: int, retry_delay: Optional[float], jitter: float) -> float:
        """Seconds to wait after failure number `attempt` (from 1); `jitter` is in [0, 1)."""
        backoff = min(self.initial_backoff * self.multiplier ** (attempt - 1), self.max_backoff)
        delay = backoff * (1 - jitter / 2)
        if retry_delay is not None:
            delay = max(delay, retry_delay + self.initial_backoff * jitter)
        return delay


_FIRST_PAUSE = 0.1  # seconds; doubling
_LONGEST_PAUSE = 2.0

# ABORTED: the server has not noticed yet that the last try is over.
_MAY_PASS = (
    *LOST_SERVER,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class RepeatBase:
    """A call that is repeated where it was cut off, so that each part of its answer comes once."""

    def __init__(self, patience: float) -> None:
        """patience: seconds since something came."""
        self._patience = patience
        self._give_up: Optional[float] = None  # set by the first failure since something came
        self._pause = 0.0
        self._sent = False
        self.finished = False  # there is nothing more to come

    def take(self, message: Any) -> bool:
        """Cuts off what was seen already; False: all was."""
        self._give_up, self._pause = None, 0.0
        return self._take(message)

    def _take(self, message: Any) -> bool:
        raise NotImplementedError

    def concerns(self, error: LintelError) -> bool:
        """True if the call was cut off: before it was, its refusals are those of any call; but a server
        that is gone may hold the session for a while. REQUIRES that the call was not cancelled here.
        """
        is_held = error.code == grpc.StatusCode.ABORTED and error.reason.startswith("SESSION_")
        return self._sent or is_held or error.code in LOST_SERVER

    def goes_on(self) -> None:
        """Sends the call again at once, to another server."""
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
        # Jitter: clients that lost their server together do not come back together.
        pause = self._pause * random.uniform(0.8, 1.2)
        return min(max(pause, error.retry_delay or 0.0), self._give_up - now)


class Repeat(RepeatBase):
    """A call on a session that outlives the server (SessionInfo.durability): the same under one name, from
    the first position that was not seen.
    """

    def __init__(self, request: pb.GenerateRequest, patience: float) -> None:
        """Names the call and draws its seed: a server that forgot the call draws all tokens again,
        some of which were seen.
        """
        super().__init__(patience)
        if not request.call_id:
            request.call_id = uuid.uuid4().hex
        if not request.sampling.HasField("seed"):
            request.sampling.seed = random.SystemRandom().getrandbits(64)
        self._request = request
        self._seen = False

    def _take(self, response: pb.GenerateResponse) -> bool:
        """Internal where positions are left out."""
        for chunk in response.chunks:
            seen = self._request.from_position - chunk.first_position
            if self._seen and seen < 0:
                raise make_error(
                    grpc.StatusCode.INTERNAL,
                    f"the server left out the tokens from position {self._request.from_position} to "
                    f"{chunk.first_position - 1}",
                    "",
                )
            if seen > 0:
                seen = min(seen, len(chunk.tokens))
                chunk.first_position += seen
                for field in (chunk.tokens, chunk.log2_probs, chunk.top, chunk.token_bytes):
                    del field[:seen]
            if chunk.tokens:
                self._request.from_position = chunk.first_position + len(chunk.tokens)
                self._seen = True
        for i in reversed(range(len(response.chunks))):
            if not response.chunks[i].tokens:
                del response.chunks[i]
        self.finished = self.finished or bool(response.finished)
        return bool(response.chunks or response.finished)


class ResponseRepeat(RepeatBase):
    """A stored response under its idempotency key: a server that has it sends the same events again.
    REQUIRES: the request has a key.
    """

    def __init__(self, patience: float) -> None:
        super().__init__(patience)
        self._id = ""
        self._seen = 0  # events
        self._next = 0  # number of the next event of this attempt

    def _take(self, message: response_pb2.ResponseEvents) -> bool:
        """Unavailable where the server has lost the response, and begins another."""
        news = []
        for event in message.events:
            if event.type == "response.created":
                self._next = 0
                self._check(json.loads(event.body)["response"]["id"])
            if self._next >= self._seen:
                news.append(event)
            self._next += 1
        self._seen = max(self._seen, self._next)
        del message.events[:]
        message.events.extend(news)
        self.finished = self.finished or bool(message.response)
        return bool(news or message.response)

    def concerns(self, error: LintelError) -> bool:
        """Decides as for a session's call. A call of which nothing has come is retried as any other is."""
        return self._seen > 0 and super().concerns(error)

    def _check(self, id: str) -> None:
        if self._id not in ("", id):
            raise make_error(
                grpc.StatusCode.UNAVAILABLE,
                f"the server lost response {self._id} with its end: it stores none, or another server answers",
                "",
            )
        self._id = id


# Waiting for the server to put away a call that ended on this side: it takes a step of the model.
_OWN_CALL = RetryPolicy(initial_backoff=0.01, max_backoff=0.5)


class Attempts:
    """One call's time and failures."""

    def __init__(
        self, policy: Optional[RetryPolicy], timeout: float, reads: bool = False
    ) -> None:
        """reads: it changes nothing."""
        if not 0 < timeout < float("inf"):
            raise ValueError(f"a timeout is a positive number of seconds, not {timeout}")
        self._policy = policy
        self.timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._failures = 0
        self.changes_session = False  # the call uses a session
        self.repeat_for = policy.repeat_for if policy is not None else 0.0  # of durable sessions
        self.repeat: Optional[RepeatBase] = None  # of a call that is repeated where it was cut off
        self._reads = reads
        self._went = False  # to another server, last time
        self.server: Optional[Server] = None  # the server of the last attempt
        self.moves = 0  # to other servers, since something came or all were tried
        self.unreached: list[Server] = []  # servers without a connection, since the last wait
        self.waits_for_own_call = False  # ABORTED means a call of ours that is being put away

    @property
    def retried(self) -> bool:
        """REQUIRES: the last attempt has failed."""
        return self._went or self._failures > 1

    def remaining(self) -> float:
        """Seconds left, for gRPC: never 0, which some versions take for none."""
        return max(self._deadline - time.monotonic(), 0.001)

    @staticmethod
    def names_a_server(error: LintelError) -> bool:
        """True if another server may do what this one did not. REQUIRES that the call was not
        cancelled here.
        """
        held = error.code == grpc.StatusCode.ABORTED and error.reason.startswith("SESSION_")
        return held or error.code in LOST_SERVER

    def looks_for_others(self, error: LintelError) -> bool:
        """True if there may be others behind the name of the server that was reached. If none was reached,
        gRPC has tried them all.
        """
        return self.names_a_server(error) and not error.unreached

    def goes_elsewhere(self, error: LintelError) -> bool:
        """Returns whether the call may be sent again at once, to another server."""
        if time.monotonic() >= self._deadline:
            return False
        if self.repeat is not None and self.repeat.concerns(error):
            self.repeat.goes_on()
            self._went = True
        elif error.code in LOST_SERVER:
            is_safe = self._policy is not None and not self.changes_session
            self._went = error.unreached or self._reads or is_safe
        else:
            return False  # no server has the session free yet
        return self._went

    def delay_after(self, error: LintelError) -> float:
        """Seconds after which to try again. Raises the error where it stands."""
        self._failures += 1
        if self.repeat is not None and self.repeat.concerns(error):
            return self._within_deadline(self.repeat.delay_after(error), error)
        policy = self._applicable(error)
        if policy is None:
            raise error from None
        delay = policy.delay(self._failures, error.retry_delay, random.random())
        return self._within_deadline(delay, error)

    def _within_deadline(self, delay: float, error: LintelError) -> float:
        if time.monotonic() + delay >= self._deadline:
            raise error from None
        return delay

    def _applicable(self, error: LintelError) -> Optional[RetryPolicy]:
        if error.code == grpc.StatusCode.ABORTED:
            if self.waits_for_own_call:
                return _OWN_CALL
            # A server that may be gone holds the session: it was not touched.
            if error.reason != "SESSION_HELD":
                return None
        if self._policy is None or self._failures >= self._policy.max_attempts:
            return None
        if error.code == grpc.StatusCode.ABORTED:
            return self._policy
        if error.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return self._policy if error.retry_delay is not None else None
        if error.code in LOST_SERVER:
            sent = not error.unreached
            return None if self.changes_session and sent else self._policy
        return None
