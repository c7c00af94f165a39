# SPDX-License-Identifier: Apache-2.0
"""Reformer's attention with shared queries and keys; each round has 2*bits buckets.

Index letters as in parts.py.
"""

import math

import torch

from . import parts
from .parts import HIDDEN, SELF, Inner, KeyValueState, attend, attend_in_blocks


class Attention(Inner):
    compiles = False
    eval_batch = 32

    def __init__(self, attention, config):
        super().__init__(attention, config)
        self.register_buffer(
            "planes", torch.zeros(attention.rounds, attention.bits, config.d_head))

    def initialise(self, normal):
        normal(self.planes, 1.0)

    def forward(self, q, v):
        a = self.attention
        return lsh_attention(q, v, self.planes, a.chunk_size, a.mask_self, a.combine, a.scale)


def read_off(own):
    """The keys and d_head that a checkpoint's own tensors tell."""
    rounds, bits, d_head = own["planes"].shape
    return {"rounds": rounds, "bits": bits}, d_head


class State(KeyValueState):
    """And of each position and round its bucket and how many came before it there."""

    def __init__(self, inner, batch, heads, length, d, device):
        super().__init__(inner, batch, heads, length, d, device)
        attention = inner.attention
        self.a, self.planes = attention, inner.planes
        rounds = attention.rounds
        self.bucket = torch.zeros(rounds, batch, heads, length, dtype=torch.int64, device=device)
        self.own = torch.zeros_like(self.bucket)
        self.count = torch.zeros(rounds, batch, heads, 2 * attention.bits, dtype=torch.int64,
                                 device=device)

    def step(self, q, v, t):
        k = q / q.norm(dim=-1, keepdim=True)
        bucket = hash_buckets(q.unsqueeze(2), self.planes)  # [R, B, H, 1]
        self.k[:, :, t], self.v[:, :, t] = k, v
        self.bucket[..., t:t + 1] = bucket
        self.own[..., t:t + 1] = self.count.gather(-1, bucket)
        self.count.scatter_add_(-1, bucket, torch.ones_like(bucket))

        smaller = self.count.cumsum(-1) - self.count
        rank = smaller.gather(-1, self.bucket[..., :t + 1]) + self.own[..., :t + 1]
        chunk = torch.div(rank, self.a.chunk_size, rounding_mode="floor")
        behind = chunk[..., t:t + 1] - chunk  # [R, B, H, t + 1]
        scores = (self.k[:, :, :t + 1] * q.unsqueeze(2)).sum(-1) * self.scale
        scores = scores.masked_fill((behind < 0) | (behind > 1), HIDDEN)  # [R, B, H, t + 1]
        if self.a.mask_self:
            scores[..., t] += SELF
        values = self.v[:, :, :t + 1]
        rounds = torch.matmul(torch.softmax(scores, -1).unsqueeze(-2), values).squeeze(-2)
        if self.a.combine == "mean":
            return rounds.mean(0)
        weight = torch.softmax(torch.logsumexp(scores, -1, keepdim=True), 0)
        return (rounds * weight).sum(0)


@torch.no_grad()
def hash_buckets(q, planes):
    """Buckets of all rounds: q [B, H, N, D], planes [R, bits, D] -> int64 [R, B, H, N].

    argmax of [kR, -kR], first maximum; scaling q to unit length would not change it. In float32
    without autocast (TF32 where a GPU trains in bfloat16): a hash is a comparison, and rounding
    moves positions between buckets.
    """
    with torch.autocast(q.device.type, enabled=False):
        projected = torch.einsum("bhnd,rkd->rbhnk", q.float(), planes.float())
        return torch.cat([projected, -projected], -1).argmax(-1)


class LshOrder:
    """The view of the streaming computation of one round's buckets [B, H, N].

    A position t sorts positions 0..t by (bucket, position) and sees its own chunk of the sorted
    sequence and the one before. The rank of s in that sort is the number of u <= t in a smaller
    bucket plus the number of u < s in the same bucket; the second term does not depend on t.
    """

    @torch.no_grad()
    def __init__(self, bucket, n_buckets, chunk_size):
        self._bucket, self._chunk_size = bucket, chunk_size
        one_hot = (bucket.unsqueeze(-1) == torch.arange(n_buckets, device=bucket.device)).int()
        counts = one_hot.cumsum(2, dtype=torch.int32)  # [B, H, t, b]: u <= t in bucket b
        # [B, H, s]: u < s, same bucket
        self._own = counts.gather(-1, bucket.unsqueeze(-1)).squeeze(-1) - 1
        # [B, H, t, b]: u <= t in b' < b
        self._smaller = counts.cumsum(-1, dtype=torch.int32) - counts

    @torch.no_grad()
    def visible(self, first=0, end=None):
        """The keys that positions first to end - 1 see: bool [B, H, end - first, end]."""
        end = end or self._bucket.shape[-1]
        bucket, own = self._bucket[:, :, :end], self._own[:, :, :end]
        smaller = self._smaller[:, :, first:end]
        rank = smaller.gather(-1, bucket.unsqueeze(2).expand(-1, -1, end - first, -1))
        rank += own.unsqueeze(2)
        # s = t: the first rank of its chunk
        query = (smaller.gather(-1, bucket[:, :, first:].unsqueeze(-1)).squeeze(-1)
                 + own[:, :, first:])
        start = (query - query % self._chunk_size).unsqueeze(-1)
        position = torch.arange(end, device=bucket.device)
        past = position <= position[first:].unsqueeze(1)
        return ((rank >= start - self._chunk_size) & (rank < start + self._chunk_size)).logical_and_(
            past)


@torch.no_grad()
def lsh_bias(bucket, n_buckets, chunk_size, mask_self, dtype):
    """Additive scores of one round: bucket [B, H, N] -> [B, H, t, s]."""
    visible = LshOrder(bucket, n_buckets, chunk_size).visible()
    n = bucket.shape[-1]
    position = torch.arange(n, device=bucket.device)
    own = (position.unsqueeze(0) == position.unsqueeze(1)) & mask_self
    shown = torch.where(own, SELF, 0.0)
    return torch.where(visible, shown, HIDDEN).to(dtype)


def lsh_attention(q, v, planes, chunk_size, mask_self=True, combine="mean", scale=None):
    """LSH attention with shared queries and keys, streaming pattern: [B, H, N, D] -> the same.

    The gradient reaches q both as the query and, through q / |q|, as the key; the choice of
    buckets has none.
    """
    scale = scale or 1 / math.sqrt(q.shape[-1])
    q32 = q.float()
    k = (q32 / q32.norm(dim=-1, keepdim=True).clamp_min(1e-12)).to(v.dtype)
    q = q.to(v.dtype)
    buckets = hash_buckets(q, planes)
    rounds, n_buckets = planes.shape[0], 2 * planes.shape[1]
    if combine == "logsumexp":
        return _lsh_logsumexp(q, k, v, buckets, n_buckets, chunk_size, mask_self, scale)
    if not parts.HAS_SDPA:
        orders = [LshOrder(bucket, n_buckets, chunk_size).visible for bucket in buckets.unbind(0)]
        return attend_in_blocks(q, k, v, scale, orders, mask_self)
    total = 0.0
    for bucket in buckets.unbind(0):
        bias = lsh_bias(bucket, n_buckets, chunk_size, mask_self, v.dtype)
        total = total + attend(q, k, v, scale, bias)
    return total / rounds


def _lsh_logsumexp(q, k, v, buckets, n_buckets, chunk_size, mask_self, scale):
    """Rounds weighted by their share of the softmax's normaliser (Reformer, eq. 6)."""
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scale
    outs, weights = [], []
    for bucket in buckets.unbind(0):
        s = scores + lsh_bias(bucket, n_buckets, chunk_size, mask_self, torch.float32)
        outs.append(torch.matmul(torch.softmax(s, -1).to(v.dtype), v).float())
        weights.append(torch.logsumexp(s, -1))
    weight = torch.softmax(torch.stack(weights), 0).unsqueeze(-1)  # [R, B, H, N, 1]
    return (torch.stack(outs) * weight).sum(0).to(v.dtype)
