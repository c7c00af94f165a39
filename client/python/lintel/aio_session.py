"""AsyncSession: state on the server, used from asyncio."""

from __future__ import annotations

from typing import Any, Generator, Optional

from lintel._aio_calls import AsyncCalls
from lintel._streaming import SessionBase
from lintel.aio_generation import AsyncGeneration, begin
from lintel.errors import LintelError, NotFound
from lintel.results import SessionInfo, read_session
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

    async def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already."""
        try:
            await self._calls.delete_session(self.id, self._attempts_to_close(timeout))
        except NotFound:
            pass

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
        return AsyncSession(calls, info.id)

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._make().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._make()
        return self._session

    async def __aexit__(self, *exc: Any) -> None:
        assert self._session is not None
        await self._session.__aexit__(*exc)
