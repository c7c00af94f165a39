# SPDX-License-Identifier: Apache-2.0
"""AsyncClient: calls a Lintel server from asyncio. The methods of Client, to be awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Optional

from lintel import _collect, _image, _request
from lintel import _foreign_pb2 as foreign
from lintel._aio_calls import AsyncCalls
from lintel._request import Values
from lintel.aio_generation import AsyncGeneration, AsyncStream, begin
from lintel.aio_session import AsyncSession, NewAsyncSession
from lintel.client import ClientBase
from lintel.results import (
    Durability,
    Model,
    NamedState,
    Score,
    SessionInfo,
    read_model,
    read_session,
    read_state,
)
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import model_pb2, session_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class AsyncClient(ClientBase[AsyncCalls, AsyncGeneration]):
    """Calls one server, from one event loop.

        async with lintel.AsyncClient("127.0.0.1:50051") as client:
            async for token in client.generate("Once upon", max_new_tokens=100):
                print(token.token)

    Arguments and errors are Client's. A task that is cancelled while it waits for a call ends the
    call on the server.
    """

    _calls_type = AsyncCalls

    async def close(self) -> None:
        """Ends every call that runs, and the connection."""
        await self._calls.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _begin(self, request: pb.GenerateRequest, attempts: Attempts) -> AsyncGeneration:
        return begin(self._calls, request, attempts)

    async def complete_image(
        self,
        image: npt.NDArray[np.uint8],
        mask: npt.NDArray[np.bool_],
        *,
        model: str = "",
        adapter: str = "",
        num_samples: Optional[int] = None,
        particles: int = 0,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        seed: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> npt.NDArray[np.uint8]:
        """Draws the pixels where `mask` is true: see Client.complete_image."""
        plan = _image.Completion(image, mask)
        if plan.nothing_hidden:
            return plan.result(None, num_samples)
        served = await self.model(model, timeout=timeout)
        plan.check_fits(served.name, served.image)
        start = served.image.start_token if served.image is not None else None
        generation = self.generate(
            **plan.request(start, whole=particles > 1),
            model=model,
            adapter=adapter,
            num_samples=num_samples,
            particles=particles,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            timeout=timeout,
        )
        return plan.result(await generation.samples(), num_samples)

    async def score(
        self,
        sequences: Iterable[Values],
        *,
        model: str = "",
        adapter: str = "",
        timeout: Optional[float] = None,
    ) -> list[Score]:
        """The probabilities of given sequences' values: see Client.score."""
        calls = self._calls
        request = _request.score_request(model, adapter, sequences)
        stream: AsyncStream[pb.ScoreResponse] = AsyncStream(
            calls, calls.stubs.score, request, calls.attempts(timeout)
        )
        collector = _collect.ScoreCollector(len(request.sequences), stream.request_id)
        try:
            while (response := await stream.read()) is not None:
                collector.take(response)
        finally:
            stream.cancel()
        return collector.scores()

    def session(
        self,
        *,
        model: str = "",
        max_tokens: int = 0,
        adapter: str = "",
        initial_state: str = "",
        checkpoint_every: int = 0,
        checkpoints: int = 0,
        history_tokens: int = 0,
        window: Optional[int] = None,
        durability: Optional[Durability] = None,
        expire_after: Optional[float] = None,
        timeout: Optional[float] = None,
    ) -> NewAsyncSession:
        """Makes a session, which the end of the block deletes:

            async with client.session() as session: ...

        Or, to keep it: session = await client.session().

        initial_state: a named state to begin with: see Session.save_state.
        checkpoint_every, checkpoints: a state is kept every so many values, of those at most so many,
            so that rewinding and forking re-read little.
        history_tokens: values that can be gone back to; 0: the server's choice.
        window: having read so many values the state is reset and re-reads the last half; 0: never. None: the
            initial state's, or what the model was trained on, where that is known.
        durability: what of it outlives the server; None: the server's default, INPUT where it has a
            store. Calls on such a session survive a crash of the server: see RetryPolicy.
        expire_after: seconds after which such a session is removed when unused; None: the server's
            choice.
        """
        request = _request.create_request(
            model,
            max_tokens,
            adapter,
            initial_state,
            checkpoint_every,
            checkpoints,
            history_tokens,
            window,
            durability,
            expire_after,
        )
        return NewAsyncSession(self._calls, request, timeout)

    def attach_session(self, id: str) -> AsyncSession:
        """A session that exists. Nothing is called yet."""
        return AsyncSession(self._calls, id)

    async def get_session(self, id: str, *, timeout: Optional[float] = None) -> SessionInfo:
        return read_session(await self._calls.get_session(id, self._calls.attempts(timeout)))

    async def list_sessions(
        self, *, model: str = "", timeout: Optional[float] = None
    ) -> list[SessionInfo]:
        """Every page. `model` empty: sessions of all models."""
        calls = self._calls
        attempts = calls.attempts(timeout)
        request = session_pb2.ListSessionsRequest(model=model, page_size=1000)
        sessions: list[SessionInfo] = []
        while True:
            page = await calls.unary(calls.stubs.list_sessions, request, attempts)
            sessions += map(read_session, map(calls.note, page.sessions))
            if not page.next_page_token:
                return sessions
            request.page_token = page.next_page_token

    async def delete_session(self, id: str, *, timeout: Optional[float] = None) -> None:
        """A session in use is Aborted, not deleted."""
        await self._calls.delete_session(id, self._calls.attempts(timeout))

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
        verify: the server re-reads its values, which have to lead to its state, bit for bit.
        accept_other_numerics: continue also where the server's machine computes other bits.
        durability: as of session().
        """
        calls = self._calls
        request = _request.restore_request(
            snapshot, model, verify, accept_other_numerics, durability
        )
        attempts = calls.attempts(timeout)
        attempts.changes_session = True
        method = _request.sends_all(calls.stubs.restore_session)
        return AsyncSession(calls, calls.note(await calls.unary(method, request, attempts)).id)

    async def states(self, *, model: str = "", timeout: Optional[float] = None) -> list[NamedState]:
        """Named states to begin with, one's own and public ones. `model` empty: of all models."""
        calls = self._calls
        attempts = calls.attempts(timeout)
        request = session_pb2.ListStatesRequest(model=model, page_size=1000)
        states: list[NamedState] = []
        while True:
            page = await calls.unary(calls.stubs.list_states, request, attempts)
            states += map(read_state, page.states)
            if not page.next_page_token:
                return states
            request.page_token = page.next_page_token

    async def delete_state(
        self, name: str, *, public: bool = False, timeout: Optional[float] = None
    ) -> None:
        request = session_pb2.DeleteStateRequest(name=name, is_public=public)
        calls = self._calls
        await calls.unary(calls.stubs.delete_state, request, calls.attempts(timeout))

    async def models(self, *, timeout: Optional[float] = None) -> list[Model]:
        calls, request = self._calls, model_pb2.ListModelsRequest()
        response = await calls.unary(calls.stubs.list_models, request, calls.attempts(timeout))
        return [read_model(model) for model in response.models]

    async def model(self, name: str = "", *, timeout: Optional[float] = None) -> Model:
        """`name` may be empty when one model is loaded."""
        calls, request = self._calls, model_pb2.GetModelRequest(name=name)
        return read_model(await calls.unary(calls.stubs.get_model, request, calls.attempts(timeout)))

    async def serving(self, service: str = "", *, timeout: Optional[float] = None) -> bool:
        """Health. `service` empty: the server as a whole. An unknown service is NotFound."""
        calls, request = self._calls, foreign.HealthCheckRequest(service=service)
        response = await calls.unary(calls.stubs.check_health, request, calls.attempts(timeout))
        return bool(response.status == foreign.HealthCheckResponse.SERVING)
