# SPDX-License-Identifier: Apache-2.0
"""Parts common to several kinds of attention, parallel over the sequence.

Index letters: B sequences, H heads, N positions, D width of a query, key or value, R hash rounds,
C positions in a chunk. All inputs are [B, H, N, D].
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

# Stands for "not visible". Finite: a kernel that first meets a whole block of hidden keys then still
# computes exp(0), which is forgotten as soon as a visible key comes, where -inf would give NaN.
HIDDEN = -1e30
# Score of a query's own position: weight only when nothing else is visible.
SELF = -1e9
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")
BLOCK = 112  # a seventh of an image's 784 positions


class Inner(nn.Module):
    """One layer's attention between its projections; holds the kind's own tensors.

    A kind's module has a class `Attention`, which is one of these, and `State`, which computes the same one
    position at a time. Both get the projections that the kind reads, in the order of kinds.json.
    """

    compiles = True  # True: torch.compile is worth its time for validation, too
    eval_batch = 128  # sequences of an evaluation's forward pass
    samples_cheaply = False  # True: the state is small enough to draw samples while training

    def __init__(self, attention, config):
        """attention: of config.py, with the keys of the kind as attributes."""
        super().__init__()
        self.attention = attention

    @staticmethod
    def widths(attention, config, names):
        """Widths of the projections of these names."""
        return [config.n_heads * config.d_head] * len(names)

    @staticmethod
    def unused_keys(attention):
        """Keys that mean nothing beside the others: config.json is written without them."""
        return ()

    @staticmethod
    def contradiction(attention, config):
        """The contradiction in the kind's keys, or with the model; None where there is none."""

    def initialise(self, normal):
        """Fills the own tensors; normal(tensor, std) draws."""

    def forward(self, *inputs):
        """[B, H, N, D] each -> [B, H, N, D]."""
        raise NotImplementedError


def attend(q, k, v, scale, bias=None):
    """softmax(q.k * scale + bias) v; causal when there is no bias, [B, H, N, N]. For PyTorch 2."""
    factor = scale * math.sqrt(q.shape[-1])  # the function itself divides by sqrt(D)
    if abs(factor - 1) > 1e-9:
        q = q * factor
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))


def attend_in_blocks(q, k, v, scale, visible_of=None, mask_self=False):
    """The same without PyTorch 2: BLOCK queries at a time, with the keys up to the last of them.

    Half the work of whole matrices, and what is computed stays in a CPU's cache. visible_of: a list
    of functions (a, b) -> bool [B, H, b - a, b], or what broadcasts to it, the keys that queries
    a..b-1 see besides being causal; the outputs of all are averaged. mask_self: a query's own key has weight only when it sees
    nothing else.
    """
    n, outs = q.shape[2], []
    for a in range(0, n, BLOCK):
        b = min(a + BLOCK, n)
        scores = torch.matmul(q[:, :, a:b], k[:, :, :b].transpose(-1, -2)).mul_(scale)
        square = torch.ones(b - a, b - a, dtype=torch.bool, device=q.device)
        own = scores[..., a:]
        own.masked_fill_(square.triu(1), HIDDEN)
        if mask_self:
            own.masked_fill_(torch.eye(b - a, dtype=torch.bool, device=q.device), SELF)
        if visible_of is None:
            outs.append(torch.matmul(torch.softmax(scores, -1), v[:, :, :b]))
            continue
        rounds = [torch.softmax(scores.masked_fill(~visible(a, b), HIDDEN), -1)
                  for visible in visible_of]
        outs.append(torch.matmul(sum(rounds[1:], rounds[0]) / len(rounds), v[:, :, :b]))
    return torch.cat(outs, 2)


class KeyValueState:
    """Keys and values of all positions, [B, H, length, D], of which a step reads what it sees."""

    def __init__(self, inner, batch, heads, length, d, device):
        self.inner, self.scale = inner, inner.attention.scale or 1 / math.sqrt(d)
        self.k, self.v = (torch.zeros(batch, heads, length, d, device=device) for _ in "kv")

    def hidden(self, t):
        """The positions that t does not see: bool [t + 1] or [H, t + 1]; None where it sees all."""
        return None

    def step(self, q, k, v, t):
        """q, k, v [B, H, D] of position t -> [B, H, D]."""
        self.k[:, :, t], self.v[:, :, t] = k, v
        scores = (self.k[:, :, :t + 1] * q.unsqueeze(2)).sum(-1) * self.scale
        hidden = self.hidden(t)
        if hidden is not None:
            scores = scores.masked_fill(hidden, HIDDEN)
        weights = torch.softmax(scores, -1)
        return torch.matmul(weights.unsqueeze(2), self.v[:, :, :t + 1]).squeeze(2)
