"""The three kinds of causal attention, parallel over the sequence.

Index letters: B sequences, H heads, N positions, D width of a query, key or value, R hash rounds,
C positions in a chunk. All inputs are [B, H, N, D].
"""

import math

import torch
import torch.nn.functional as F

# Stands for "not visible". Finite: a kernel that first meets a whole block of hidden keys then still
# computes exp(0), which is forgotten as soon as a visible key comes, where -inf would give NaN.
HIDDEN = -1e30
# Score of a query's own position: weight only when nothing else is visible.
SELF = -1e9
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")
BLOCK = 112  # a seventh of an image's 784 positions


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
    of functions (a, b) -> bool [B, H, b - a, b], the keys that queries a..b-1 see besides being
    causal; the outputs of all are averaged. mask_self: a query's own key has weight only when it sees
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


def softmax_attention(q, k, v, scale=None):
    """Causal softmax attention (paper, eq. 2): [B, H, N, D] -> [B, H, N, D]."""
    scale = scale or 1 / math.sqrt(q.shape[-1])
    return attend(q, k, v, scale) if HAS_SDPA else attend_in_blocks(q, k, v, scale)


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
    """What the streaming computation sees of one round's buckets [B, H, N].

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
        """Which keys positions first to end - 1 see: bool [B, H, end - first, end]."""
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
    if not HAS_SDPA:
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
