# SPDX-License-Identifier: Apache-2.0
"""The delta rule with decay, which RWKV-7 and Gated DeltaNet share: step by step, and in chunks.

A head has a state S [K, V], and for each token vectors q, k, b, c [K] and v [V], and a decay d, a
vector [K] or one number:

    S = diag(d) S - b (c^T S) + k v^T,  both S on the right from before;    o = S^T q

In both functions q, k, b, c are [B, H, T, K], v is [B, H, T, V], the logarithm of the decay is
[B, H, T, K] or [B, H, T, 1], and the state is [B, H, K, V]. They return o [B, H, T, V] and the state
after the last token.
"""

import torch
import torch.nn.functional as F

# Tokens in a chunk. A decay that is a vector is divided by the decay since the start of the chunk, so
# (smallest decay)^CHUNK must be a normal float32: RWKV-7's exp(-0.6065 * 32) is 4e-9.
CHUNK = 32


def recurrent(log_decay, q, k, v, c, b, state):
    """One token after the other."""
    decay, outputs = log_decay.exp(), []
    for t in range(q.shape[2]):
        def at(x):
            return x[:, :, t].unsqueeze(-1)
        read = (at(c) * state).sum(2, keepdim=True)  # c^T S: [B, H, 1, V]
        state = at(decay) * state - at(b) * read + at(k) * v[:, :, t].unsqueeze(2)
        outputs.append((at(q) * state).sum(2))
    return torch.stack(outputs, 2), state


def chunked(log_decay, q, k, v, c, b, state):
    """CHUNK tokens at once, as matrix products.

    With P_t the decay from the start of the chunk to token t and u_t = -c_t^T S_{t-1}, the state in
    the chunk is S_t = P_t S_0 + sum over s <= t of (P_t / P_s)(b_s u_s^T + k_s v_s^T). Put into the
    definition of u this is a triangular system of the chunk, whose right side is linear in S_0. So
    each chunk maps S_0 to M S_0 + N, and only that runs from chunk to chunk.
    """
    length = q.shape[2]
    # Padding neither decays the state nor adds to it.
    log_decay, q, k, v, c, b = (_in_chunks(x) for x in (log_decay, q, k, v, c, b))
    after = log_decay.cumsum(-2)
    before, total = after - log_decay, after[..., -1:, :]
    from_state = torch.cat([c * before.exp(), q * after.exp()], -2)  # reads S_0: [2C, K]
    scores = _scores(from_state, torch.cat([c, q], -2), torch.cat([before, after], -2),
                     torch.cat([b, k], -2), torch.cat([after, after], -2))
    c_rows, q_rows = scores.chunk(2, -2)
    c_on_b, c_on_k = c_rows.chunk(2, -1)
    # (I + c_on_b) u = -(C S_0 + c_on_k v), solved for both parts: u = -(w S_0 + u_0).
    right = torch.cat([from_state[..., :CHUNK, :], c_on_k @ v], -1)
    solved = torch.linalg.solve_triangular(c_on_b, right, upper=False, unitriangular=True)
    w, u_0 = solved.split([k.shape[-1], v.shape[-1]], -1)

    to_end = (total - after).exp()
    b_end, k_end = (b * to_end).transpose(-1, -2), (k * to_end).transpose(-1, -2)
    decay = total.exp().transpose(-1, -2)  # [K, 1] or [1, 1]
    m = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) * decay - b_end @ w
    n = k_end @ v - b_end @ u_0
    starts = []
    for m_i, n_i in zip(m.unbind(2), n.unbind(2)):
        starts.append(state)
        state = m_i @ state + n_i
    starts = torch.stack(starts, 2)
    u = -(w @ starts + u_0)
    outputs = from_state[..., CHUNK:, :] @ starts + q_rows @ torch.cat([u, v], -2)
    return outputs.flatten(2, 3)[:, :, :length], state


def rule_for(length):
    """The function to use for so many tokens at once."""
    return recurrent if length == 1 else chunked


def _in_chunks(x):
    """[B, H, T, D] -> [B, H, chunks, CHUNK, D], with zeros after the end."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % CHUNK))
    return x.unflatten(2, (-1, CHUNK))


def _scores(scaled, rows, rows_decay, columns, columns_decay):
    """Reads of a token from those before it: rows [2C, K] of c and q against columns [2C, K] of b and k.

    c meets the tokens before its own, q its own, too. scaled: rows times exp(rows_decay).
    """
    ones = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=rows.device)
    seen = torch.cat([ones.tril(-1), ones.tril()]).repeat(1, 2)
    if rows_decay.shape[-1] == 1:
        # One number for a head can be as small as it likes: the quotient is formed first.
        decay = (rows_decay - columns_decay.transpose(-1, -2)).masked_fill(~seen, -torch.inf).exp()
        return rows @ columns.transpose(-1, -2) * decay
    return (scaled @ (columns * (-columns_decay).exp()).transpose(-1, -2)).masked_fill(~seen, 0.0)
