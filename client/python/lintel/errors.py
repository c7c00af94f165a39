# SPDX-License-Identifier: Apache-2.0
"""Errors of calls: status code and the decoded google.rpc details."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import grpc

from lintel import _foreign_pb2 as foreign

if TYPE_CHECKING:
    from lintel.chat_results import Answer
    from lintel.results import Sample


class FieldViolation(NamedTuple):
    """A field of the request the server refused."""

    field: str  # path in the request, e.g. "sampling.top_p" or "given[2].position"
    description: str  # the value and the limit


class ResourceProblem(NamedTuple):
    """A resource that was not found, or could not be used."""

    type: str  # "model" or "session"
    name: str
    description: str


class LintelError(Exception):
    """A call that did not end with OK. Its text is one line for people."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        violations: tuple[FieldViolation, ...] = (),
        resources: tuple[ResourceProblem, ...] = (),
        retry_delay: Optional[float] = None,
        reason: str = "",
        facts: Optional[dict[str, str]] = None,
        request_id: str = "",
        hint: str = "",
        details: str = "",
        unreached: bool = False,
    ) -> None:
        self.code = code
        self.message = message  # the server's words, or plain ones where there was none
        self.details = details or message  # as gRPC has it
        self.unreached = unreached  # no connection came about: the server knows nothing of the call
        self.violations = violations
        self.resources = resources
        self.retry_delay = retry_delay  # seconds after which the same request is worth sending again
        self.reason = reason  # for programs: "CALL_INTERRUPTED", "POSITION_MISMATCH"; empty: none
        self.facts = facts or {}  # details of the reason: {"position": "120"}
        self.request_id = request_id  # by which the server's log knows the call
        self._hint = hint  # of this side, what the reason may be
        # The results of samples() and answers() that came before the call failed.
        self.partial: list[Sample] = []
        self.answers: list[Answer] = []
        super().__init__(self._describe())

    def with_hint(self, hint: str) -> LintelError:
        """This error, which also says what its caller can do."""
        self._hint = hint
        self.args = (self._describe(),)
        return self

    def _describe(self) -> str:
        text = str(self.code.name)
        if self.message:
            text += ": " + self.message
        # Servers often repeat the details in the message; say each thing once.
        for violation in self.violations:
            if violation.description not in text:
                text += f"; {violation.field}: {violation.description}"
            elif violation.field not in text:
                text += "; " + violation.field
        for resource in self.resources:
            if resource.name and not _has_word(text, resource.name):
                text += f"; {resource.type} {resource.name}"
        if self.retry_delay is not None:
            text += f"; try again in {self.retry_delay * 1000:.0f} ms"
        if self._hint:
            text += "; " + self._hint
        if self.request_id:
            text += f" [request {self.request_id}]"
        return text


def _has_word(text: str, name: str) -> bool:
    """True if a text has a name, not as a part of another word."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


class Cancelled(LintelError):
    """The call was cancelled, here or by the server."""


class InvalidArgument(LintelError):
    """The request cannot be served as it is: see `violations`."""


class DeadlineExceeded(LintelError):
    """The call's timeout passed."""


class NotFound(LintelError):
    """There is no such model or session: see `resources`."""


class PermissionDenied(LintelError):
    """The token lacks a role."""


class Unauthenticated(LintelError):
    """A token is needed, or the one sent is not known."""


class ResourceExhausted(LintelError):
    """A queue is full, memory or a quota used up; `retry_delay` says when to try again."""


class FailedPrecondition(LintelError):
    """The session or model is in no state for this request."""


class Aborted(LintelError):
    """The session is in use by another call."""


class Unavailable(LintelError):
    """The server cannot be reached, or takes nothing new."""


class Internal(LintelError):
    """The server failed, or answered what makes no sense."""


_CLASSES: dict[grpc.StatusCode, type[LintelError]] = {
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.INTERNAL: Internal,
}


# Codes that gRPC also sets by itself, while the server may not know yet that the call is over.
LOCAL_ENDINGS = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
)

# Codes of a server that is gone, or ends: that cancels the calls that did not end in time. For a call that was
# cancelled here CANCELLED says nothing.
LOST_SERVER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def make_error(code: grpc.StatusCode, message: str, request_id: str, **details: Any) -> LintelError:
    """The error class of `code`."""
    return _CLASSES.get(code, LintelError)(code, message, request_id=request_id, **details)


def closed_in_wait(error: LintelError) -> LintelError:
    """The error of a call that was closed here after `error`, before it was sent again."""
    code = grpc.StatusCode.CANCELLED
    return make_error(code, "the call was closed before it was tried again", error.request_id)


def from_rpc_error(
    error: grpc.RpcError, request_id: str, address: str, encrypted: bool, timeout: float
) -> LintelError:
    """Decodes what gRPC raised; `error` is also a grpc.Call, in either kind of channel, `encrypted`
    or not, to `address`, of a call that had `timeout` seconds.
    """
    details: dict[str, Any] = {}
    trailer = error.trailing_metadata() or ()
    for key, value in trailer:
        if key == "grpc-status-details-bin":
            details = _decode(value)
    text = error.details() or ""
    plain = plain_words(
        error.code(),
        text,
        address=address,
        encrypted=encrypted,
        timeout=timeout,
        by_server=bool(trailer),
    )
    return make_error(
        error.code(),
        plain.message,
        request_id,
        hint=plain.hint,
        details=text,
        unreached=plain.unreached,
        **details,
    )


_NOT_CONNECTED = "failed to connect to all addresses"
_NOT_RESOLVED = "DNS resolution failed"

# Words of gRPC about a connection that broke under a call.
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
    """Puts gRPC's own messages about a failed call into plain words. A server's message stays as it is.

    text: gRPC's. address: that was called. timeout: seconds, the call's. by_server: the status came
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
    """The reason why there is no connection, and a hint at the cause."""
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


def _decode(trailer: bytes) -> dict[str, Any]:
    status = foreign.Status()
    violations: list[FieldViolation] = []
    resources: list[ResourceProblem] = []
    retry_delay: Optional[float] = None
    reason = ""
    facts: dict[str, str] = {}
    try:
        status.ParseFromString(trailer)
        for detail in status.details:
            name = detail.type_url.rpartition("/")[2]
            if name == "google.rpc.BadRequest":
                bad = foreign.BadRequest.FromString(detail.value)
                violations += [FieldViolation(v.field, v.description) for v in bad.field_violations]
            elif name == "google.rpc.RetryInfo":
                delay = foreign.RetryInfo.FromString(detail.value).retry_delay
                retry_delay = delay.seconds + delay.nanos * 1e-9
            elif name == "google.rpc.ErrorInfo":
                error = foreign.ErrorInfo.FromString(detail.value)
                reason, facts = error.reason, dict(error.metadata)
            elif name == "google.rpc.ResourceInfo":
                info = foreign.ResourceInfo.FromString(detail.value)
                resources.append(
                    ResourceProblem(info.resource_type, info.resource_name, info.description)
                )
    except Exception:  # details from an unknown proxy: a status is still a status
        pass
    return {
        "violations": tuple(violations),
        "resources": tuple(resources),
        "retry_delay": retry_delay,
        "reason": reason,
        "facts": facts,
    }
