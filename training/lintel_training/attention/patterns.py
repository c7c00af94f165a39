# SPDX-License-Identifier: Apache-2.0
"""Softmax over a pattern of positions, a function of positions and heads alone.

Index letters as in parts.py.
"""

import math

import torch

from . import parts
from .parts import HIDDEN, Inner, KeyValueState, attend, attend_in_blocks


class PatternAttention(Inner):
    """softmax(q.k * scale) v over the positions that visible() names."""

    def visible(self, t, s):
        """True where queries at t see keys at s: int64 [n, 1] and [1, m] -> bool [n, m] or [H, n, m].

        Only s <= t is asked for; s = t has to be True.
        """
        raise NotImplementedError

    def forward(self, q, k, v):
        n, scale = q.shape[2], self.attention.scale or 1 / math.sqrt(q.shape[-1])
        position = torch.arange(n, device=q.device)

        def visible(first, end):
            return self.visible(position[first:end].unsqueeze(1), position[:end].unsqueeze(0))

        if not parts.HAS_SDPA:
            return attend_in_blocks(q, k, v, scale, [visible])
        seen = visible(0, n) & (position.unsqueeze(0) <= position.unsqueeze(1))
        bias = torch.where(seen, 0.0, HIDDEN)
        return attend(q, k, v, scale, bias.expand(1, *[1] * (3 - bias.dim()), *bias.shape))


class PatternState(KeyValueState):
    """A state of which a step reads the positions that visible() names."""

    def hidden(self, t):
        position = torch.arange(t + 1, device=self.k.device).unsqueeze(0)
        return ~self.inner.visible(position[:, t:], position).squeeze(-2)
