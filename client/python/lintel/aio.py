"""AsyncClient: calls a Lintel server from asyncio. The methods of Client, to be awaited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Iterable, Optional, TypeVar

import grpc
import grpc.aio

from lintel import _bound, _channel, _image, _request, _stubs
from lintel import _foreign_pb2 as foreign
from lintel._values import Values
from lintel.aio_generation import AsyncGeneration, AsyncStream, task_is_cancelled
from lintel.aio_session import AsyncSession, NewAsyncSession
from lintel.errors import LintelError, NotFound, closed_in_wait, from_rpc_error, make_error
from lintel.results import Model, Score, SessionInfo, read_model, read_score, read_session
from lintel.retry import Attempts, RetryPolicy
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import model_pb2, session_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")


class AsyncClient(_request.Generates[AsyncGeneration]):
    """Calls one server, from one event loop.

        async with lintel.AsyncClient("127.0.0.1:50051") as client:
            async for token in client.generate("Once upon", max_new_tokens=100):
                print(token.token)

    Arguments and errors are Client's. A task that is cancelled while it waits for a call ends the
    call on the server.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        tls: bool = False,
        tls_ca: Optional[_channel.Path] = None,
        tls_cert: Optional[_channel.Path] = None,
        tls_key: Optional[_channel.Path] = None,
        token: Optional[str] = None,
        timeout: float = 300.0,
        retry: Optional[RetryPolicy] = RetryPolicy(),
        proxy: Optional[str] = None,
    ) -> None:
        self._connection = _channel.Connection(
            address, tls, tls_ca, tls_cert, tls_key, token, proxy
        )
        self._credentials = self._connection.credentials()
        self._retry = retry
        self._timeout = timeout
        Attempts(retry, timeout)  # refuses a timeout that makes no sense now
        self._modalities: dict[str, str] = {}  # of models that were asked, by name
        self._closed = False
        self._waits: set[asyncio.Event] = set()  # of calls that wait to be tried again
        self._channel: Any = None  # made in the loop that uses it
        self._made_stubs: Optional[_stubs.Stubs] = None

    @property
    def _stubs(self) -> _stubs.Stubs:
        if self._closed:
            raise make_error(grpc.StatusCode.CANCELLED, "the client is closed", "")
        if self._made_stubs is None:
            asyncio.get_running_loop()  # RuntimeError outside of one
            address, options = self._connection.address, self._connection.options()
            self._channel = (
                grpc.aio.insecure_channel(address, options)
                if self._credentials is None
                else grpc.aio.secure_channel(address, self._credentials, options)
            )
            self._made_stubs = _stubs.Stubs(self._channel)
        return self._made_stubs

    async def close(self) -> None:
        """Ends every call that runs, and the connection."""
        self._closed = True
        for stopped in self._waits:
            stopped.set()
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> AsyncGeneration:
        return self._generation(request, self._attempts(timeout))

    def _generation(self, request: pb.GenerateRequest, attempts: Attempts) -> AsyncGeneration:
        attempts.changes_session = bool(request.session_id)
        stream: AsyncStream[pb.GenerateResponse] = AsyncStream(
            self,
            self._stubs.generate,
            request,
            attempts,
            prepare=self._bound if _bound.is_open(request) else None,
        )
        return AsyncGeneration(stream, _request.num_samples(request))

    async def _bound(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """Bounds a request that has no bound, where its model is known to need one."""
        if not _bound.is_open(request):
            return
        once = Attempts(None, attempts.remaining())
        try:
            name = request.model
            if request.session_id:
                session = session_pb2.GetSessionRequest(id=request.session_id)
                name = (await self._unary(self._stubs.get_session, session, once)).model
            if name not in self._modalities:
                ask = model_pb2.GetModelRequest(name=name)
                model = await self._unary(self._stubs.get_model, ask, once)
                self._modalities[name] = model.modality
            _bound.bound(request, self._modalities[name])
        except LintelError:
            pass  # the generation's own error says more

    async def complete_image(
        self,
        image: npt.NDArray[np.uint8],
        mask: npt.NDArray[np.bool_],
        *,
        model: str = "",
        num_samples: Optional[int] = None,
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
            **plan.request(start),
            model=model,
            num_samples=num_samples,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            timeout=timeout,
        )
        return plan.result(await generation.samples(), num_samples)

    async def score(
        self, sequences: Iterable[Values], *, model: str = "", timeout: Optional[float] = None
    ) -> list[Score]:
        """The probabilities of given sequences' values: see Client.score."""
        request = _stubs.score_request(model, sequences)
        stream: AsyncStream[pb.ScoreResponse] = AsyncStream(
            self, self._stubs.score, request, self._attempts(timeout)
        )
        scores: list[Score] = []
        try:
            while (response := await stream.read()) is not None:
                if response.index != len(scores):
                    raise stream.nonsense("the server's scores are out of order")
                scores.append(read_score(response))
        finally:
            stream.cancel()
        if len(scores) != len(request.sequences):
            raise stream.nonsense("the stream ended before every sequence was scored")
        return scores

    def session(
        self, *, model: str = "", max_tokens: int = 0, timeout: Optional[float] = None
    ) -> NewAsyncSession:
        """Makes a session, which the end of the block deletes:

            async with client.session() as session: ...

        Or, to keep it: session = await client.session().
        """
        request = session_pb2.CreateSessionRequest(model=model, max_tokens=max_tokens)
        return NewAsyncSession(self, request, timeout)

    def attach_session(self, id: str) -> AsyncSession:
        """A session that exists. Nothing is called yet."""
        return AsyncSession(self, id)

    async def get_session(self, id: str, *, timeout: Optional[float] = None) -> SessionInfo:
        request = session_pb2.GetSessionRequest(id=id)
        return read_session(
            await self._unary(self._stubs.get_session, request, self._attempts(timeout))
        )

    async def list_sessions(
        self, *, model: str = "", timeout: Optional[float] = None
    ) -> list[SessionInfo]:
        """Every page. `model` empty: sessions of all models."""
        attempts = self._attempts(timeout)
        request = session_pb2.ListSessionsRequest(model=model, page_size=1000)
        sessions: list[SessionInfo] = []
        while True:
            page = await self._unary(self._stubs.list_sessions, request, attempts)
            sessions += map(read_session, page.sessions)
            if not page.next_page_token:
                return sessions
            request.page_token = page.next_page_token

    async def delete_session(self, id: str, *, timeout: Optional[float] = None) -> None:
        """A session in use is Aborted, not deleted."""
        await self._delete_session(id, self._attempts(timeout))

    async def models(self, *, timeout: Optional[float] = None) -> list[Model]:
        request = model_pb2.ListModelsRequest()
        response = await self._unary(self._stubs.list_models, request, self._attempts(timeout))
        return [read_model(model) for model in response.models]

    async def model(self, name: str = "", *, timeout: Optional[float] = None) -> Model:
        """`name` may be empty when one model is loaded."""
        request = model_pb2.GetModelRequest(name=name)
        return read_model(
            await self._unary(self._stubs.get_model, request, self._attempts(timeout))
        )

    async def serving(self, service: str = "", *, timeout: Optional[float] = None) -> bool:
        """Health. `service` empty: the server as a whole. An unknown service is NotFound."""
        request = foreign.HealthCheckRequest(service=service)
        response = await self._unary(self._stubs.check_health, request, self._attempts(timeout))
        return bool(response.status == foreign.HealthCheckResponse.SERVING)

    def _attempts(self, timeout: Optional[float]) -> Attempts:
        return Attempts(self._retry, self._timeout if timeout is None else timeout)

    async def _delete_session(self, id: str, attempts: Attempts) -> None:
        try:
            request = session_pb2.DeleteSessionRequest(id=id)
            await self._unary(self._stubs.delete_session, request, attempts)
        except NotFound:
            # The answer of an attempt may have been lost after the session was.
            if not attempts.retried:
                raise

    def _invoke(
        self, method: Callable[..., T], request: Any, attempts: Attempts, request_id: str
    ) -> T:
        try:
            return method(
                request,
                timeout=attempts.remaining(),
                metadata=self._connection.metadata(request_id),
            )
        except grpc.aio.UsageError:  # what gRPC has to say of a closed channel
            if not self._closed:
                raise
            code = grpc.StatusCode.CANCELLED
            raise make_error(code, "the client is closed", request_id) from None

    async def _unary(
        self, method: Callable[..., Awaitable[T]], request: Any, attempts: Attempts
    ) -> T:
        request_id = _channel.new_request_id()
        while True:
            try:
                return await self._invoke(method, request, attempts, request_id)
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(
                    rpc_error, request_id, self._connection.encrypted, attempts.timeout
                )
            except asyncio.CancelledError:
                if self._closed and not task_is_cancelled():
                    raise make_error(
                        grpc.StatusCode.CANCELLED, "the client was closed", request_id
                    ) from None
                raise
            await self._wait_or_raise(error, attempts, asyncio.Event())

    async def _wait_or_raise(
        self, error: LintelError, attempts: Attempts, stopped: asyncio.Event
    ) -> None:
        """Returns when it is time to try again. Cancelled once `stopped` is set, which close()
        does too.
        """
        delay = attempts.delay_after(error)
        if self._closed:
            stopped.set()
        self._waits.add(stopped)
        try:
            await asyncio.wait_for(stopped.wait(), delay)
        except asyncio.TimeoutError:
            if not stopped.is_set():
                return
        finally:
            self._waits.discard(stopped)
        raise closed_in_wait(error) from error
