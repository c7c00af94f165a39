# SPDX-License-Identifier: Apache-2.0
"""Linformer (Wang et al. 2020), causal: keys and values mixed into `rank` slots by learned projections.

`prefix`: slots over all positions so far (Peng et al. 2021, "ABC"). `blocks`: slots of each complete
block, beside the own block seen exactly (after Transformer-LS, Zhu et al. 2021). Index letters as in
parts.py, and K slots, U positions of a block.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import parts
from .parts import HIDDEN, Inner


class Attention(Inner):
    def __init__(self, attention, config):
        super().__init__(attention, config)
        length = attention.block_size if attention.mode == "blocks" else config.max_length
        shape = (config.n_heads if attention.per_head else 1, attention.rank, length)
        self.proj_k = nn.Parameter(torch.zeros(shape))
        if not attention.share_key_value:
            self.proj_v = nn.Parameter(torch.zeros(shape))

    @staticmethod
    def contradiction(attention, config):
        if attention.mode == "prefix":
            if not config.max_length:
                return "mode is 'prefix', which needs a max_length above 0"
            if attention.block_size is not None:
                return f"block_size is {attention.block_size}, which is for mode blocks only"
        elif attention.block_size is None:
            return "block_size is missing, mode blocks needs it"
        return None

    def initialise(self, normal):
        """Slot m begins as the mean of the m-th part of the positions, with some noise."""
        for tensor in self.parameters():
            _, rank, length = tensor.shape
            normal(tensor, 0.1 / math.sqrt(length))
            part = torch.arange(length) * rank // length
            own = (part == torch.arange(rank).unsqueeze(1)).float()
            tensor += own / own.sum(1, keepdim=True).clamp_min(1)

    def projections(self):
        return self.proj_k, self.proj_k if self.attention.share_key_value else self.proj_v

    def forward(self, q, k, v):
        a = self.attention
        q = q * (a.scale or 1 / math.sqrt(q.shape[-1]))
        if a.mode == "prefix":
            return prefix_attention(q, k, v, *self.projections())
        return block_attention(q, k, v, *self.projections())


def prefix_attention(q, k, v, proj_k, proj_v):
    """q (scaled), k, v [B, H, N, D], proj_k, proj_v [1 or H, K, length] -> [B, H, N, D].

    The score of slot m at t is sum_{s<=t} proj_k[m, s] q_t.k_s, and its value likewise a sum over s <= t.
    """
    n, outs = q.shape[2], []
    proj_k, proj_v = (F.pad(p, (0, max(0, n - p.shape[-1]))) for p in (proj_k, proj_v))  # for padding
    for a in range(0, n, parts.BLOCK):
        b = min(a + parts.BLOCK, n)
        scores = torch.matmul(q[:, :, a:b], k[:, :, :b].transpose(-1, -2)).tril(a)
        slots = torch.softmax(torch.matmul(scores, proj_k[..., :b].transpose(-1, -2)), -1)
        weights = torch.matmul(slots, proj_v[..., :b].to(slots.dtype)).tril(a)
        outs.append(torch.matmul(weights.to(v.dtype), v[:, :, :b]))
    return torch.cat(outs, 2)


def block_attention(q, k, v, proj_k, proj_v):
    """The same for proj_k, proj_v [1 or H, K, U]: a softmax over slots of earlier blocks and the own block."""
    batch, heads, n, d = q.shape
    size, rank = min(proj_k.shape[-1], n), proj_k.shape[-2]
    pad = -n % size
    q, k, v = (F.pad(x, (0, 0, 0, pad)).view(batch, heads, -1, size, d) for x in (q, k, v))
    blocks = q.shape[2]
    slots_k, slots_v = (torch.matmul(p[..., :size].unsqueeze(1), x).flatten(2, 3)
                        for p, x in ((proj_k, k), (proj_v, v)))  # [B, H, blocks * K, D]

    own = torch.matmul(q, k.transpose(-1, -2))  # [B, H, blocks, U, U]
    own = own.masked_fill(torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1), HIDDEN)
    far = torch.matmul(q.flatten(2, 3), slots_k.transpose(-1, -2)).view(
        batch, heads, blocks, size, blocks * rank)
    block = torch.arange(blocks, device=q.device)
    hidden = block.repeat_interleave(rank) >= block.unsqueeze(1)  # [blocks, blocks * K]
    far = far.masked_fill(hidden.unsqueeze(1), HIDDEN)

    far, own = torch.softmax(torch.cat([far, own], -1), -1).split([blocks * rank, size], -1)
    out = torch.matmul(far.flatten(2, 3), slots_v).view_as(v) + torch.matmul(own, v)
    return out.flatten(2, 3)[:, :, :n].to(v.dtype)


class State:
    """Slots of keys and values [B, H, slots, D]; with blocks also the own block's positions."""

    def __init__(self, inner, batch, heads, length, d, device):
        a = inner.attention
        self.scale, self.is_prefix = a.scale or 1 / math.sqrt(d), a.mode == "prefix"
        self.size, self.proj = a.block_size, inner.projections()
        slots = a.rank if self.is_prefix else 0
        self.slots = [torch.zeros(batch, heads, slots, d, device=device) for _ in "kv"]
        self.block = [torch.zeros(batch, heads, 0, d, device=device) for _ in "kv"]

    def step(self, q, k, v, t):
        new = [x.unsqueeze(2) for x in (k, v)]
        if self.is_prefix:
            for slots, proj, x in zip(self.slots, self.proj, new):
                slots += proj[..., t:t + 1] * x
            keys, values = self.slots
        else:
            if self.block[0].shape[2] == self.size:  # complete, and the next one begins
                self.slots = [torch.cat([slots, torch.matmul(proj, block)], 2)
                              for slots, proj, block in zip(self.slots, self.proj, self.block)]
                self.block = [block[:, :, :0] for block in self.block]
            self.block = [torch.cat(pair, 2) for pair in zip(self.block, new)]
            keys, values = (torch.cat(pair, 2) for pair in zip(self.slots, self.block))
        weights = torch.softmax((keys * q.unsqueeze(2)).sum(-1) * self.scale, -1)
        return torch.matmul(weights.unsqueeze(2), values).squeeze(2)
