# SPDX-License-Identifier: Apache-2.0
"""Flags for the whole numbers that kinds of attention declare."""

from .attention import KINDS

# Key -> {type: what it is}.
ATTENTION_FLAGS = {}
for _kind in KINDS.values():
    for _key in _kind["keys"]:
        if _key["type"] in ("integer", "integers"):
            ATTENTION_FLAGS.setdefault(_key["name"], {})[_kind["type"]] = _key["doc"]
