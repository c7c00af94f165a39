"""AsyncClient: calls a Lintel server from asyncio. The methods of Client, to be awaited."""

from __future__ import annotations

import asyncio
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Generic,
    Iterable,
    Iterator,
    Optional,
    TypeVar,
)

import grpc
import grpc.aio

from lintel import _channel, _collect, _image, _request, _stubs
from lintel import _foreign_pb2 as foreign
from lintel._values import Values
from lintel.errors import (
    LOCAL_ENDINGS,
    LintelError,
    NotFound,
    closed_in_wait,
    from_rpc_error,
    make_error,
)
from lintel.results import (
    Model,
    Sample,
    SampleResult,
    Score,
    SessionInfo,
    Token,
    read_model,
    read_score,
    read_session,
)
from lintel.retry import Attempts, RetryPolicy
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import model_pb2, session_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")


class AsyncClient(_request.Generates["AsyncGeneration"]):
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
    ) -> None:
        self._connection = _channel.Connection(address, tls, tls_ca, tls_cert, tls_key, token)
        self._credentials = self._connection.credentials()
        self._retry = retry
        self._timeout = timeout
        Attempts(retry, timeout)  # refuses a timeout that makes no sense now
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
            address, options = self._connection.address, _channel.OPTIONS
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
        stream: _AsyncStream[pb.GenerateResponse] = _AsyncStream(
            self, self._stubs.generate, request, attempts
        )
        return AsyncGeneration(stream, _request.num_samples(request))

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
        start = None
        if plan.first_is_hidden:
            served = (await self.model(model)).image
            start = served.start_token if served is not None else None
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
        stream: _AsyncStream[pb.ScoreResponse] = _AsyncStream(
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
    ) -> _NewSession:
        """Makes a session, which the end of the block deletes:

            async with client.session() as session: ...

        Or, to keep it: session = await client.session().
        """
        request = session_pb2.CreateSessionRequest(model=model, max_tokens=max_tokens)
        return _NewSession(self, request, timeout)

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
                error = from_rpc_error(rpc_error, request_id)
            except asyncio.CancelledError:
                if self._closed and not _task_is_cancelled():
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


def _task_is_cancelled() -> bool:
    """gRPC raises CancelledError where a call is cancelled, too. Python 3.11 tells them apart."""
    task = asyncio.current_task()
    return task is not None and hasattr(task, "cancelling") and task.cancelling() > 0


class _AsyncStream(Generic[T]):
    """One server stream, begun again while nothing has come of it."""

    def __init__(
        self, client: AsyncClient, method: Callable[..., Any], request: Any, attempts: Attempts
    ) -> None:
        self._client = client
        self._method = method
        self._request = request
        self._attempts = attempts
        self._delivered = False
        self._cancelled = asyncio.Event()
        self.ended = False  # with OK
        self._lost = False  # ended without the server's word
        self.request_id = _channel.new_request_id()
        self._begin()

    def _begin(self) -> None:
        self._call = self._client._invoke(
            self._method, self._request, self._attempts, self.request_id
        )

    @property
    def cut_short(self) -> bool:
        """The server may still be at it, or has just put it away."""
        return self._lost or (self._cancelled.is_set() and not self.ended)

    async def read(self) -> Optional[T]:
        """The next message; None: the stream has ended with OK."""
        if self.ended:
            return None
        try:
            while True:
                try:
                    message: Any = await self._call.read()
                    if message is grpc.aio.EOF:
                        self.ended = True
                        return None
                    self._delivered = True
                    return message  # type: ignore[no-any-return]
                except grpc.RpcError as rpc_error:
                    error = from_rpc_error(rpc_error, self.request_id)
                if self._delivered or self._cancelled.is_set():
                    raise error from None
                await self._client._wait_or_raise(error, self._attempts, self._cancelled)
                self._begin()
        except asyncio.CancelledError:
            closed = self._cancelled.is_set() or self._client._closed
            self.cancel()
            if closed and not _task_is_cancelled():
                code = grpc.StatusCode.CANCELLED
                raise make_error(code, "the call was closed", self.request_id) from None
            raise
        except LintelError as final:
            self._lost = final.code in LOCAL_ENDINGS
            raise

    def cancel(self) -> None:
        """Nothing happens to a stream that has ended."""
        self._cancelled.set()
        if not self.ended:
            self._call.cancel()

    def nonsense(self, what: str) -> LintelError:
        return make_error(grpc.StatusCode.INTERNAL, what, self.request_id)


class AsyncGeneration:
    """A stream of tokens: iterate over it with `async for`, once. The call has begun already.

    The server stops, and what it held is free, as soon as nobody reads any more: leaving the loop,
    close(), the end of an `async with`, cancelling the task or dropping the object cancel the call.
    """

    def __init__(self, stream: _AsyncStream[pb.GenerateResponse], num_samples: int) -> None:
        self._stream = stream
        self._results = _collect.Results(num_samples, stream.request_id)

    @property
    def request_id(self) -> str:
        """By which the server's log knows the call."""
        return self._stream.request_id

    @property
    def result(self) -> SampleResult:
        """How the first sample ended. RuntimeError before the stream has."""
        return self.results[0]

    @property
    def results(self) -> list[SampleResult]:
        """How each sample ended. RuntimeError before the stream has."""
        if not self._stream.ended:
            raise RuntimeError("the stream has not been read to its end")
        return self._results.complete()

    async def _read(self) -> Optional[pb.GenerateResponse]:
        try:
            response = await self._stream.read()
            if response is None:
                self._results.complete()
            else:
                self._results.take(response)
            return response
        except BaseException:
            self._stream.cancel()
            raise

    def __aiter__(self) -> AsyncIterator[Token]:
        return _Tokens(self)

    async def samples(self) -> list[Sample]:
        """Reads to the end. Faster than token by token."""
        collector = _collect.SampleCollector()
        while (response := await self._read()) is not None:
            collector.take(response)
        return collector.samples(self.results)

    def close(self) -> None:
        """Cancels what has not ended."""
        self._stream.cancel()

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        _close_quietly(self)


class _Tokens(AsyncIterator[Token]):
    """What `async for` holds. No async generator: the loop would close that later, not at once."""

    def __init__(self, generation: AsyncGeneration) -> None:
        self._generation = generation
        self._here: Iterator[Token] = iter(())  # of the last message

    async def __anext__(self) -> Token:
        while True:
            for token in self._here:
                return token
            response = await self._generation._read()
            if response is None:
                raise StopAsyncIteration
            self._here = _collect.tokens_of(response)

    def __del__(self) -> None:
        _close_quietly(self._generation)


def _close_quietly(generation: AsyncGeneration) -> None:
    try:
        generation.close()
    except (AttributeError, RuntimeError):  # half made, or the loop is closed
        pass


class AsyncSession(_request.Generates[AsyncGeneration]):
    """State on the server that lives between calls: see Session. One call at a time."""

    def __init__(self, client: AsyncClient, id: str) -> None:
        self.id = id
        self._client = client
        self._last: Optional[_AsyncStream[pb.GenerateResponse]] = None

    async def info(self, *, timeout: Optional[float] = None) -> SessionInfo:
        return await self._client.get_session(self.id, timeout=timeout)

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> AsyncGeneration:
        if request.session_id not in ("", self.id):
            raise ValueError("this is another session")
        request.session_id = self.id
        attempts = self._client._attempts(timeout)
        attempts.waits_for_own_call = self._last is not None and self._last.cut_short
        generation = self._client._generation(request, attempts)
        self._last = generation._stream
        return generation

    async def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends a call that runs and deletes the session, if it is not gone already."""
        attempts = self._client._attempts(timeout)
        if self._last is not None and not self._last.ended:
            self._last.cancel()
            attempts.waits_for_own_call = True
        try:
            await self._client._delete_session(self.id, attempts)
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


class _NewSession:
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
