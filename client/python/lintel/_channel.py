# SPDX-License-Identifier: Apache-2.0
"""The way to a server: plain text, TLS or mutual TLS; what every call sends along."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import uuid
from dataclasses import dataclass
from typing import Any, Optional, Union

import grpc

from lintel import _servers
from lintel._version import __version__

Path = Union[str, "os.PathLike[str]"]

OPTIONS: list[tuple[str, Any]] = [
    # A chunk with the N best of many tokens can pass gRPC's 4 MB; the server bounds what it sends.
    ("grpc.max_receive_message_length", -1),
    # A retry needs a connection that is tried again as often, and gRPC's own pauses reach two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.primary_user_agent", "lintel-python/" + __version__),
]


# A client with other servers notices when one is gone without a word.
_WITH_OTHERS: list[tuple[str, Any]] = [
    ("grpc.min_reconnect_backoff_ms", 3000),  # for a connection, too
    ("grpc.keepalive_time_ms", 15_000),  # servers take one in 10 s
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
]


@dataclass(frozen=True)
class Connection:
    """The address of a client's calls, and its identity. ValueError for contradictory options."""

    address: str  # HOST:PORT or unix:PATH, or several with commas between them
    tls: bool
    tls_ca: Optional[Path]
    tls_cert: Optional[Path]
    tls_key: Optional[Path]
    token: Optional[str]
    proxy: Optional[str] = None  # HOST:PORT, with or without USER:PASSWORD@ before it

    @property
    def addresses(self) -> list[str]:
        return _servers.split(self.address)

    def __post_init__(self) -> None:
        self.addresses  # refuses what makes no sense now
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("a client certificate and its key belong together")
        _check_proxy(self.proxy)
        if self.token is None:
            return
        # A file that holds a token ends with a newline, which is no part of it.
        object.__setattr__(self, "token", self.token.strip())
        if not self.token or not all(" " < c <= "~" for c in self.token):
            raise ValueError("the token is empty, holds a space or is not ASCII")
        if not self.encrypted and not all(map(is_local, self.addresses)):
            way = "" if self.proxy is None else " through a proxy"
            raise ValueError(
                f"the token would go to {self.address}{way} in plain text: use TLS (tls_ca)"
            )

    @property
    def encrypted(self) -> bool:
        return self.tls or self.tls_ca is not None or self.tls_cert is not None

    def credentials(self) -> Optional[grpc.ChannelCredentials]:
        """None: plain text. OSError for a file that cannot be read."""
        if not self.encrypted:
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.tls_ca),
            private_key=_read(self.tls_key),
            certificate_chain=_read(self.tls_cert),
        )

    def options(self, address: str, name: str) -> list[tuple[str, Any]]:
        """Options of a channel to one of the addresses; name: whose it is, "": its own."""
        options = [*OPTIONS, *_proxy_options(self.proxy, is_local(address))]
        if name:
            options.append(("grpc.default_authority", name))  # its certificate has the name
        if name or len(self.addresses) > 1:
            options += _WITH_OTHERS
        return options

    def metadata(self, request_id: str, session_id: str = "") -> tuple[tuple[str, str], ...]:
        """session_id: that the call is about; "": none."""
        metadata: tuple[tuple[str, str], ...] = (("x-request-id", request_id),)
        if session_id:
            metadata = (*metadata, ("lintel-affinity", affinity_key(session_id)))
        if self.token is None:
            return metadata
        return (*metadata, ("authorization", "Bearer " + self.token))


def affinity_key(session_id: str) -> str:
    """The key by which a balancer finds where a session is in memory: Session.affinity_key."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:16]


def new_request_id() -> str:
    return uuid.uuid4().hex


def is_local(address: str) -> bool:
    """True if an address does not leave this machine. Names but localhost are taken to leave it."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read(path: Optional[Path]) -> Optional[bytes]:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


def _check_proxy(proxy: Optional[str]) -> None:
    if proxy is not None and not re.fullmatch(r"([^@/\s]+@)?(\[[0-9A-Fa-f:.]+\]|[^:@/\s]+):\d+", proxy):
        without_user = proxy.rpartition("@")[2]
        raise ValueError(f"proxy: expected [USER:PASSWORD@]HOST:PORT, not {without_user!r}")


def _proxy_options(proxy: Optional[str], address_is_local: bool) -> list[tuple[str, Any]]:
    """Options of the channel, which goes through a proxy only where one is named, and never on this machine.
    Without them gRPC obeys http_proxy and its kin, on loopback, too.
    """
    if proxy is None or address_is_local:
        return [("grpc.enable_http_proxy", 0)]
    return [("grpc.enable_http_proxy", 1), ("grpc.http_proxy", "http://" + proxy)]
