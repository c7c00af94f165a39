# SPDX-License-Identifier: Apache-2.0
"""Efficient attention (Shen et al. 2018), causal: softmax(q) over channels times S / Z.

S and Z are sums of exp(k) v^T and exp(k), so that each channel's keys are a softmax over positions
0..t. The weights of all positions sum to 1. Index letters as in parts.py.
"""

import torch

from .log_space import LogSums, log_linear_attention
from .parts import Inner


class Attention(Inner):
    samples_cheaply = True

    def forward(self, q, k, v):
        return efficient_attention(q, k, v)


class State:
    """The sums with a logarithm of k itself: m, Z [B, H, D], S [B, H, D, D] in float32."""

    def __init__(self, inner, batch, heads, length, d, device):
        self.sums = LogSums(batch, heads, d, d, device)

    def step(self, q, k, v, t):
        sums = self.sums
        sums.add(k, v)
        rho = torch.softmax(q, -1) / sums.z
        return torch.matmul(rho.unsqueeze(-2), sums.s).squeeze(-2)


def efficient_attention(q, k, v):
    """[B, H, N, D] -> the same.

    The weight of s at t is sum_c softmax(q_t)_c exp(k_sc) / sum_{u<=t} exp(k_uc): linear attention in
    log space, whose denominator is 1.
    """
    q, k = q.float(), k.float()
    return log_linear_attention(torch.log_softmax(q, -1) - torch.logcumsumexp(k, 2), k, v, eps=0.0)
