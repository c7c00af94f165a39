"""AsyncSession: state on the server, used from asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generator, Optional

from lintel._streaming import SessionBase
from lintel.aio_generation import AsyncGeneration
from lintel.errors import LintelError, NotFound
from lintel.results import SessionInfo
from lintel.v1 import session_pb2

if TYPE_CHECKING:
    from lintel.aio import AsyncClient


class AsyncSession(SessionBase[AsyncGeneration]):
    """State on the server that lives between calls: see Session. One call at a time."""

    _client: AsyncClient

    async def info(self, *, timeout: Optional[float] = None) -> SessionInfo:
        return await self._client.get_session(self.id, timeout=timeout)

    async def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already."""
        try:
            await self._client._delete_session(self.id, self._attempts_to_close(timeout))
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
        client: AsyncClient,
        request: session_pb2.CreateSessionRequest,
        timeout: Optional[float],
    ) -> None:
        self._client = client
        self._request = request
        self._timeout = timeout
        self._session: Optional[AsyncSession] = None

    async def _make(self) -> AsyncSession:
        client = self._client
        attempts = client._attempts(self._timeout)
        info = await client._unary(client._stubs.create_session, self._request, attempts)
        return AsyncSession(client, info.id)

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._make().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._make()
        return self._session

    async def __aexit__(self, *exc: Any) -> None:
        assert self._session is not None
        await self._session.__aexit__(*exc)
