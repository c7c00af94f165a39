# SPDX-License-Identifier: Apache-2.0
"""The parallel forms of attention against their definitions, position by position."""

import math
import unittest

import torch

import context  # noqa: F401
from lintel_training.attention import parts
from lintel_training.attention.linear import choose_chunk, linear_attention
from lintel_training.attention.lsh import LshOrder, hash_buckets, lsh_attention
from lintel_training.attention.softmax import softmax_attention


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive_linear(q, k, v, eps):
    """S_t, Z_t one position at a time, in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    phi = lambda x: torch.nn.functional.elu(x) + 1  # noqa: E731
    s = torch.zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=torch.float64)
    z = torch.zeros(*q.shape[:2], q.shape[3], dtype=torch.float64)
    out = torch.zeros_like(v)
    for t in range(q.shape[2]):
        s += phi(k[:, :, t]).unsqueeze(-1) * v[:, :, t].unsqueeze(-2)
        z += phi(k[:, :, t])
        numerator = torch.einsum("bhd,bhdm->bhm", phi(q[:, :, t]), s)
        out[:, :, t] = numerator / ((phi(q[:, :, t]) * z).sum(-1, keepdim=True) + eps)
    return out


def streaming_visible(bucket, chunk_size):
    """The positions that the last one sees: a sort by (bucket, position), cut into chunks."""
    order = sorted(range(len(bucket)), key=lambda s: (bucket[s], s))
    rank = {s: r for r, s in enumerate(order)}
    mine = rank[len(bucket) - 1] // chunk_size
    return [rank[s] // chunk_size in (mine, mine - 1) for s in range(len(bucket))]


class LinearTest(unittest.TestCase):
    def test_chunks_compute_the_recurrence_at_every_length(self):
        for n in (1, 2, 7, 8, 9, 31, 70):
            for chunk in (1, 3, 8, None):
                q, k, v = (random(2, 3, n, 5, seed=s) for s in range(3))
                expected = naive_linear(q, k, v, 1e-6)
                got = linear_attention(q, k, v, 1e-6, chunk).double()
                difference = (got - expected).abs().max().item()
                self.assertLess(difference, 1e-5, f"n {n}, chunk {chunk}: {difference}")

    def test_small_features_keep_their_digits(self):
        # phi(k) near 1e-7, as trained models have it: where a float32 of 1 - 1e-7 has one digit.
        q, k, v = (random(1, 4, 200, 8, seed=s) for s in range(3))
        q, k = q + 10, k - 16
        expected = naive_linear(q, k, v, 1e-6)
        got = linear_attention(q, k, v, 1e-6, 16).double()
        self.assertLess((got - expected).abs().max().item(), 1e-4)

    def test_bfloat16_stays_close_over_a_long_sequence(self):
        q, k, v = (random(1, 2, 900, 16, seed=s).bfloat16() for s in range(3))
        expected = naive_linear(q, k, v, 1e-6)
        got = linear_attention(q, k, v).double()
        self.assertLess((got - expected).abs().max().item(), 0.02)

    def test_an_image_needs_one_position_of_padding(self):
        self.assertEqual(choose_chunk(784), 56)
        self.assertEqual(choose_chunk(512), 64)


class BlocksTest(unittest.TestCase):
    """Attention without PyTorch 2, with several blocks and a last one that is not full."""

    def setUp(self):
        before = parts.HAS_SDPA, parts.BLOCK
        self.addCleanup(lambda: setattr(parts, "HAS_SDPA", before[0]))
        self.addCleanup(lambda: setattr(parts, "BLOCK", before[1]))
        parts.HAS_SDPA, parts.BLOCK = False, 5

    def test_softmax_is_that_of_whole_matrices(self):
        q, k, v = (random(2, 3, 17, 4, seed=s) for s in range(3))
        future = torch.ones(17, 17).triu(1) > 0
        for scale in (None, 0.7):
            scores = q @ k.transpose(-1, -2) * (scale or 0.5)
            expected = torch.softmax(scores.masked_fill(future, -math.inf), -1) @ v
            got = softmax_attention(q, k, v, scale)
            self.assertLess((got - expected).abs().max().item(), 1e-5)

    def test_lsh_averages_what_its_rounds_see(self):
        q, v, planes = random(2, 3, 17, 4), random(2, 3, 17, 4, seed=1), random(2, 3, 4, seed=2)
        k = q / q.norm(dim=-1, keepdim=True)
        for mask_self in (True, False):
            scores = q @ k.transpose(-1, -2) / 2
            if mask_self:  # far below any other that is seen
                scores = scores.masked_fill(torch.eye(17) > 0, -1e9)
            expected = 0
            for bucket in hash_buckets(q, planes):
                unseen = ~LshOrder(bucket, 6, 3).visible()
                expected = expected + torch.softmax(scores.masked_fill(unseen, -math.inf), -1) @ v / 2
            got = lsh_attention(q, v, planes, 3, mask_self)
            self.assertLess((got - expected).abs().max().item(), 1e-5, f"mask_self {mask_self}")


class LshTest(unittest.TestCase):
    def test_the_mask_is_what_streaming_sees(self):
        for chunk_size in (1, 2, 4, 5):
            bucket = torch.randint(0, 6, (2, 2, 33),
                                   generator=torch.Generator().manual_seed(chunk_size))
            order = LshOrder(bucket, 6, chunk_size)
            mask = order.visible()
            self.assertTrue(torch.equal(order.visible(7, 20), mask[:, :, 7:20, :20]))
            for row, seen in zip(bucket.flatten(0, 1).tolist(), mask.flatten(0, 1)):
                for t in range(33):
                    expected = streaming_visible(row[:t + 1], chunk_size)
                    self.assertEqual(seen[t, :t + 1].tolist(), expected)
                    self.assertFalse(seen[t, t + 1:].any())

    def test_the_hash_takes_the_first_maximum_over_both_signs(self):
        planes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        q = torch.tensor([[[[2.0, 1.0], [-2.0, 1.0], [1.0, 1.0], [1.0, -3.0]]]])
        self.assertEqual(hash_buckets(q, planes).flatten().tolist(), [0, 2, 0, 3])

    def test_one_chunk_is_softmax_attention_over_normalised_queries(self):
        q, v, planes = random(1, 2, 6, 4), random(1, 2, 6, 4, seed=1), random(1, 3, 4, seed=2)
        k = q / q.norm(dim=-1, keepdim=True)
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(torch.ones(6, 6).triu(1) > 0, -math.inf)
        expected = torch.softmax(scores - 1e9 * torch.eye(6), -1) @ v
        got = lsh_attention(q, v, planes, chunk_size=8)
        self.assertLess((got - expected).abs().max().item(), 1e-5)

    def test_the_gradient_reaches_q_as_query_and_as_key(self):
        q = random(1, 1, 5, 4).requires_grad_()
        v, planes = random(1, 1, 5, 4, seed=1), random(1, 3, 4, seed=2)
        out = lsh_attention(q, v, planes, chunk_size=8)
        out[:, :, 4].sum().backward()
        self.assertTrue((q.grad[0, 0, :4].abs().sum(-1) > 0).all(), "no gradient as a key")


if __name__ == "__main__":
    unittest.main()
