# SPDX-License-Identifier: Apache-2.0
"""Linear attention over features that are given as logarithms, however large they are.

Index letters as in parts.py, and C features, G positions in a group, N/G groups.
"""

import torch
import torch.nn.functional as F

from .parts import HIDDEN

GROUP = 8
# -log of the largest factor that eps is multiplied with, so that it stays finite.
MAX_EPS_EXPONENT = 80.0


def log_linear_attention(a, b, v, eps, group=GROUP):
    """Causal linear attention with phi(q) = exp(a), phi(k) = exp(b): a, b [B, H, N, C], v [B, H, N, D].

        out_t = sum_{s<=t} w_ts v_s / (sum_{s<=t} w_ts + eps),  w_ts = sum_c exp(a_tc + b_sc)

    Every number is divided by exp(g_t), g_t about the largest log w of row t, before it is taken out
    of the logarithm. For keys of earlier groups w is a product with running sums Z, S, kept relative to
    the largest b of each feature so far; inside a group, whose later positions must not set that maximum,
    w is a logsumexp over features for each pair. No position computes with one after it.
    """
    n, dtype = v.shape[2], v.dtype
    pad = -n % group
    a, b, v = (F.pad(x, (0, 0, 0, pad)) if pad else x for x in (a.float(), b.float(), v))
    a, b, v = (x.reshape(*x.shape[:2], -1, group, x.shape[-1]) for x in (a, b, v))

    future = torch.ones(group, group, dtype=torch.bool, device=v.device).triu(1)
    inside = torch.logsumexp(a.unsqueeze(4) + b.unsqueeze(3), -1)  # [B, H, N/G, t, s]
    inside = inside.masked_fill(future, HIDDEN)
    m, z, s = _sums_before_groups(b, v)
    earlier = a + m.unsqueeze(3)  # [B, H, N/G, G, C]
    g = torch.maximum(inside.amax(-1), earlier.amax(-1)).detach().unsqueeze(-1)
    inside, earlier = torch.exp(inside - g), torch.exp(earlier - g)

    numerator = torch.matmul(inside.to(dtype), v).float() + torch.matmul(
        earlier.to(dtype), s.to(dtype)).float()
    denominator = inside.sum(-1) + (earlier * z.unsqueeze(3)).sum(-1)
    if eps:
        denominator = denominator + eps * torch.exp((-g.squeeze(-1)).clamp(max=MAX_EPS_EXPONENT))
    out = (numerator / denominator.unsqueeze(-1)).to(dtype)
    return out.flatten(2, 3)[:, :, :n]


def _sums_before_groups(b, v):
    """The state as each group begins: b [B, H, N/G, G, C], v [B, H, N/G, G, D] -> m, Z [B, H, N/G, C]
    and S [B, H, N/G, C, D], where Z = sum exp(b - m), S = sum exp(b - m) v^T over all earlier positions
    and m is the largest b of them. m has no gradient: it cancels.
    """
    top = b.detach().amax(3)
    own = torch.exp(b - top.unsqueeze(3))
    z_own, s_own = own.sum(3), torch.matmul(own.transpose(-1, -2).to(v.dtype), v).float()
    m, z, s = torch.full_like(top[:, :, 0], HIDDEN), z_own[:, :, 0] * 0, s_own[:, :, 0] * 0
    states = [(m, z, s)]
    # unbind(): the gradient of an index would be a whole tensor for each group.
    for top_i, z_i, s_i in list(zip(*(x.unbind(2) for x in (top, z_own, s_own))))[:-1]:
        larger = torch.maximum(m, top_i)
        old, new = torch.exp(m - larger), torch.exp(top_i - larger)
        z = z * old + z_i * new
        s = s * old.unsqueeze(-1) + s_i * new.unsqueeze(-1)
        m = larger
        states.append((m, z, s))
    return [torch.stack(parts, 2) for parts in zip(*states)]


class LogSums:
    """m, Z [B, H, C] and S [B, H, C, D] of the positions so far, as above; float32."""

    def __init__(self, batch, heads, c, d, device):
        self.m = torch.zeros(batch, heads, c, device=device)
        self.z = torch.zeros(batch, heads, c, device=device)  # 0: no position yet
        self.s = torch.zeros(batch, heads, c, d, device=device)

    def add(self, b, v):
        """b [B, H, C], v [B, H, D]."""
        m = torch.where(self.z == 0, b, torch.maximum(self.m, b))
        old = torch.where(self.z == 0, torch.zeros_like(m), torch.exp(self.m - m))
        new = torch.exp(b - m)
        self.m, self.z = m, self.z * old + new
        self.s = self.s * old.unsqueeze(-1) + new.unsqueeze(-1) * v.unsqueeze(-2)

    def read(self, a, eps):
        """The output of a query: a [B, H, C] -> [B, H, D]."""
        g = a + self.m
        top = g.amax(-1, keepdim=True)
        w = torch.exp(g - top)
        denominator = (w * self.z).sum(-1, keepdim=True) + eps * torch.exp(
            (-top).clamp(max=MAX_EPS_EXPONENT))
        return torch.matmul(w.unsqueeze(-2), self.s).squeeze(-2) / denominator
