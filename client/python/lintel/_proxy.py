# SPDX-License-Identifier: Apache-2.0
"""Whether calls go through an HTTP proxy: only where one is named, and never on this machine."""

from __future__ import annotations

import re
from typing import Any, Optional


def check(proxy: Optional[str]) -> None:
    """ValueError unless it is HOST:PORT, with or without USER:PASSWORD@ before it."""
    if proxy is not None and not re.fullmatch(r"([^@/\s]+@)?(\[[0-9A-Fa-f:.]+\]|[^:@/\s]+):\d+", proxy):
        raise ValueError(f"proxy: expected [USER:PASSWORD@]HOST:PORT, not {_without_user(proxy)!r}")


def options(proxy: Optional[str], address_is_local: bool) -> list[tuple[str, Any]]:
    """Of the channel. Without them gRPC obeys http_proxy and its kin, on loopback, too."""
    if proxy is None or address_is_local:
        return [("grpc.enable_http_proxy", 0)]
    return [("grpc.enable_http_proxy", 1), ("grpc.http_proxy", "http://" + proxy)]


def _without_user(proxy: str) -> str:
    return proxy.rpartition("@")[2]
