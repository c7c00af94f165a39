"""Client: calls a Lintel server from threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, TypeVar

import grpc

from lintel import _bound, _channel, _image, _request, _stubs
from lintel import _foreign_pb2 as foreign
from lintel._values import Values
from lintel.errors import LintelError, NotFound, closed_in_wait, from_rpc_error, make_error
from lintel.generation import Generation, Stream
from lintel.results import Model, Score, SessionInfo, read_model, read_score, read_session
from lintel.retry import Attempts, RetryPolicy
from lintel.session import Session
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import model_pb2, session_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")


class Client(_request.Generates[Generation]):
    """Calls one server.

        with lintel.Client("127.0.0.1:50051") as client:
            for token in client.generate("Once upon", max_new_tokens=100):
                print(token.token)

    Every call has a timeout; what does not end with OK raises LintelError. Does not connect before
    the first call. Any number of threads may call. ValueError for options that make no sense
    together, OSError for a file that cannot be read.

    tls_ca, tls_cert, tls_key: PEM files. With a CA or a certificate, or with tls=True and the
        authorities gRPC knows, the channel is encrypted; with none it is plain text.
    token: sent with every call, never in plain text to another machine. White space around it, as
        the newline at the end of a file, is left out.
    timeout: seconds, of every call, retries included.
    retry: None: never.
    proxy: [USER:PASSWORD@]HOST:PORT of an HTTP proxy to reach other machines through, by CONNECT. What
        the environment says of proxies (http_proxy and so on) is not heeded, but for no_proxy, which
        may name machines to reach without the one given; and this machine is never reached through one.
        A proxy reads all that is not encrypted.
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
        self._retry = retry
        self._timeout = timeout
        Attempts(retry, timeout)  # refuses a timeout that makes no sense now
        self._modalities: dict[str, str] = {}  # of models that were asked, by name
        self._closing = threading.Event()
        self._waits: set[threading.Event] = set()  # of calls that wait to be tried again
        self._waits_lock = threading.RLock()  # a signal's handler may close, too
        credentials, options = self._connection.credentials(), self._connection.options()
        self._channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self._stubs = _stubs.Stubs(self._channel)

    def close(self) -> None:
        """Ends every call that runs, and the connection."""
        self._closing.set()
        with self._waits_lock:
            for stopped in list(self._waits):
                stopped.set()
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> Generation:
        return self._generation(request, self._attempts(timeout))

    def _generation(self, request: pb.GenerateRequest, attempts: Attempts) -> Generation:
        attempts.changes_session = bool(request.session_id)
        stream: Stream[pb.GenerateResponse] = Stream(
            self, self._stubs.generate, request, attempts, prepare=self._bound
        )
        return Generation(stream, _request.num_samples(request))

    def _bound(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        """Bounds a request that has no bound, where its model is known to need one."""
        if not _bound.is_open(request):
            return
        once = Attempts(None, attempts.remaining())
        try:
            name = request.model
            if request.session_id:
                session = session_pb2.GetSessionRequest(id=request.session_id)
                name = self._unary(self._stubs.get_session, session, once).model
            if name not in self._modalities:
                model = model_pb2.GetModelRequest(name=name)
                self._modalities[name] = self._unary(self._stubs.get_model, model, once).modality
            _bound.bound(request, self._modalities[name])
        except LintelError:
            pass  # the generation's own error says more

    def complete_image(
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
        """Draws the pixels where `mask` is true; the others stay as they are. Each is drawn given the
        pixels before it, row by row: known ones behind it do not bear on it.

        image: uint8 [height, width] or [height, width, channels]; mask: bool, of the image's shape
        or [height, width]. Returns an image, or [num_samples, ...] where a number is given.
        ValueError for an image that is not of the model's shape. Warns of dark on light where the
        model has one channel: those of MNIST were trained on light digits on black.
        """
        plan = _image.Completion(image, mask)
        if plan.nothing_hidden:
            return plan.result(None, num_samples)
        served = self.model(model, timeout=timeout)
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
        return plan.result(generation.samples(), num_samples)

    def score(
        self, sequences: Iterable[Values], *, model: str = "", timeout: Optional[float] = None
    ) -> list[Score]:
        """The probabilities of given sequences' values, in their order.

        sequences: several of what generate() takes as a prompt. A 2-D array of integers is a
            sequence a row, a uint8 array [n, height, width] or [n, height, width, channels] an
            image each. A uint8 array [height, width] is a single image: TypeError; write
            score([image]) or score(image[np.newaxis]).
        """
        request = _stubs.score_request(model, sequences)
        stream: Stream[pb.ScoreResponse] = Stream(
            self, self._stubs.score, request, self._attempts(timeout)
        )
        scores: list[Score] = []
        try:
            while (response := stream.read()) is not None:
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
    ) -> Session:
        """Makes a session: state on the server that lives between calls. Use it in a `with`, which
        deletes it at the end; or keep it, and come back with attach_session(id).
        """
        request = session_pb2.CreateSessionRequest(model=model, max_tokens=max_tokens)
        info = self._unary(self._stubs.create_session, request, self._attempts(timeout))
        return Session(self, info.id)

    def attach_session(self, id: str) -> Session:
        """A session that exists. Nothing is called yet."""
        return Session(self, id)

    def get_session(self, id: str, *, timeout: Optional[float] = None) -> SessionInfo:
        request = session_pb2.GetSessionRequest(id=id)
        return read_session(
            self._unary(self._stubs.get_session, request, self._attempts(timeout))
        )

    def list_sessions(
        self, *, model: str = "", timeout: Optional[float] = None
    ) -> list[SessionInfo]:
        """Every page. `model` empty: sessions of all models."""
        attempts = self._attempts(timeout)
        request = session_pb2.ListSessionsRequest(model=model, page_size=1000)
        sessions: list[SessionInfo] = []
        while True:
            page = self._unary(self._stubs.list_sessions, request, attempts)
            sessions += map(read_session, page.sessions)
            if not page.next_page_token:
                return sessions
            request.page_token = page.next_page_token

    def delete_session(self, id: str, *, timeout: Optional[float] = None) -> None:
        """A session in use is Aborted, not deleted."""
        self._delete_session(id, self._attempts(timeout))

    def models(self, *, timeout: Optional[float] = None) -> list[Model]:
        request = model_pb2.ListModelsRequest()
        response = self._unary(self._stubs.list_models, request, self._attempts(timeout))
        return [read_model(model) for model in response.models]

    def model(self, name: str = "", *, timeout: Optional[float] = None) -> Model:
        """`name` may be empty when one model is loaded."""
        request = model_pb2.GetModelRequest(name=name)
        return read_model(self._unary(self._stubs.get_model, request, self._attempts(timeout)))

    def serving(self, service: str = "", *, timeout: Optional[float] = None) -> bool:
        """Health. `service` empty: the server as a whole. An unknown service is NotFound."""
        request = foreign.HealthCheckRequest(service=service)
        response = self._unary(self._stubs.check_health, request, self._attempts(timeout))
        return bool(response.status == foreign.HealthCheckResponse.SERVING)

    def _attempts(self, timeout: Optional[float]) -> Attempts:
        return Attempts(self._retry, self._timeout if timeout is None else timeout)

    def _delete_session(self, id: str, attempts: Attempts) -> None:
        try:
            request = session_pb2.DeleteSessionRequest(id=id)
            self._unary(self._stubs.delete_session, request, attempts)
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
        except ValueError:  # what gRPC has to say of a closed channel
            if not self._closing.is_set():
                raise
            code = grpc.StatusCode.CANCELLED
            raise make_error(code, "the client is closed", request_id) from None

    def _unary(self, method: Callable[..., T], request: Any, attempts: Attempts) -> T:
        request_id = _channel.new_request_id()
        while True:
            try:
                return self._invoke(method, request, attempts, request_id)
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(
                    rpc_error, request_id, self._connection.encrypted, attempts.timeout
                )
            self._wait_or_raise(error, attempts, threading.Event())

    def _wait_or_raise(
        self, error: LintelError, attempts: Attempts, stopped: threading.Event
    ) -> None:
        """Returns when it is time to try again. Cancelled once `stopped` is set, which close()
        does too.
        """
        delay = attempts.delay_after(error)
        with self._waits_lock:
            self._waits.add(stopped)
        try:
            if self._closing.is_set():  # before the wait was known to close()
                stopped.set()
            if not stopped.wait(delay):
                return
        finally:
            with self._waits_lock:
                self._waits.discard(stopped)
        raise closed_in_wait(error) from error
