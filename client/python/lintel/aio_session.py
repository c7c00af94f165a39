# SPDX-License-Identifier: Apache-2.0
"""AsyncSession: state on the server, used from asyncio."""

from __future__ import annotations

from typing import Any, Generator, Optional

from lintel._calls import CallsBase, awaiting
from lintel.aio_generation import AsyncGeneration
from lintel.results import Durability
from lintel.session import Session, SessionBase
from lintel.v1 import session_pb2


class AsyncSession(SessionBase[AsyncGeneration]):
    """State on the server that lives between calls. The methods of Session, to be awaited. One call at
    a time.
    """

    _generation_type = AsyncGeneration

    async def fork(
        self,
        *,
        position: Optional[int] = None,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> AsyncSession:
        """A session with the tokens of this one before `position`; None: all, of a session that is not
        in use. durability: None: this one's.
        """
        ids = await self._fork_ids(1, position, durability, timeout)
        return AsyncSession(self._calls, ids[0])

    async def forks(
        self,
        count: int,
        *,
        position: Optional[int] = None,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> list[AsyncSession]:
        """Copies of the session, as many as `count`, at most 64: all or none."""
        ids = await self._fork_ids(count, position, durability, timeout)
        return [AsyncSession(self._calls, id) for id in ids]

    info = awaiting(Session.info)
    rewind = awaiting(Session.rewind)
    snapshot = awaiting(Session.snapshot)
    history = awaiting(Session.history)
    save_state = awaiting(Session.save_state)
    close = awaiting(Session.close)

    async def __aenter__(self) -> AsyncSession:
        return self

    __aexit__ = awaiting(Session.__exit__)


class NewAsyncSession:
    """A session to be made by `await` or `async with`."""

    def __init__(
        self,
        calls: CallsBase,
        request: session_pb2.CreateSessionRequest,
        timeout: Optional[float],
    ) -> None:
        self._calls = calls
        self._request = request
        self._timeout = timeout
        self._session: Optional[AsyncSession] = None

    async def _make(self) -> AsyncSession:
        id = await self._calls.create_session(self._request, self._calls.attempts(self._timeout))
        return AsyncSession(self._calls, id)

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._make().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._make()
        return self._session

    async def __aexit__(self, *exc: Any) -> None:
        assert self._session is not None
        await self._session.__aexit__(*exc)
