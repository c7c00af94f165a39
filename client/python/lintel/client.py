# SPDX-License-Identifier: Apache-2.0
"""Client: calls a Lintel server from threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterable, Optional, TypeVar, Union

from lintel import _chat_request, _channel, _collect, _image, _request
from lintel import _foreign_pb2 as foreign
from lintel._calls import Calls, CallsBase, blocking, run
from lintel._request import Values
from lintel.chat import ChatStream, ChatStreamBase, ResponseStream, ResponseStreamBase, to_body
from lintel.chat_results import Rendered, Response, read_response
from lintel.generation import Generation, GenerationBase
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
from lintel.retry import RetryPolicy
from lintel.session import Session
from lintel.v1 import chat_pb2
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import model_pb2, response_pb2, session_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GenerationT = TypeVar("GenerationT", bound=GenerationBase)
NewSessionT = TypeVar("NewSessionT")
ChatT = TypeVar("ChatT", bound=ChatStreamBase)
ResponseT = TypeVar("ResponseT", bound=ResponseStreamBase)


class ClientBase(
    _request.Generates[GenerationT],
    _chat_request.Chats[ChatT, ResponseT],
    Generic[GenerationT, NewSessionT, ChatT, ResponseT],
):
    """Common parts of Client and AsyncClient."""

    _calls_type: type[CallsBase]
    _chat_type: type[ChatT]
    _response_type: type[ResponseT]

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
        connection = _channel.Connection(address, tls, tls_ca, tls_cert, tls_key, token, proxy)
        self._calls = self._calls_type(connection, retry, timeout)

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> GenerationT:
        attempts = self._calls.attempts(timeout)
        return self._generation_type._begin(self._calls, request, attempts)

    def _start_chat(self, members: dict[str, Any], schema: Any, timeout: Optional[float]) -> ChatT:
        return self._chat_type._begin(self._calls, members, schema, self._calls.attempts(timeout))

    def _start_response(
        self,
        members: dict[str, Any],
        schema: Any,
        idempotency_key: str,
        timeout: Optional[float],
    ) -> ResponseT:
        attempts = self._calls.attempts(timeout)
        return self._response_type._begin(self._calls, members, schema, idempotency_key, attempts)

    def replay_response(
        self, id: str, *, starting_after: Optional[int] = None, timeout: Optional[float] = None
    ) -> ResponseT:
        """The events of a stored response once more: iterate over what this returns, or take its response().
        A response that is not in the background is waited for; events of one that is come as they are made.

        starting_after: events up to this `sequence_number` are left out.
        """
        request = response_pb2.ReplayResponseRequest(id=id, starting_after=starting_after)
        calls = self._calls
        stream = calls.stream(calls.stubs.replay_response, request, calls.attempts(timeout))
        return self._response_type(stream, None, False)

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
    ) -> NewSessionT:
        """Makes a session: state on the server that lives between calls.

            with client.session() as session: ...  # asyncio: async with

        deletes it at the end of the block. Or keep it, and come back with attach_session(id):

            session = client.session()  # asyncio: await client.session()

        initial_state: a named state to begin with: see Session.save_state.
        checkpoint_every, checkpoints: a state is kept every so many tokens, of those at most so many,
            so that rewinding and forking re-read little.
        history_tokens: tokens that can be gone back to; 0: the server's choice.
        window: having read so many tokens the state is reset and re-reads the last half; 0: never. None: the
            initial state's, or what the model was trained on, where that is known.
        durability: what of it outlives the server; None: the server's default, INPUT where it has a
            store. Calls on such a session survive a crash of the server: see RetryPolicy.
        expire_after: seconds after which such a session is removed when unused; None: the server's
            choice.
        """
        request = session_pb2.CreateSessionRequest(
            model=model,
            max_tokens=max_tokens,
            adapter=adapter,
            initial_state=initial_state,
            history_tokens=history_tokens,
            window=window,
            durability=_request.durability_to_wire(durability),
        )
        if expire_after is not None:
            request.expire_after.FromNanoseconds(round(expire_after * 1e9))
        if checkpoint_every or checkpoints:
            request.checkpoints.every_tokens = checkpoint_every
            request.checkpoints.keep = checkpoints
        return self._new_session(request, timeout)

    def _new_session(
        self, request: session_pb2.CreateSessionRequest, timeout: Optional[float]
    ) -> NewSessionT:
        raise NotImplementedError

    async def _model(self, name: str, timeout: Optional[float]) -> Model:
        calls, request = self._calls, model_pb2.GetModelRequest(name=name)
        return read_model(await calls.unary(calls.stubs.get_model, request, calls.attempts(timeout)))

    async def _pages(
        self, method: Callable[..., Any], request: Any, timeout: Optional[float]
    ) -> list[Any]:
        """Every page of a list."""
        attempts = self._calls.attempts(timeout)
        pages: list[Any] = []
        while True:
            pages.append(await self._calls.unary(method, request, attempts))
            if not pages[-1].next_page_token:
                return pages
            request.page_token = pages[-1].next_page_token

    async def _restored_id(
        self,
        snapshot: _request.Bytes,
        model: str,
        verify: bool,
        accept_other_numerics: bool,
        durability: Optional[Durability],
        timeout: Optional[float],
    ) -> str:
        messages = _request.restore_request(
            snapshot, model, verify, accept_other_numerics, durability
        )
        calls, attempts = self._calls, self._calls.attempts(timeout)
        attempts.changes_session = True

        def restore(messages: list[Any], **options: Any) -> Any:  # as often as it is sent
            return calls.stubs.restore_session(iter(messages), **options)

        return calls.note(await calls.unary(restore, messages, attempts)).id


class Client(ClientBase[Generation, Session, ChatStream, ResponseStream]):
    """Calls one server, or one of several with the same sessions.

        with lintel.Client("127.0.0.1:50051") as client:
            for token in client.generate("Once upon", max_new_tokens=100):
                print(token.text, end="", flush=True)

    Every call has a timeout; what does not end with OK raises LintelError. Does not connect before
    the first call. Any number of threads may call. ValueError for options that make no sense
    together, OSError for a file that cannot be read.

    address: HOST:PORT or unix:PATH; or several with commas between them, of which the first that answers
        is called, and another one when it does so no more. A name with several addresses stands for all.
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

    _calls_type = Calls
    _generation_type = Generation
    _chat_type = ChatStream
    _response_type = ResponseStream

    @blocking
    async def close(self) -> None:
        """Ends every call that runs, and the connection."""
        await self._calls.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _new_session(
        self, request: session_pb2.CreateSessionRequest, timeout: Optional[float]
    ) -> Session:
        id = run(self._calls.create_session(request, self._calls.attempts(timeout)))
        return Session(self._calls, id)

    @blocking
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
        """Draws the pixels where `mask` is true; the others stay as they are. Each is drawn given the
        pixels before it, row by row: known ones after it influence it only with particles.

        image: uint8 [height, width] or [height, width, channels]; mask: bool, of the image's shape
        or [height, width]. particles: as generate()'s. Returns an image, or [num_samples, ...] where
        a number is given.
        ValueError for an image that is not of the model's shape. Warns of dark on light where the
        model has one channel: those of MNIST were trained on light digits on black.
        """
        plan = _image.Completion(image, mask)
        if plan.nothing_hidden:
            return plan.result(None, num_samples)
        served = await self._model(model, timeout)
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
        return plan.result(await generation._samples(), num_samples)

    @blocking
    async def score(
        self,
        sequences: Iterable[Values],
        *,
        model: str = "",
        adapter: str = "",
        add_special: Optional[bool] = None,
        parse_special: bool = False,
        timeout: Optional[float] = None,
    ) -> list[Score]:
        """The probabilities of given sequences' tokens, in their order.

        sequences: several of what generate() takes as a prompt. A 2-D array of integers is a
            sequence a row, a uint8 array [n, height, width] or [n, height, width, channels] an
            image each. A uint8 array [height, width] is a single image: TypeError; write
            score([image]) or score(image[np.newaxis]).
        add_special, parse_special: of texts, as generate()'s; add_special None: true. Scores of texts
            have their tokens and the bytes of each.
        """
        calls = self._calls
        request = _request.score_request(model, adapter, sequences, add_special, parse_special)
        stream = calls.stream(calls.stubs.score, request, calls.attempts(timeout))
        collector = _collect.ScoreCollector(len(request.sequences), stream.request_id)
        await stream.read_all(collector.take)
        return collector.scores()

    @blocking
    async def render_chat(
        self, messages: _chat_request.Messages, *, timeout: Optional[float] = None, **options: Any
    ) -> Rendered:
        """The prompt that a chat() with these messages and options becomes. Nothing is generated."""
        members = _chat_request.Members().chat(messages, **options)
        calls, request = self._calls, chat_pb2.RenderChatRequest(body=to_body(members))
        wire = await calls.unary(calls.stubs.render_chat, request, calls.attempts(timeout))
        return Rendered(
            wire.text,
            tuple(wire.ids),
            wire.turn_boundary,
            wire.before_generation_prompt,
            wire.model,
        )

    @blocking
    async def get_response(self, id: str, *, timeout: Optional[float] = None) -> Response:
        """A stored response, also one that failed or still runs."""
        calls, request = self._calls, response_pb2.GetResponseRequest(id=id)
        wire = await calls.unary(calls.stubs.get_response, request, calls.attempts(timeout))
        return read_response(wire.body)

    @blocking
    async def cancel_response(self, id: str, *, timeout: Optional[float] = None) -> Response:
        """Ends a response that runs with its next token. It keeps what it had until then."""
        calls, request = self._calls, response_pb2.CancelResponseRequest(id=id)
        wire = await calls.unary(calls.stubs.cancel_response, request, calls.attempts(timeout))
        return read_response(wire.body)

    @blocking
    async def delete_response(self, id: str, *, timeout: Optional[float] = None) -> None:
        """Hides a response at once. It goes when no other continues it."""
        calls, request = self._calls, response_pb2.DeleteResponseRequest(id=id)
        await calls.unary(calls.stubs.delete_response, request, calls.attempts(timeout))

    @blocking
    async def list_input_items(
        self, id: str, *, ascending: bool = False, timeout: Optional[float] = None
    ) -> list[dict[str, Any]]:
        """The items of a stored response's input, every page: the newest first, or the oldest."""
        calls, attempts = self._calls, self._calls.attempts(timeout)
        request = response_pb2.ListInputItemsRequest(id=id, limit=100, ascending=ascending)
        items: list[dict[str, Any]] = []
        while True:
            wire = await calls.unary(calls.stubs.list_input_items, request, attempts)
            page = json.loads(wire.body)
            items += page["data"]
            if not page["has_more"]:
                return items
            request.after_id = page["last_id"]

    @blocking
    async def count_input_tokens(
        self, input: _chat_request.Messages, *, timeout: Optional[float] = None, **options: Any
    ) -> int:
        """The tokens of the prompt that a respond() with this input and options has. Nothing is generated."""
        members = _chat_request.Members().respond(input, **options)
        calls, request = self._calls, response_pb2.CountInputTokensRequest(body=to_body(members))
        wire = await calls.unary(calls.stubs.count_input_tokens, request, calls.attempts(timeout))
        return int(wire.input_tokens)

    @blocking
    async def compact_response(
        self,
        input: _chat_request.Messages = (),
        *,
        model: str,
        previous_response_id: Union[str, Response, None] = None,
        timeout: Optional[float] = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """A conversation as one sealed item, which the input of the next respond() begins with: a list of it.
        The conversation is `input` after that of `previous_response_id`. Nothing is generated or stored.
        """
        members = _chat_request.Members().respond(
            input, model=model, previous_response_id=previous_response_id, **options
        )
        calls, request = self._calls, response_pb2.CompactResponseRequest(body=to_body(members))
        wire = await calls.unary(calls.stubs.compact_response, request, calls.attempts(timeout))
        return list(json.loads(wire.body)["output"])

    def attach_session(self, id: str) -> Session:
        """A session that exists. Nothing is called yet."""
        return Session(self._calls, id)

    @blocking
    async def get_session(self, id: str, *, timeout: Optional[float] = None) -> SessionInfo:
        return read_session(await self._calls.get_session(id, self._calls.attempts(timeout)))

    @blocking
    async def list_sessions(
        self, *, model: str = "", timeout: Optional[float] = None
    ) -> list[SessionInfo]:
        """Every page. `model` empty: sessions of all models."""
        calls = self._calls
        request = session_pb2.ListSessionsRequest(model=model, page_size=1000)
        pages = await self._pages(calls.stubs.list_sessions, request, timeout)
        return [read_session(calls.note(session)) for page in pages for session in page.sessions]

    @blocking
    async def delete_session(self, id: str, *, timeout: Optional[float] = None) -> None:
        """A session in use is Aborted, not deleted."""
        await self._calls.delete_session(id, self._calls.attempts(timeout))

    @blocking
    async def restore_session(
        self,
        snapshot: _request.Bytes,
        *,
        model: str = "",
        verify: bool = False,
        accept_other_numerics: bool = False,
        durability: Optional[Durability] = None,
        timeout: Optional[float] = None,
    ) -> Session:
        """A new session out of what Session.snapshot() gave, here or on another server.

        model: that it shall run on; empty: of the snapshot's name.
        verify: the server re-reads its tokens, which have to lead to its state, bit for bit.
        accept_other_numerics: continue also where the server's machine computes other bits.
        durability: as of session().
        """
        id = await self._restored_id(
            snapshot, model, verify, accept_other_numerics, durability, timeout
        )
        return Session(self._calls, id)

    @blocking
    async def states(self, *, model: str = "", timeout: Optional[float] = None) -> list[NamedState]:
        """Named states to begin with, one's own and public ones. `model` empty: of all models."""
        request = session_pb2.ListStatesRequest(model=model, page_size=1000)
        pages = await self._pages(self._calls.stubs.list_states, request, timeout)
        return [read_state(state) for page in pages for state in page.states]

    @blocking
    async def delete_state(
        self, name: str, *, public: bool = False, timeout: Optional[float] = None
    ) -> None:
        request = session_pb2.DeleteStateRequest(name=name, is_public=public)
        calls = self._calls
        await calls.unary(calls.stubs.delete_state, request, calls.attempts(timeout))

    @blocking
    async def models(self, *, timeout: Optional[float] = None) -> list[Model]:
        calls, request = self._calls, model_pb2.ListModelsRequest()
        response = await calls.unary(calls.stubs.list_models, request, calls.attempts(timeout))
        return [read_model(model) for model in response.models]

    @blocking
    async def model(self, name: str = "", *, timeout: Optional[float] = None) -> Model:
        """`name` may be empty when one model is loaded."""
        return await self._model(name, timeout)

    @blocking
    async def tokenize(
        self,
        text: Union[str, bytes],
        *,
        model: str = "",
        add_special: bool = False,
        parse_special: bool = False,
        timeout: Optional[float] = None,
    ) -> list[int]:
        """A text as token ids, of models with a tokenizer.

        add_special: with the tokens that the model wants before and after a text, as <s>.
        parse_special: special tokens spelt out in the text become their ids.
        """
        request = model_pb2.TokenizeRequest(
            model=model,
            text=text.encode() if isinstance(text, str) else text,
            add_special=add_special,
            parse_special=parse_special,
        )
        calls = self._calls
        response = await calls.unary(calls.stubs.tokenize, request, calls.attempts(timeout))
        return list(response.ids)

    @blocking
    async def detokenize(
        self, ids: Iterable[int], *, model: str = "", timeout: Optional[float] = None
    ) -> str:
        """Token ids as text. Special tokens add nothing; what is no UTF-8 is U+FFFD."""
        request = model_pb2.DetokenizeRequest(model=model, ids=_request.to_wire(ids).tokens.ids)
        calls = self._calls
        response = await calls.unary(calls.stubs.detokenize, request, calls.attempts(timeout))
        return str(response.text)

    @blocking
    async def serving(self, service: str = "", *, timeout: Optional[float] = None) -> bool:
        """Health. `service` empty: the server as a whole. An unknown service is NotFound."""
        calls, request = self._calls, foreign.HealthCheckRequest(service=service)
        response = await calls.unary(calls.stubs.check_health, request, calls.attempts(timeout))
        return bool(response.status == foreign.HealthCheckResponse.SERVING)
