# SPDX-License-Identifier: Apache-2.0
"""Session: state on the server, used from threads."""

from __future__ import annotations

import logging
from typing import Any, Optional, TypeVar

from lintel import _request
from lintel._calls import CallsBase, StreamBase, blocking
from lintel.errors import Aborted, LintelError, NotFound, Unavailable
from lintel.generation import Generation, GenerationBase
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

GenerationT = TypeVar("GenerationT", bound=GenerationBase)


class SessionBase(_request.Generates[GenerationT]):
    """Common parts of Session and AsyncSession."""

    def __init__(self, calls: CallsBase, id: str) -> None:
        self.id = id
        self._calls = calls
        self._last: Optional[StreamBase[Any]] = None

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> GenerationT:
        if request.session_id not in ("", self.id):
            raise ValueError("this is another session")
        request.session_id = self.id
        attempts = self._calls.attempts(timeout)
        attempts.waits_for_own_call = self._last is not None and self._last.cut_short
        generation = self._generation_type._begin(self._calls, request, attempts)
        self._last = generation._stream
        return generation

    def _attempts_to_change(self, timeout: Optional[float]) -> Attempts:
        """Attempts of a call that is not sent twice, and waits for one that was cut short."""
        attempts = self._calls.attempts(timeout)
        attempts.changes_session = True
        attempts.waits_for_own_call = self._last is not None and self._last.cut_short
        return attempts

    async def _fork_ids(
        self,
        count: int,
        position: Optional[int],
        durability: Optional[Durability],
        timeout: Optional[float],
    ) -> list[str]:
        request = session_pb2.ForkSessionRequest(
            id=self.id,
            position=position,
            count=count,
            durability=_request.durability_to_wire(durability),
        )
        calls, attempts = self._calls, self._attempts_to_change(timeout)
        try:
            made = await calls.unary(calls.stubs.fork_session, request, attempts)
        except Aborted as error:
            if position is not None or error.reason:  # held elsewhere: a position does not help
                raise
            hint = "a copy of a session in use needs `position`: how many tokens it has"
            raise error.with_hint(hint) from None
        return [calls.note(fork).id for fork in made.sessions]

    async def _close(self, timeout: Optional[float] = None) -> None:
        attempts = self._calls.attempts(timeout)
        if self._last is not None and not self._last.ended:
            self._last.cancel()
            attempts.waits_for_own_call = True
        try:
            await self._calls.delete_session(self.id, attempts)
        except NotFound:
            pass
        except Unavailable as error:
            log = logging.getLogger("lintel")
            log.warning("session %s was not deleted: %s", self.id, error)

    async def _leave(self, exc: object) -> None:
        """At the end of a block, which raises `exc`."""
        try:
            await self._close()
        except LintelError:
            if exc is None:  # else the caller's error is the one to tell
                raise


class Session(SessionBase[Generation]):
    """State on the server that lives between calls. One call at a time.

        with client.session() as session:
            for token in session.generate([1, 2, 3], max_new_tokens=10): ...
            for token in session.generate(max_new_tokens=10): ...  # continues

    After a call that was cut short the session holds what the server had fed by then.
    """

    _generation_type = Generation

    @blocking
    async def info(self, *, timeout: Optional[float] = None) -> SessionInfo:
        attempts = self._calls.attempts(timeout)
        return read_session(await self._calls.get_session(self.id, attempts))

    @blocking
    async def fork(
        self,
        *,
        position: Optional[int] = None,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> Session:
        """A session with the tokens of this one before `position`; None: all, of a session that is not
        in use. durability: None: this one's.
        """
        ids = await self._fork_ids(1, position, durability, timeout)
        return Session(self._calls, ids[0])

    @blocking
    async def forks(
        self,
        count: int,
        *,
        position: Optional[int] = None,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> list[Session]:
        """Copies of the session, as many as `count`, at most 64: all or none."""
        ids = await self._fork_ids(count, position, durability, timeout)
        return [Session(self._calls, id) for id in ids]

    @blocking
    async def rewind(
        self, position: int, *, expected_digest: str = "", timeout: Optional[float] = None
    ) -> SessionInfo:
        """Takes back the tokens from `position` on. FailedPrecondition, and nothing is taken back,
        where an expected digest (SessionInfo.digest) is not the history's any more.
        """
        request = session_pb2.RewindSessionRequest(
            id=self.id, position=position, expected_digest=expected_digest or None
        )
        calls, attempts = self._calls, self._attempts_to_change(timeout)
        return read_session(await calls.unary(calls.stubs.rewind_session, request, attempts))

    @blocking
    async def snapshot(
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
        calls, attempts = self._calls, self._attempts_to_change(timeout)
        pieces: list[bytes] = []
        stream = calls.stream(calls.stubs.snapshot_session, request, attempts)
        await stream.read_all(lambda chunk: pieces.append(chunk.data))
        return b"".join(pieces)

    @blocking
    async def history(
        self, start: int = 0, stop: Optional[int] = None, *, timeout: Optional[float] = None
    ) -> list[HistoryRun]:
        """The tokens at positions start to stop - 1 (None: all), and where they came from."""
        request = session_pb2.ReadHistoryRequest(id=self.id, from_position=start, to_position=stop)
        calls, attempts = self._calls, self._calls.attempts(timeout)
        runs: list[HistoryRun] = []
        stream = calls.stream(calls.stubs.read_history, request, attempts)
        await stream.read_all(lambda chunk: runs.append(read_run(chunk)))
        return runs

    @blocking
    async def save_state(
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
        calls, attempts = self._calls, self._attempts_to_change(timeout)
        return read_state(await calls.unary(calls.stubs.save_state, request, attempts))

    @blocking
    async def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already. Where no server
        answers that is logged, not raised: a session in memory went with its server, and one in a
        store expires.
        """
        await self._close(timeout)

    def __enter__(self) -> Session:
        return self

    @blocking
    async def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        await self._leave(exc)
