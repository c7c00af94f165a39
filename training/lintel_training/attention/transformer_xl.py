# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL (Dai et al. 2019): segments that see a memory behind them, and relative positions.

Index letters as in parts.py, and L positions of a segment, M of the memory.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .parts import HIDDEN, Inner, KeyValueState


class Attention(Inner):
    def __init__(self, attention, config):
        super().__init__(attention, config)
        self.d_model, shape = config.d_model, (config.n_heads, config.d_head)
        self.r_net = nn.Linear(config.d_model, config.n_heads * config.d_head, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(shape))
        self.r_r_bias = nn.Parameter(torch.zeros(shape))

    @staticmethod
    def contradiction(attention, config):
        if config.d_model % 2:
            return f"d_model is {config.d_model}, must be even"
        return None

    def initialise(self, normal):
        normal(self.r_net.weight, 0.02)  # as the authors do; the biases begin at 0
        self.r_w_bias.zero_()
        self.r_r_bias.zero_()

    def relative(self, count):
        """r of distances 0 to count - 1: [H, count, D]."""
        distance = torch.arange(count, device=self.r_w_bias.device)
        if self.attention.clamp_length is not None:
            distance = distance.clamp(max=self.attention.clamp_length)
        i = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=distance.device)
        angle = distance.double().unsqueeze(1) * torch.exp(i * (-math.log(10000.0) / self.d_model))
        waves = torch.cat([angle.sin(), angle.cos()], -1).float()  # halves, not interleaved
        heads, d = self.r_w_bias.shape
        return self.r_net(waves).view(count, heads, d).transpose(0, 1)

    def forward(self, q, k, v):
        """All segments at once, each with the M + L keys that its positions can see."""
        n = q.shape[2]
        length = min(self.attention.segment_length, n)
        memory = min(self.attention.memory_length, n)
        scale = self.attention.scale or 1 / math.sqrt(q.shape[-1])
        pad = -n % length
        q = F.pad(q * scale, (0, 0, 0, pad)).unflatten(2, (-1, length))  # [B, H, segments, L, D]
        k, v = (F.pad(x, (0, 0, memory, pad)).unfold(2, memory + length, length).transpose(-1, -2)
                for x in (k, v))  # [B, H, segments, M + L, D]

        content = torch.matmul(q + scale * _per_head(self.r_w_bias), k.transpose(-1, -2))
        r = self.relative(memory + length).flip(1).unsqueeze(1)  # of distance M + L - 1 to 0
        position = torch.matmul(q + scale * _per_head(self.r_r_bias), r.transpose(-1, -2))
        scores = content + shift_to_keys(position)
        weights = torch.softmax(scores.masked_fill(
            ~visible(scores.shape[2], length, memory, q.device), HIDDEN), -1)
        return torch.matmul(weights.to(v.dtype), v).flatten(2, 3)[:, :, :n]


def _per_head(bias):
    return bias.view(bias.shape[0], 1, 1, -1)  # [H, 1, 1, D]


def shift_to_keys(scores):
    """Scores by distance to scores by key: [..., L, W] -> the same, row i moved left by L - 1 - i.

    Column p of a row is of distance W - 1 - p; key j of a segment is W - L + i - j behind its query i.
    What is moved in from the next row lies in the future. (Transformer-XL, appendix B)
    """
    length, width = scores.shape[-2:]
    padded = F.pad(scores, (1, 0)).reshape(*scores.shape[:-2], width + 1, length)
    return padded[..., 1:, :].reshape(scores.shape)


def visible(segments, length, memory, device):
    """bool [segments, L, M + L]: keys up to the query, and none before the sequence began."""
    j = torch.arange(memory + length, device=device)
    i = torch.arange(length, device=device).unsqueeze(1)
    first = memory - length * torch.arange(segments, device=device).view(-1, 1, 1)
    return (j <= memory + i) & (j >= first)


class State(KeyValueState):
    """And r of all distances that are seen."""

    def __init__(self, inner, batch, heads, length, d, device):
        super().__init__(inner, batch, heads, length, d, device)
        self.a = a = inner.attention
        self.content, self.position = inner.r_w_bias, inner.r_r_bias
        self.r = inner.relative(min(length, a.memory_length + a.segment_length))

    def step(self, q, k, v, t):
        self.k[:, :, t], self.v[:, :, t] = k, v
        first = max(0, t // self.a.segment_length * self.a.segment_length - self.a.memory_length)
        keys, values = self.k[:, :, first:t + 1], self.v[:, :, first:t + 1]
        r = self.r[:, :t + 1 - first].flip(1)  # of each key's distance
        scores = (keys * (q + self.content).unsqueeze(2)).sum(-1) + (
            r * (q + self.position).unsqueeze(2)).sum(-1)
        weights = torch.softmax(scores * self.scale, -1)
        return torch.matmul(weights.unsqueeze(2), values).squeeze(2)
