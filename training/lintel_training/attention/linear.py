"""Linear attention: phi(q)^T S / (phi(q)^T Z + eps), phi = elu + 1 (paper, section 3.2).

Index letters as in parts.py.
"""

import torch
import torch.nn.functional as F

from .parts import Inner


class Attention(Inner):
    samples_cheaply = True

    def forward(self, q, k, v):
        return linear_attention(q, k, v, self.attention.eps)


class State:
    """S [B, H, D, D], Z [B, H, D] in float32."""

    def __init__(self, inner, batch, heads, length, d, device):
        self.eps = inner.attention.eps
        self.s = torch.zeros(batch, heads, d, d, device=device)
        self.z = torch.zeros(batch, heads, d, device=device)

    def step(self, q, k, v, t):
        """q, k, v [B, H, D] of position t -> [B, H, D]."""
        q, k = feature_map(q), feature_map(k)
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


def feature_map(x):
    """phi(x) = elu(x) + 1, in float32 (paper, eq. 7).

    Where x < 0 that is exp(x), and computed so: elu(x) is near -1 there, and adding 1 leaves noise
    of 6e-8 in what may be 1e-9. Trained features are that small, and it cost 0.006 bits/dim on some
    images.
    """
    x = x.float()
    above = F.relu(x)
    return torch.exp(x - above) + above  # a where() would cost a CPU a tenth of the training time


def before_chunk(sums):
    """Sums over all earlier chunks, from sums of each: [B, H, N/C, ...] -> the same shape.

    Shifted, not the inclusive sum minus the chunk's own: features of a trained model span many
    orders of magnitude, and where a chunk adds 1 to what was 1e-9 the difference is noise.
    """
    earlier = torch.cumsum(sums[:, :, :-1], 2)
    return torch.cat([torch.zeros_like(sums[:, :, :1]), earlier], 2)


def linear_attention(q, k, v, eps=1e-6, chunk=None):
    """Causal linear attention (paper, eq. 8 to 12): [B, H, N, D] -> [B, H, N, D].

        out_t = phi(q_t)^T S_t / (phi(q_t)^T Z_t + eps),  S_t = sum_{s<=t} phi(k_s) v_s^T,
                                                          Z_t = sum_{s<=t} phi(k_s)

    The sums are split at chunk borders: inside a chunk a masked product, and for all earlier
    chunks the state S, Z as it was when the chunk began. That is O(N C) instead of O(N) memory
    but uses matrix products. S, Z and the denominator are float32 whatever v is, since they are
    sums of hundreds of positive terms.
    """
    batch, heads, n, d = v.shape
    c = chunk or choose_chunk(n)
    pad = -n % c
    dtype = v.dtype
    q, k = feature_map(q), feature_map(k)
    if pad:  # later positions: nothing that is kept sees them
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    q, k, v = (x.reshape(batch, heads, -1, c, x.shape[-1]) for x in (q, k, v))  # [B, H, N/C, C, D]

    z_chunk = k.sum(3)  # [B, H, N/C, D], float32
    z = before_chunk(z_chunk)
    q16, k16 = q.to(dtype), k.to(dtype)
    s_chunk = torch.matmul(k16.transpose(-1, -2), v).float()  # [B, H, N/C, D, D]
    s = before_chunk(s_chunk)

    scores = torch.matmul(q16, k16.transpose(-1, -2)).tril()  # [B, H, N/C, C, C]
    numerator = torch.matmul(scores, v).float() + torch.matmul(q16, s.to(dtype)).float()
    denominator = scores.float().sum(-1) + (q * z.unsqueeze(3)).sum(-1)
    out = (numerator / (denominator + eps).unsqueeze(-1)).to(dtype)
    return out.reshape(batch, heads, n + pad, d)[:, :, :n]
