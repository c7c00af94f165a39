# SPDX-License-Identifier: Apache-2.0
"""What generations and sessions read from threads and from asyncio have in common."""

from __future__ import annotations

import logging
from typing import Any, Callable, Optional, TypeVar

from lintel import _channel, _collect, _request
from lintel.errors import LintelError
from lintel.results import SampleResult
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb


class StreamBase:
    """One server stream, restarted while nothing has come of it."""

    def __init__(
        self,
        calls: Any,
        method: Callable[..., Any],
        request: Any,
        attempts: Attempts,
        cancelled: Any,
    ) -> None:
        """calls: Calls or AsyncCalls; cancelled: an Event of threading or asyncio."""
        self._calls = calls
        self._method = method
        self._request = request
        self._attempts = attempts
        self._delivered = False
        self._cancelled = cancelled
        self.ended = False  # with OK
        self._lost = False  # ended without the server's word
        self.request_id = _channel.new_request_id()
        self._call: Any = None  # not started

    @property
    def has_started(self) -> bool:
        return self._call is not None

    @property
    def request(self) -> Any:
        return self._request

    def _begin(self) -> None:
        self._call = self._calls.invoke(
            self._method, self._request, self._attempts, self.request_id
        )
        if self._cancelled.is_set():  # meanwhile, in another thread
            self._call.cancel()

    def _is_news(self, message: Any) -> bool:
        """Notes that something came; False where all of it was seen before."""
        self._delivered = True
        self._attempts.moves = 0
        repeat = self._attempts.repeat
        return repeat is None or repeat.take(message)

    def _ends_with(self, error: LintelError) -> bool:
        """Whether everything had come before the error, which is raised where it ends the stream."""
        repeat = self._attempts.repeat
        if self._cancelled.is_set() or (repeat is None and self._delivered):
            raise error from None
        if repeat is None or not repeat.finished:
            return False
        self.ended = True
        return True

    @property
    def cut_short(self) -> bool:
        """The server may still be at it, or has just put it away."""
        return self._lost or (self._cancelled.is_set() and not self.ended)

    def cancel(self) -> None:
        """Nothing happens to a stream that has ended. Of Stream: from any thread."""
        self._cancelled.set()
        if not self.ended and self.has_started:
            self._call.cancel()


class GenerationBase:
    """What is known of a stream of tokens beside the tokens."""

    def __init__(self, stream: StreamBase, num_samples: int) -> None:
        self._stream = stream
        self._results = _collect.Results(num_samples, stream.request_id)

    @property
    def request_id(self) -> str:
        """By which the server's log knows the call."""
        return self._stream.request_id

    @property
    def result(self) -> SampleResult:
        """How the first sample ended. RuntimeError before the stream has."""
        return self.results[0]

    @property
    def results(self) -> list[SampleResult]:
        """How each sample ended. RuntimeError before the stream has."""
        if not self._stream.ended:
            raise RuntimeError("the stream has not been read to its end")
        return self._results.complete()

    def close(self) -> None:
        """Cancels what has not ended."""
        self._stream.cancel()


GenerationT = TypeVar("GenerationT", bound=GenerationBase)


def log_left_behind(session_id: str, error: LintelError) -> None:
    """Of a session that could not be deleted."""
    logging.getLogger("lintel").warning("session %s was not deleted: %s", session_id, error)


class SessionBase(_request.Generates[GenerationT]):
    """State on the server that lives between calls. One call at a time."""

    def __init__(self, calls: Any, id: str) -> None:
        """calls: Calls or AsyncCalls."""
        self.id = id
        self._calls = calls
        self._last: Optional[StreamBase] = None

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> GenerationT:
        if request.session_id not in ("", self.id):
            raise ValueError("this is another session")
        request.session_id = self.id
        attempts = self._calls.attempts(timeout)
        attempts.waits_for_own_call = self._last is not None and self._last.cut_short
        generation = self._begin(request, attempts)
        self._last = generation._stream
        return generation

    def _begin(self, request: pb.GenerateRequest, attempts: Attempts) -> GenerationT:
        raise NotImplementedError

    def _attempts_to_change(self, timeout: Optional[float]) -> Attempts:
        """Of a call that is not sent twice, and waits for one that was cut short."""
        attempts: Attempts = self._calls.attempts(timeout)
        attempts.changes_session = True
        attempts.waits_for_own_call = self._last is not None and self._last.cut_short
        return attempts

    def _attempts_to_close(self, timeout: Optional[float]) -> Attempts:
        """Of the session's deletion. A call that runs is cancelled."""
        attempts: Attempts = self._calls.attempts(timeout)
        if self._last is not None and not self._last.ended:
            self._last.cancel()
            attempts.waits_for_own_call = True
        return attempts
