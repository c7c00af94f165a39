# SPDX-License-Identifier: Apache-2.0
"""What Client and AsyncClient have in common: the arguments they are made of, and generate()."""

from __future__ import annotations

from typing import Generic, Optional, TypeVar

from lintel import _channel, _request
from lintel._calls import CallsBase
from lintel._streaming import GenerationBase
from lintel.retry import Attempts, RetryPolicy
from lintel.v1 import generation_pb2 as pb

CallsT = TypeVar("CallsT", bound=CallsBase)
GenerationT = TypeVar("GenerationT", bound=GenerationBase)


class ClientBase(_request.Generates[GenerationT], Generic[CallsT, GenerationT]):
    """Calls one server."""

    _calls_type: type[CallsT]  # of each kind of client

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
        self._calls: CallsT = self._calls_type(connection, retry, timeout)

    def _start_generation(
        self, request: pb.GenerateRequest, timeout: Optional[float]
    ) -> GenerationT:
        return self._begin(request, self._calls.attempts(timeout))

    def _begin(self, request: pb.GenerateRequest, attempts: Attempts) -> GenerationT:
        raise NotImplementedError
