"""Incremental decoding: the same model as a recurrent network (paper, section 3.4).

The state of linear attention is S, Z of constant size; softmax and LSH attention keep what they
have seen. Plain and readable, for samples during training and as a check of the parallel form.
"""

import math

import torch

from .attention import HIDDEN, SELF, feature_map, hash_buckets


class _LinearState:
    """S [B, H, D, D], Z [B, H, D] in float32."""

    def __init__(self, attention, planes, batch, heads, length, d, device):
        self.eps = attention.eps
        self.s = torch.zeros(batch, heads, d, d, device=device)
        self.z = torch.zeros(batch, heads, d, device=device)

    def step(self, q, k, v, t):
        """q, k, v [B, H, D] of position t -> [B, H, D]."""
        q, k = feature_map(q), feature_map(k)
        self.s += k.unsqueeze(-1) * v.unsqueeze(-2)
        self.z += k
        numerator = torch.matmul(q.unsqueeze(-2), self.s).squeeze(-2)
        return numerator / ((q * self.z).sum(-1, keepdim=True) + self.eps)


class _SoftmaxState:
    """Keys and values of all positions, [B, H, length, D]."""

    def __init__(self, attention, planes, batch, heads, length, d, device):
        self.scale = attention.scale or 1 / math.sqrt(d)
        self.k = torch.zeros(batch, heads, length, d, device=device)
        self.v = torch.zeros(batch, heads, length, d, device=device)

    def step(self, q, k, v, t):
        self.k[:, :, t], self.v[:, :, t] = k, v
        scores = (self.k[:, :, :t + 1] * q.unsqueeze(2)).sum(-1) * self.scale
        weights = torch.softmax(scores, -1)
        return torch.matmul(weights.unsqueeze(2), self.v[:, :, :t + 1]).squeeze(2)


class _LshState:
    """Keys, values, and of each position and round its bucket and how many came before it there."""

    def __init__(self, attention, planes, batch, heads, length, d, device):
        self.a, self.planes = attention, planes
        self.scale = attention.scale or 1 / math.sqrt(d)
        rounds = attention.rounds
        self.k = torch.zeros(batch, heads, length, d, device=device)
        self.v = torch.zeros(batch, heads, length, d, device=device)
        self.bucket = torch.zeros(rounds, batch, heads, length, dtype=torch.int64, device=device)
        self.own = torch.zeros_like(self.bucket)
        self.count = torch.zeros(rounds, batch, heads, 2 * attention.bits, dtype=torch.int64,
                                 device=device)

    def step(self, q, k, v, t):
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


_STATES = {"linear": _LinearState, "softmax": _SoftmaxState, "lsh": _LshState}


class Session:
    """A batch of sequences being decoded; `length` bounds the tokens that can be fed."""

    def __init__(self, model, batch, length):
        self.model, self.position = model, 0
        config = model.config
        device = model.predictor.weight.device
        self.states = []
        for layer, attention in zip(model.transformer.layers, config.attention):
            planes = getattr(layer.attention.inner_attention, "planes", None)
            self.states.append(_STATES[attention.type](
                attention, planes, batch, config.n_heads, length, config.d_head, device))

    @torch.no_grad()
    def step(self, tokens):
        """Feeds one token to each sequence: int64 [B] -> head outputs [B, O]."""
        model, t = self.model, self.position
        offsets = torch.full((len(tokens),), t, dtype=torch.int64, device=tokens.device)
        x = model.embed(tokens.unsqueeze(1), offsets)

        for layer, state in zip(model.transformer.layers, self.states):
            def attention(y, projections=layer.attention, state=state):
                q, k, v = projections.project(y)
                q, k, v = (None if p is None else p.squeeze(2) for p in (q, k, v))
                return projections.merge(state.step(q, k, v, t).unsqueeze(2))
            x = layer.forward(x, attention)  # not the compiled form, if there is one
        if model.transformer.norm is not None:
            x = model.transformer.norm(x)
        self.position += 1
        return model.predictor(x).squeeze(1)
