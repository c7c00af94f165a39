# SPDX-License-Identifier: Apache-2.0
"""Softmax attention: softmax(q.k * scale); `scale` None is 1/sqrt(d_head)."""

import math

import torch

from . import parts
from .parts import Inner, attend, attend_in_blocks


class Attention(Inner):
    def forward(self, q, k, v):
        return softmax_attention(q, k, v, self.attention.scale)


class State:
    """Keys and values of all positions, [B, H, length, D]."""

    def __init__(self, inner, batch, heads, length, d, device):
        self.scale = inner.attention.scale or 1 / math.sqrt(d)
        self.k = torch.zeros(batch, heads, length, d, device=device)
        self.v = torch.zeros(batch, heads, length, d, device=device)

    def step(self, q, k, v, t):
        self.k[:, :, t], self.v[:, :, t] = k, v
        scores = (self.k[:, :, :t + 1] * q.unsqueeze(2)).sum(-1) * self.scale
        weights = torch.softmax(scores, -1)
        return torch.matmul(weights.unsqueeze(2), self.v[:, :, :t + 1]).squeeze(2)


def softmax_attention(q, k, v, scale=None):
    """Causal softmax attention (paper, eq. 2): [B, H, N, D] -> [B, H, N, D]."""
    scale = scale or 1 / math.sqrt(q.shape[-1])
    return attend(q, k, v, scale) if parts.HAS_SDPA else attend_in_blocks(q, k, v, scale)
