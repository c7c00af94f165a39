"""The way to a server: plain text, TLS or mutual TLS; what every call sends along."""

from __future__ import annotations

import ipaddress
import os
import uuid
from dataclasses import dataclass
from typing import Any, Optional, Union

import grpc

from lintel import _proxy
from lintel._version import __version__

Path = Union[str, "os.PathLike[str]"]

OPTIONS: list[tuple[str, Any]] = [
    # A chunk with the N best of many values can pass gRPC's 4 MB; the server bounds what it sends.
    ("grpc.max_receive_message_length", -1),
    # A retry has to find the connection being tried again, too.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.primary_user_agent", "lintel-python/" + __version__),
]


@dataclass(frozen=True)
class Connection:
    """Where a client calls and as whom. ValueError for what makes no sense together."""

    address: str  # HOST:PORT or unix:PATH
    tls: bool
    tls_ca: Optional[Path]
    tls_cert: Optional[Path]
    tls_key: Optional[Path]
    token: Optional[str]
    proxy: Optional[str] = None  # see _proxy

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("a client certificate and its key belong together")
        _proxy.check(self.proxy)
        if self.token is None:
            return
        # A file that holds a token ends with a newline, which is no part of it.
        object.__setattr__(self, "token", self.token.strip())
        if not self.token or not all(" " < c <= "~" for c in self.token):
            raise ValueError("the token is empty, holds a space or is not ASCII")
        if not self.encrypted and not is_local(self.address):
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

    def options(self) -> list[tuple[str, Any]]:
        """Of the channel."""
        return [*OPTIONS, *_proxy.options(self.proxy, is_local(self.address))]

    def metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        metadata = (("x-request-id", request_id),)
        if self.token is None:
            return metadata
        return (*metadata, ("authorization", "Bearer " + self.token))


def new_request_id() -> str:
    return uuid.uuid4().hex


def is_local(address: str) -> bool:
    """Whether an address does not leave this machine. Names but localhost are taken to leave it."""
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
