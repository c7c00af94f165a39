# SPDX-License-Identifier: Apache-2.0
"""AsyncClient: calls a Lintel server from asyncio. The methods of Client, to be awaited."""

from __future__ import annotations

from typing import Optional

from lintel import _request
from lintel._aio_calls import AsyncCalls
from lintel._calls import awaiting
from lintel.aio_chat import AsyncChatStream, AsyncResponseStream
from lintel.aio_generation import AsyncGeneration
from lintel.aio_session import AsyncSession, NewAsyncSession
from lintel.client import Client, ClientBase
from lintel.results import Durability
from lintel.v1 import session_pb2


class AsyncClient(
    ClientBase[AsyncGeneration, NewAsyncSession, AsyncChatStream, AsyncResponseStream]
):
    """Calls one server, from one event loop. The methods of Client, to be awaited.

        async with lintel.AsyncClient("127.0.0.1:50051") as client:
            async for token in client.generate("Once upon", max_new_tokens=100):
                print(token.text, end="", flush=True)

    Arguments and errors are Client's. A task that is cancelled while it waits for a call ends the
    call on the server.
    """

    _calls_type = AsyncCalls
    _generation_type = AsyncGeneration
    _chat_type = AsyncChatStream
    _response_type = AsyncResponseStream

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _new_session(
        self, request: session_pb2.CreateSessionRequest, timeout: Optional[float]
    ) -> NewAsyncSession:
        return NewAsyncSession(self._calls, request, timeout)

    def attach_session(self, id: str) -> AsyncSession:
        """A session that exists. Nothing is called yet."""
        return AsyncSession(self._calls, id)

    async def restore_session(
        self,
        snapshot: _request.Bytes,
        *,
        model: str = "",
        verify: bool = False,
        accept_other_numerics: bool = False,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> AsyncSession:
        """A new session out of what Session.snapshot() gave, here or on another server.

        model: that it shall run on; empty: of the snapshot's name.
        verify: the server re-reads its tokens, which have to lead to its state, bit for bit.
        accept_other_numerics: continue also where the server's machine computes other bits.
        durability: as of session().
        """
        id = await self._restored_id(
            snapshot, model, verify, accept_other_numerics, durability, timeout
        )
        return AsyncSession(self._calls, id)

    close = awaiting(Client.close)
    complete_image = awaiting(Client.complete_image)
    score = awaiting(Client.score)
    # A **mapping may have the name of any argument, also of `self`.
    render_chat = awaiting(Client.render_chat)  # type: ignore[arg-type]
    get_response = awaiting(Client.get_response)
    cancel_response = awaiting(Client.cancel_response)
    delete_response = awaiting(Client.delete_response)
    list_input_items = awaiting(Client.list_input_items)
    count_input_tokens = awaiting(Client.count_input_tokens)  # type: ignore[arg-type]
    compact_response = awaiting(Client.compact_response)  # type: ignore[arg-type]
    get_session = awaiting(Client.get_session)
    list_sessions = awaiting(Client.list_sessions)
    delete_session = awaiting(Client.delete_session)
    states = awaiting(Client.states)
    delete_state = awaiting(Client.delete_state)
    models = awaiting(Client.models)
    model = awaiting(Client.model)
    tokenize = awaiting(Client.tokenize)
    detokenize = awaiting(Client.detokenize)
    serving = awaiting(Client.serving)
