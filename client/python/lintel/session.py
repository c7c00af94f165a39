"""Session: state on the server, used from threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from lintel import _request
from lintel.errors import LintelError, NotFound
from lintel.generation import Generation, Stream
from lintel.results import SessionInfo
from lintel.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from lintel.client import Client


class Session(_request.Generates[Generation]):
    """State on the server that lives between calls. One call at a time.

        with client.session() as session:
            for token in session.generate([1, 2, 3], max_new_tokens=10): ...
            for token in session.generate(max_new_tokens=10): ...  # goes on

    After a call that was cut short the session holds what the server had fed by then.
    """

    def __init__(self, client: Client, id: str) -> None:
        self.id = id
        self._client = client
        self._last: Optional[Stream[pb.GenerateResponse]] = None

    def info(self, *, timeout: Optional[float] = None) -> SessionInfo:
        return self._client.get_session(self.id, timeout=timeout)

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> Generation:
        if request.session_id not in ("", self.id):
            raise ValueError("this is another session")
        request.session_id = self.id
        attempts = self._client._attempts(timeout)
        attempts.waits_for_own_call = self._last is not None and self._last.cut_short
        generation = self._client._generation(request, attempts)
        self._last = generation._stream
        return generation

    def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already."""
        attempts = self._client._attempts(timeout)
        if self._last is not None and not self._last.ended:
            self._last.cancel()
            attempts.waits_for_own_call = True
        try:
            self._client._delete_session(self.id, attempts)
        except NotFound:
            pass

    def __enter__(self) -> Session:
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        try:
            self.close()
        except LintelError:
            if exc is None:  # else the caller's error is the one to tell
                raise
