# SPDX-License-Identifier: Apache-2.0
"""What gRPC itself says of a call that failed, in plain words. What a server says stays as it is."""

from __future__ import annotations

import re
from typing import NamedTuple

import grpc

_NOT_CONNECTED = "failed to connect to all addresses"
_NOT_RESOLVED = "DNS resolution failed"

# What gRPC says of a connection that broke under a call.
_LOST = re.compile(
    r"recvmsg|sendmsg|socket closed|connection (reset|aborted)|broken pipe|goaway|rst_stream"
    r"|keepalive|(transport|endpoint|connection) (was )?clos|stream removed|fd shutdown",
    re.IGNORECASE,
)


class Plain(NamedTuple):
    message: str
    hint: str = ""
    unreached: bool = False  # the call never left this machine


def plain_words(
    code: grpc.StatusCode,
    text: str,
    *,
    address: str,
    encrypted: bool,
    timeout: float,
    by_server: bool,
) -> Plain:
    """text: gRPC's. address: that was called. timeout: seconds, the call's. by_server: the status came
    with something that only a server sends.
    """
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        message = text if by_server else "the call took too long"
        return Plain(message, f"the call had a timeout of {timeout:g} s")
    if by_server:
        return Plain(text)
    if code == grpc.StatusCode.CANCELLED and "ancelled by application" in text:
        return Plain("the call was cancelled here")
    if status := re.search(r"http2 header with status: (\d+)", text):
        return Plain(f"what answers at {address} is no gRPC server: HTTP {status[1]}")
    if "http1.x server" in text:
        return Plain(f"what answers at {address} speaks HTTP/1, not gRPC")
    if code != grpc.StatusCode.UNAVAILABLE:
        return Plain(text)
    if _NOT_CONNECTED in text or _NOT_RESOLVED in text:
        reason, hint = _reason(text, encrypted)
        return Plain(f"no server answers at {address}: {reason}", hint, unreached=True)
    return Plain("the connection to the server was lost" if _LOST.search(text) else text)


def _reason(text: str, encrypted: bool) -> tuple[str, str]:
    """Why there is no connection, and what may be wrong."""
    if not encrypted and re.search("socket closed|connection reset", text, re.IGNORECASE):
        # Servers of TLS close a connection in plain text without a word.
        return (
            "it closes the connection",
            "does the server speak TLS? The client was given neither tls_ca nor tls=True",
        )
    if encrypted and "CERTIFICATE_VERIFY_FAILED" in text:
        return "the certificate it shows cannot be trusted", "is tls_ca the authority that signed it?"
    if encrypted and "WRONG_VERSION_NUMBER" in text:
        return "it does not speak TLS", "tls_ca, tls_cert and tls=True are for servers that do"
    if _NOT_RESOLVED in text:
        return "this host name is not known", ""
    # "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to
    # remote host: Connection refused", and its likes of other versions.
    reason = text.partition("last error: ")[2]
    reason = re.sub(r"^[A-Z_]+: ", "", reason)
    reason = re.sub(r"^(ipv4|ipv6|unix):.*?: ", "", reason)
    reason = re.sub(r"^Failed to connect to remote host: ", "", reason)
    reason = re.sub(r"^connect: |\s*\(\d+\)$", "", reason)
    return reason or "no connection", ""
