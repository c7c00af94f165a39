"""Session: state on the server, used from threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from lintel._streaming import SessionBase
from lintel.errors import LintelError, NotFound
from lintel.generation import Generation
from lintel.results import SessionInfo

if TYPE_CHECKING:
    from lintel.client import Client


class Session(SessionBase[Generation]):
    """State on the server that lives between calls. One call at a time.

        with client.session() as session:
            for token in session.generate([1, 2, 3], max_new_tokens=10): ...
            for token in session.generate(max_new_tokens=10): ...  # goes on

    After a call that was cut short the session holds what the server had fed by then.
    """

    _client: Client

    def info(self, *, timeout: Optional[float] = None) -> SessionInfo:
        return self._client.get_session(self.id, timeout=timeout)

    def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already."""
        try:
            self._client._delete_session(self.id, self._attempts_to_close(timeout))
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
