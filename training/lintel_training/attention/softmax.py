# SPDX-License-Identifier: Apache-2.0
"""Softmax attention: softmax(q.k * scale); `scale` None is 1/sqrt(d_head)."""

import math

from . import parts
from .parts import Inner, KeyValueState, attend, attend_in_blocks


class Attention(Inner):
    def forward(self, q, k, v):
        return softmax_attention(q, k, v, self.attention.scale)


State = KeyValueState


def softmax_attention(q, k, v, scale=None):
    """Causal softmax attention (paper, eq. 2): [B, H, N, D] -> [B, H, N, D]."""
    scale = scale or 1 / math.sqrt(q.shape[-1])
    return attend(q, k, v, scale) if parts.HAS_SDPA else attend_in_blocks(q, k, v, scale)
