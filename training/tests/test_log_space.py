# SPDX-License-Identifier: Apache-2.0
"""Feature maps in log space: what they compute, at norms where the plain form has no numbers left."""

import unittest

import torch

import small
from lintel_training.attention.efficient import efficient_attention
from lintel_training.attention.log_space import LogSums, log_linear_attention


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive(a, b, v, eps):
    """Every pair's weight in float64, divided by the largest of its row only."""
    a, b, v = (x.double() for x in (a, b, v))
    log_w = torch.logsumexp(a.unsqueeze(3) + b.unsqueeze(2), -1)  # [B, H, t, s]
    log_w = log_w.masked_fill(torch.ones(log_w.shape[-2:]).triu(1) > 0, -torch.inf)
    top = log_w.amax(-1, keepdim=True)
    w = torch.exp(log_w - top)
    return torch.matmul(w, v) / (w.sum(-1, keepdim=True) + eps * torch.exp(-top))


class LogSpaceTest(unittest.TestCase):
    def check(self, a, b, v, eps):
        expected = naive(a, b, v, eps)
        for group in (1, 3, 8, 100):
            got = log_linear_attention(a, b, v, eps, group)
            self.assertLess((got - expected).abs().max().item(), 1e-4, f"group {group}")
        sums = LogSums(*a.shape[:2], a.shape[-1], v.shape[-1], a.device)
        for t in range(v.shape[2]):
            sums.add(b[:, :, t], v[:, :, t])
            difference = (sums.read(a[:, :, t], eps) - expected[:, :, t]).abs().max().item()
            self.assertLess(difference, 1e-4, f"step {t}")

    def test_the_parallel_form_and_the_sums_compute_the_definition(self):
        for n in (1, 7, 40):
            a, b = random(2, 3, n, 5), random(2, 3, n, 5, seed=1)
            self.check(a, b, random(2, 3, n, 4, seed=2), 1e-6)

    def test_norms_beyond_float32_keep_their_digits(self):
        for scale in (100, -100):
            a, b = 30 * random(1, 2, 60, 6) + scale, 30 * random(1, 2, 60, 6, seed=1) + scale
            self.assertFalse(torch.isfinite(torch.exp(a + b)).all() and (torch.exp(a + b) > 0).all())
            self.check(a, b, random(1, 2, 60, 4, seed=2), 0.0)
        # With an eps that outweighs everything, the published form gives 0 and so do both.
        a = torch.full((1, 1, 20, 3), -100.0)
        self.check(a, a, random(1, 1, 20, 4), 1e-6)

    def test_a_later_key_however_large_changes_no_bit_before(self):
        a, b, v = random(1, 2, 40, 6), random(1, 2, 40, 6, seed=1), random(1, 2, 40, 4, seed=2)
        before = log_linear_attention(a, b, v, 1e-6)
        for t in (1, 8, 13, 39):
            changed = b.clone()
            changed[:, :, t:] += 200
            after = log_linear_attention(a, changed, v, 1e-6)
            self.assertTrue(torch.equal(before[:, :, :t], after[:, :, :t]), t)

    def test_gradients_are_those_of_the_definition_and_finite_at_large_norms(self):
        for scale in (1, 40):
            inputs = [scale * random(1, 2, 30, 5), scale * random(1, 2, 30, 5, seed=1),
                      random(1, 2, 30, 4, seed=2)]
            inputs = [x.requires_grad_() for x in inputs]
            weight = random(1, 2, 30, 4, seed=3)
            got = torch.autograd.grad((log_linear_attention(*inputs, 1e-6) * weight).sum(), inputs)
            expected = torch.autograd.grad((naive(*inputs, 1e-6) * weight).sum(), inputs)
            for mine, theirs in zip(got, expected):
                self.assertLess((mine - theirs).abs().max().item(), 1e-4 * theirs.abs().max().item())

    def test_efficient_attention_is_the_published_module_on_every_prefix(self):
        for scale in (1, 40):
            q, k, v = scale * random(2, 3, 20, 5), scale * random(2, 3, 20, 5, seed=1), random(2, 3, 20, 4)
            got = efficient_attention(q, k, v)
            for t in range(20):
                rho_k = torch.softmax(k[:, :, :t + 1].double(), 2)
                context = rho_k.transpose(-1, -2) @ v[:, :, :t + 1].double()
                expected = torch.softmax(q[:, :, t:t + 1].double(), -1) @ context
                difference = (got[:, :, t:t + 1] - expected).abs().max().item()
                self.assertLess(difference, 1e-5, f"scale {scale}, position {t}")


class FavorTest(unittest.TestCase):
    def test_drawn_features_are_orthogonal_and_approach_softmax(self):
        model = small.model({"type": "linear", "feature_map": "favor", "features": 4096})
        inner = model.transformer.layers[0].attention.inner_attention
        omega = inner.feature_map.omega.double()
        first = omega[:, :8] / omega[:, :8].norm(dim=0)
        self.assertLess((first.T @ first - torch.eye(8)).abs().max().item(), 1e-6)
        self.assertAlmostEqual((omega.norm(dim=0) ** 2).mean().item(), 8, delta=0.3)
        q, k, v = (random(1, 2, 30, 8, seed=s) * scale for s, scale in enumerate((0.5, 0.5, 1)))
        scores = (q @ k.transpose(-1, -2) / 8 ** 0.5).masked_fill(torch.ones(30, 30).triu(1) > 0, -1e30)
        expected = torch.softmax(scores, -1) @ v
        self.assertLess((inner(q, k, v) - expected).abs().max().item(), 0.1)


if __name__ == "__main__":
    unittest.main()
