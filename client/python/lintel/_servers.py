# SPDX-License-Identifier: Apache-2.0
"""The servers that a client may call, each of which will do, and the one that it calls."""

from __future__ import annotations

import re
import socket
import threading
from typing import Any, Callable

from lintel import _foreign_pb2 as foreign
from lintel.v1 import (
    chat_pb2_grpc,
    generation_pb2_grpc,
    model_pb2_grpc,
    response_pb2_grpc,
    session_pb2_grpc,
)


class Stubs:
    """The methods that clients call, over either kind of channel."""

    def __init__(self, channel: Any) -> None:
        generation: Any = generation_pb2_grpc.GenerationServiceStub(channel)  # type: ignore
        models: Any = model_pb2_grpc.ModelServiceStub(channel)  # type: ignore
        sessions: Any = session_pb2_grpc.SessionServiceStub(channel)  # type: ignore
        chats: Any = chat_pb2_grpc.ChatServiceStub(channel)  # type: ignore
        responses: Any = response_pb2_grpc.ResponseServiceStub(channel)  # type: ignore
        self.generate = generation.Generate
        self.score = generation.Score
        self.list_models = models.List
        self.get_model = models.Get
        self.tokenize = models.Tokenize
        self.detokenize = models.Detokenize
        self.create_session = sessions.Create
        self.get_session = sessions.Get
        self.list_sessions = sessions.List
        self.delete_session = sessions.Delete
        self.fork_session = sessions.Fork
        self.rewind_session = sessions.Rewind
        self.snapshot_session = sessions.Snapshot
        self.restore_session = sessions.Restore
        self.read_history = sessions.ReadHistory
        self.save_state = sessions.SaveState
        self.list_states = sessions.ListStates
        self.delete_state = sessions.DeleteState
        self.render_chat = chats.Render
        self.complete_chat = chats.Complete
        self.create_response = responses.Create
        self.get_response = responses.Get
        self.cancel_response = responses.Cancel
        self.delete_response = responses.Delete
        self.replay_response = responses.Replay
        self.list_input_items = responses.ListInputItems
        self.count_input_tokens = responses.CountInputTokens
        self.compact_response = responses.Compact
        self.check_health = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=foreign.HealthCheckRequest.SerializeToString,
            response_deserializer=foreign.HealthCheckResponse.FromString,
        )


class Server:
    """One of them, over its own channel."""

    def __init__(self, address: str, channel: Any) -> None:
        self.address = address
        self.channel = channel
        self.stubs = Stubs(channel)


class Servers:
    """A client stays with one for as long as that answers, for what its sessions left in that server's
    memory; then it goes to the next. A name stands for one server until that fails; then for each of
    the addresses that it has, and when all of those were gone through for itself again: by then it may
    have others. Threads: any.
    """

    def __init__(self, addresses: list[str], open_channel: Callable[[str, str], Any]) -> None:
        """open_channel: of an address, and the name whose it is ("": its own)."""
        self._open = open_channel
        self._original = [Server(address, open_channel(address, "")) for address in addresses]
        self._opened = list(self._original)  # all that are to be closed
        self._all = list(self._original)
        self._current = 0
        self._lock = threading.Lock()

    @property
    def current(self) -> Server:
        with self._lock:
            return self._all[self._current]

    def __len__(self) -> int:
        with self._lock:
            return len(self._all)

    @property
    def stubs(self) -> Any:
        """Each call uses the server that is current then."""
        return _CurrentStubs(self)

    def leave(self, failed: Server, found: list[str]) -> bool:
        """The one behind `failed` is called from now on, unless another call has gone on already.
        found: addresses_of() its name. Whether there is another one.
        """
        with self._lock:
            if self._all[self._current] is not failed:
                return len(self._all) > 1
            if len(found) > 1:
                several = [Server(one, self._open(one, failed.address)) for one in found]
                self._opened += several
                self._all[self._current : self._current + 1] = several
            else:
                self._current += 1
                if self._current == len(self._all):
                    self._all, self._current = list(self._original), 0
            return len(self._all) > 1

    def channels(self) -> list[Any]:
        with self._lock:
            return [server.channel for server in self._opened]


class _CurrentStubs:
    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return getattr(self._servers.current.stubs, name)(*arguments, **options)

        return call


def split(addresses: str) -> list[str]:
    """ "A:1,B:2": each of them. gRPC's own ways of naming servers have their own commas."""
    if scheme := re.match(r"https?://", addresses):
        what = "" if scheme[0] == "http://" else "; tls_ca or tls=True encrypts"
        raise ValueError(
            f"address {addresses!r}: expected HOST:PORT of gRPC, without {scheme[0]}{what}"
        )
    if "://" in addresses or addresses.startswith(("ipv4:", "ipv6:")):
        return [addresses]
    several = [address.strip() for address in addresses.split(",")]
    if not all(several) or len(set(several)) < len(several):
        raise ValueError(f"addresses {addresses!r}: one is empty, or given twice")
    return several


def addresses_of(address: str) -> list[str]:
    """Every address that a name has; none of what is no name. Waits for the resolver."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or host.startswith(("unix", "[")) or "//" in address:
        return []
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    hosts = [f"[{entry[4][0]}]" if entry[0] == socket.AF_INET6 else entry[4][0] for entry in found]
    return [f"{one}:{port}" for one in dict.fromkeys(hosts) if one != host]
