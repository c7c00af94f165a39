# SPDX-License-Identifier: Apache-2.0
"""Session: state on the server, used from threads."""

from __future__ import annotations

from typing import Optional

from lintel import _collect, _request
from lintel._calls import Calls
from lintel._streaming import SessionBase, log_left_behind
from lintel.errors import Aborted, LintelError, NotFound, Unavailable
from lintel.generation import Generation, Stream, begin
from lintel.results import (
    Durability,
    HistoryRun,
    NamedState,
    SessionInfo,
    read_run,
    read_session,
    read_state,
)
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import session_pb2


class Session(SessionBase[Generation]):
    """State on the server that lives between calls. One call at a time.

        with client.session() as session:
            for token in session.generate([1, 2, 3], max_new_tokens=10): ...
            for token in session.generate(max_new_tokens=10): ...  # continues

    After a call that was cut short the session holds what the server had fed by then.
    """

    _calls: Calls

    def _begin(self, request: pb.GenerateRequest, attempts: Attempts) -> Generation:
        return begin(self._calls, request, attempts)

    def info(self, *, timeout: Optional[float] = None) -> SessionInfo:
        attempts = self._calls.attempts(timeout)
        return read_session(self._calls.get_session(self.id, attempts))

    def fork(
        self,
        *,
        position: Optional[int] = None,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> Session:
        """A session with the values of this one before `position`; None: all, of a session that is not
        in use. durability: None: this one's.
        """
        return (self.forks(1, position=position, durability=durability, timeout=timeout))[0]

    def forks(
        self,
        count: int,
        *,
        position: Optional[int] = None,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> list[Session]:
        """As many of them, at most 64: all or none."""
        request = _request.fork_request(self.id, position, count, durability)
        try:
            made = self._calls.unary(
                self._calls.stubs.fork_session, request, self._attempts_to_change(timeout)
            )
        except Aborted as error:
            raise _request.fork_error(error, position) from None
        return [Session(self._calls, self._calls.note(fork).id) for fork in made.sessions]

    def rewind(
        self, position: int, *, expected_digest: str = "", timeout: Optional[float] = None
    ) -> SessionInfo:
        """Takes back the values from `position` on. FailedPrecondition, and nothing is taken back,
        where an expected digest (SessionInfo.digest) is not the history's any more.
        """
        request = session_pb2.RewindSessionRequest(
            id=self.id, position=position, expected_digest=expected_digest or None
        )
        attempts = self._attempts_to_change(timeout)
        return read_session(self._calls.unary(self._calls.stubs.rewind_session, request, attempts))

    def snapshot(
        self,
        *,
        position: Optional[int] = None,
        without_history: bool = False,
        without_state: bool = False,
        timeout: Optional[float] = None,
    ) -> bytes:
        """All that the session is, for restore_session() of this or another client."""
        request = session_pb2.SnapshotSessionRequest(
            id=self.id,
            position=position,
            without_history=without_history,
            without_state=without_state,
        )
        calls = self._calls
        stream: Stream[session_pb2.SnapshotChunk] = Stream(
            calls, calls.stubs.snapshot_session, request, self._attempts_to_change(timeout)
        )
        collector = _collect.SnapshotCollector()
        try:
            while (chunk := stream.read()) is not None:
                collector.take(chunk)
        finally:
            stream.cancel()
        return collector.snapshot()

    def history(
        self, start: int = 0, stop: Optional[int] = None, *, timeout: Optional[float] = None
    ) -> list[HistoryRun]:
        """The values at positions start to stop - 1 (None: all), and where they came from."""
        calls = self._calls
        request = _request.history_request(self.id, start, stop)
        stream: Stream[pb.Chunk] = Stream(
            calls, calls.stubs.read_history, request, calls.attempts(timeout)
        )
        runs: list[HistoryRun] = []
        try:
            while (chunk := stream.read()) is not None:
                runs.append(read_run(chunk))
        finally:
            stream.cancel()
        return runs

    def save_state(
        self,
        name: str,
        *,
        position: Optional[int] = None,
        public: bool = False,
        timeout: Optional[float] = None,
    ) -> NamedState:
        """Keeps the session's state under a name, which session(initial_state=...) and
        generate(initial_state=...) begin with. public: for all callers; needs the role admin.
        """
        request = session_pb2.SaveStateRequest(
            session_id=self.id, name=name, position=position, is_public=public
        )
        attempts = self._attempts_to_change(timeout)
        return read_state(self._calls.unary(self._calls.stubs.save_state, request, attempts))

    def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already. Where no server
        answers that is logged, not raised: a session in memory went with its server, and one in a
        store expires.
        """
        try:
            self._calls.delete_session(self.id, self._attempts_to_close(timeout))
        except NotFound:
            pass
        except Unavailable as error:
            log_left_behind(self.id, error)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        try:
            self.close()
        except LintelError:
            if exc is None:  # else the caller's error is the one to tell
                raise
