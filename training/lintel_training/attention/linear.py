# SPDX-License-Identifier: Apache-2.0
"""Linear attention: phi(q)^T S / (phi(q)^T Z + eps), phi one of feature_maps.py.

Index letters as in parts.py, and C features (in linear_attention() C is the length of a chunk).
"""

import torch
import torch.nn.functional as F
from torch import nn

from . import KINDS, feature_maps
from .feature_maps import LOG_SPACE, elu_plus_one
from .log_space import LogSums, log_linear_attention
from .parts import Inner


class Attention(Inner):
    samples_cheaply = True

    def __init__(self, attention, config):
        super().__init__(attention, config)
        if attention.features is not None:
            self.feature_map = nn.Module()  # for the tensor's name
            self.feature_map.register_buffer(
                "omega", torch.zeros(config.d_head, attention.features))

    @staticmethod
    def unused_keys(attention):
        return feature_maps.unused_keys(attention.feature_map)

    @staticmethod
    def contradiction(attention, config):
        return feature_maps.contradiction(attention, KINDS["linear"]["keys"], config)

    def initialise(self, normal):
        if self.attention.features is not None:
            feature_maps.draw_orthogonal(self.feature_map.omega, normal)

    def phi(self, x):
        omega = None if self.attention.features is None else self.feature_map.omega
        return feature_maps.features(self.attention, x, omega)

    def forward(self, q, k, v):
        a = self.attention
        if a.feature_map in LOG_SPACE:
            return log_linear_attention(self.phi(q), self.phi(k), v, a.eps)
        return linear_attention(q, k, v, a.eps, phi=self.phi)


class State:
    """S [B, H, C, D], Z [B, H, C] in float32, and of maps in log space the maxima."""

    def __init__(self, inner, batch, heads, length, d, device):
        self.phi, self.eps = inner.phi, inner.attention.eps
        c = feature_maps.count(inner.attention, d)
        self.sums = None
        if inner.attention.feature_map in LOG_SPACE:
            self.sums = LogSums(batch, heads, c, d, device)
            return
        self.s = torch.zeros(batch, heads, c, d, device=device)
        self.z = torch.zeros(batch, heads, c, device=device)

    def step(self, q, k, v, t):
        """q, k, v [B, H, D] of position t -> [B, H, D]."""
        q, k = self.phi(q), self.phi(k)
        if self.sums is not None:
            self.sums.add(k, v)
            return self.sums.read(q, self.eps)
        self.s += k.unsqueeze(-1) * v.unsqueeze(-2)
        self.z += k
        numerator = torch.matmul(q.unsqueeze(-2), self.s).squeeze(-2)
        return numerator / ((q * self.z).sum(-1, keepdim=True) + self.eps)


def choose_chunk(n):
    """Chunk length for N positions: the one of a few GPU-friendly sizes that pads least."""
    best = 64
    for size in (56, 48, 32):
        if -n % size < -n % best:
            best = size
    return best


def before_chunk(sums):
    """Sums over all earlier chunks, from sums of each: [B, H, N/C, ...] -> the same shape.

    Shifted, not the inclusive sum minus the chunk's own: features of a trained model span many
    orders of magnitude, and where a chunk adds 1 to what was 1e-9 the difference is noise.
    """
    earlier = torch.cumsum(sums[:, :, :-1], 2)
    return torch.cat([torch.zeros_like(sums[:, :, :1]), earlier], 2)


def linear_attention(q, k, v, eps=1e-6, chunk=None, phi=lambda x: elu_plus_one(x.float())):
    """Causal linear attention (paper, eq. 8 to 12): [B, H, N, D] -> [B, H, N, D].

        out_t = phi(q_t)^T S_t / (phi(q_t)^T Z_t + eps),  S_t = sum_{s<=t} phi(k_s) v_s^T,
                                                          Z_t = sum_{s<=t} phi(k_s)

    The sums are split at chunk borders: inside a chunk a masked product, and for all earlier
    chunks the state S, Z as it was when the chunk began. That is O(N C) instead of O(N) memory
    but uses matrix products. S, Z and the denominator are float32 for every v, since they are
    sums of hundreds of positive terms.
    """
    batch, heads, n, d = v.shape
    c = chunk or choose_chunk(n)
    pad = -n % c
    dtype = v.dtype
    if pad:  # later positions: nothing that is kept sees them
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    q, k = phi(q), phi(k)
    q, k, v = (x.reshape(batch, heads, -1, c, x.shape[-1]) for x in (q, k, v))  # [B, H, N/C, C, .]

    z_chunk = k.sum(3)  # [B, H, N/C, features], float32
    z = before_chunk(z_chunk)
    q16, k16 = q.to(dtype), k.to(dtype)
    s_chunk = torch.matmul(k16.transpose(-1, -2), v).float()  # [B, H, N/C, features, D]
    s = before_chunk(s_chunk)

    scores = torch.matmul(q16, k16.transpose(-1, -2)).tril()  # [B, H, N/C, C, C]
    numerator = torch.matmul(scores, v).float() + torch.matmul(q16, s.to(dtype)).float()
    denominator = scores.float().sum(-1) + (q * z.unsqueeze(3)).sum(-1)
    out = (numerator / (denominator + eps).unsqueeze(-1)).to(dtype)
    return out.reshape(batch, heads, n + pad, d)[:, :, :n]
