# SPDX-License-Identifier: Apache-2.0
"""Client of a Lintel server, which serves linear transformers over gRPC.

    import lintel

    with lintel.Client("127.0.0.1:50051") as client:
        for token in client.generate("Once upon", max_new_tokens=100):
            print(token.token)

    with lintel.Client() as client:
        print(client.chat("What is a linear transformer?").answer().content)

Client calls from threads, AsyncClient from asyncio; they have the same methods.
"""

try:
    import lintel.v1.generation_pb2  # noqa: F401
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("lintel."):
        raise
    raise ImportError(
        "lintel's protobuf code is missing: install the package, or run client/python/generate.py"
    ) from None

from lintel._request import Values
from lintel._version import __version__
from lintel.aio import AsyncClient
from lintel.aio_chat import AsyncChatStream, AsyncResponseStream
from lintel.aio_generation import AsyncGeneration
from lintel.aio_session import AsyncSession
from lintel.chat import ChatStream, ResponseStream
from lintel.chat_results import (
    Answer,
    CallDelta,
    ChatDelta,
    ChatFinishReason,
    ContentToken,
    Rendered,
    Response,
    ResponseEvent,
    ToolCall,
    Usage,
)
from lintel.client import Client
from lintel.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    FieldViolation,
    Internal,
    InvalidArgument,
    LintelError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ResourceProblem,
    Unauthenticated,
    Unavailable,
)
from lintel.generation import Generation
from lintel.results import (
    Adapter,
    Durability,
    FinishReason,
    HistoryRun,
    ImageShape,
    InterruptedCall,
    Model,
    NamedState,
    Sample,
    SampleResult,
    Score,
    SessionInfo,
    Source,
    Timings,
    Token,
    TopValue,
)
from lintel.retry import RetryPolicy
from lintel.session import Session

__all__ = [
    "Aborted",
    "Adapter",
    "Answer",
    "AsyncChatStream",
    "AsyncClient",
    "AsyncGeneration",
    "AsyncResponseStream",
    "AsyncSession",
    "CallDelta",
    "Cancelled",
    "ChatDelta",
    "ChatFinishReason",
    "ChatStream",
    "Client",
    "ContentToken",
    "DeadlineExceeded",
    "Durability",
    "FailedPrecondition",
    "FieldViolation",
    "FinishReason",
    "Generation",
    "HistoryRun",
    "ImageShape",
    "Internal",
    "InterruptedCall",
    "InvalidArgument",
    "LintelError",
    "Model",
    "NamedState",
    "NotFound",
    "PermissionDenied",
    "Rendered",
    "ResourceExhausted",
    "ResourceProblem",
    "Response",
    "ResponseEvent",
    "ResponseStream",
    "RetryPolicy",
    "Sample",
    "SampleResult",
    "Score",
    "Session",
    "SessionInfo",
    "Source",
    "Timings",
    "Token",
    "ToolCall",
    "TopValue",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "Values",
    "__version__",
]
