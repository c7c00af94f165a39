# SPDX-License-Identifier: Apache-2.0
"""AsyncSession: state on the server, used from asyncio."""

from __future__ import annotations

from typing import Any, Generator, Optional

from lintel import _collect, _request
from lintel._aio_calls import AsyncCalls
from lintel._streaming import SessionBase, log_left_behind
from lintel.aio_generation import AsyncGeneration, AsyncStream, begin
from lintel.errors import Aborted, LintelError, NotFound, Unavailable
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


class AsyncSession(SessionBase[AsyncGeneration]):
    """State on the server that lives between calls: see Session. One call at a time."""

    _calls: AsyncCalls

    def _begin(self, request: pb.GenerateRequest, attempts: Attempts) -> AsyncGeneration:
        return begin(self._calls, request, attempts)

    async def info(self, *, timeout: Optional[float] = None) -> SessionInfo:
        attempts = self._calls.attempts(timeout)
        return read_session(await self._calls.get_session(self.id, attempts))

    async def fork(
        self,
        *,
        position: Optional[int] = None,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> AsyncSession:
        """A session with the values of this one before `position`; None: all, of a session that is not
        in use. durability: None: this one's.
        """
        forks = await self.forks(1, position=position, durability=durability, timeout=timeout)
        return forks[0]

    async def forks(
        self,
        count: int,
        *,
        position: Optional[int] = None,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> list[AsyncSession]:
        """As many of them, at most 64: all or none."""
        request = _request.fork_request(self.id, position, count, durability)
        try:
            made = await self._calls.unary(
                self._calls.stubs.fork_session, request, self._attempts_to_change(timeout)
            )
        except Aborted as error:
            raise _request.fork_error(error, position) from None
        return [AsyncSession(self._calls, self._calls.note(fork).id) for fork in made.sessions]

    async def rewind(
        self, position: int, *, expected_digest: str = "", timeout: Optional[float] = None
    ) -> SessionInfo:
        """Takes back the values from `position` on. FailedPrecondition, and nothing is taken back,
        where an expected digest (SessionInfo.digest) is not the history's any more.
        """
        request = session_pb2.RewindSessionRequest(
            id=self.id, position=position, expected_digest=expected_digest or None
        )
        attempts = self._attempts_to_change(timeout)
        return read_session(await self._calls.unary(self._calls.stubs.rewind_session, request, attempts))

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
        calls = self._calls
        stream: AsyncStream[session_pb2.SnapshotChunk] = AsyncStream(
            calls, calls.stubs.snapshot_session, request, self._attempts_to_change(timeout)
        )
        collector = _collect.SnapshotCollector()
        try:
            while (chunk := await stream.read()) is not None:
                collector.take(chunk)
        finally:
            stream.cancel()
        return collector.snapshot()

    async def history(
        self, start: int = 0, stop: Optional[int] = None, *, timeout: Optional[float] = None
    ) -> list[HistoryRun]:
        """The values at positions start to stop - 1 (None: all), and where they came from."""
        calls = self._calls
        request = _request.history_request(self.id, start, stop)
        stream: AsyncStream[pb.Chunk] = AsyncStream(
            calls, calls.stubs.read_history, request, calls.attempts(timeout)
        )
        runs: list[HistoryRun] = []
        try:
            while (chunk := await stream.read()) is not None:
                runs.append(read_run(chunk))
        finally:
            stream.cancel()
        return runs

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
        attempts = self._attempts_to_change(timeout)
        return read_state(await self._calls.unary(self._calls.stubs.save_state, request, attempts))

    async def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already. Where no server
        answers that is logged, not raised: a session in memory went with its server, and one in a
        store expires.
        """
        try:
            await self._calls.delete_session(self.id, self._attempts_to_close(timeout))
        except NotFound:
            pass
        except Unavailable as error:
            log_left_behind(self.id, error)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, exc_type: object, exc: object, traceback: object) -> None:
        try:
            await self.close()
        except LintelError:
            if exc is None:  # else the caller's error is the one to tell
                raise


class NewAsyncSession:
    """A session to be made by `await` or `async with`."""

    def __init__(
        self,
        calls: AsyncCalls,
        request: session_pb2.CreateSessionRequest,
        timeout: Optional[float],
    ) -> None:
        self._calls = calls
        self._request = request
        self._timeout = timeout
        self._session: Optional[AsyncSession] = None

    async def _make(self) -> AsyncSession:
        calls = self._calls
        attempts = calls.attempts(self._timeout)
        info = await calls.unary(calls.stubs.create_session, self._request, attempts)
        return AsyncSession(calls, calls.note(info).id)

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._make().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._make()
        return self._session

    async def __aexit__(self, *exc: Any) -> None:
        assert self._session is not None
        await self._session.__aexit__(*exc)
