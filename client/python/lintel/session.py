"""Session: state on the server, used from threads."""

from __future__ import annotations

from typing import Optional

from lintel._calls import Calls
from lintel._streaming import SessionBase
from lintel.errors import LintelError, NotFound
from lintel.generation import Generation, begin
from lintel.results import SessionInfo, read_session
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb


class Session(SessionBase[Generation]):
    """State on the server that lives between calls. One call at a time.

        with client.session() as session:
            for token in session.generate([1, 2, 3], max_new_tokens=10): ...
            for token in session.generate(max_new_tokens=10): ...  # goes on

    After a call that was cut short the session holds what the server had fed by then.
    """

    _calls: Calls

    def _begin(self, request: pb.GenerateRequest, attempts: Attempts) -> Generation:
        return begin(self._calls, request, attempts)

    def info(self, *, timeout: Optional[float] = None) -> SessionInfo:
        attempts = self._calls.attempts(timeout)
        return read_session(self._calls.get_session(self.id, attempts))

    def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already."""
        try:
            self._calls.delete_session(self.id, self._attempts_to_close(timeout))
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
