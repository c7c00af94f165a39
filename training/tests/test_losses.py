# SPDX-License-Identifier: Apache-2.0
"""The likelihoods are distributions, also where float32 is at its limits."""

import unittest

import torch

import context  # noqa: F401
from lintel_training.losses import categorical_nll, mixture_nll


class LossTest(unittest.TestCase):
    def test_mixture_probabilities_sum_to_one(self):
        outputs = torch.randn(5, 1, 9, generator=torch.Generator().manual_seed(0)).double()
        values = torch.arange(256).expand(5, 256)
        total = mixture_nll(outputs.expand(5, 256, 9), values).neg().exp().sum(1)
        self.assertLess((total - 1).abs().max().item(), 1e-2)  # the narrow branch approximates

    def test_extreme_outputs_have_finite_loss_and_gradient(self):
        for mean in (-5.0, 0.0, 5.0):
            for scale in (-60.0, -7.0, 0.0, 9.0):
                outputs = torch.tensor([0.0, mean, scale]).repeat(3, 1).requires_grad_()
                loss = mixture_nll(outputs, torch.tensor([0, 128, 255])).sum()
                loss.backward()
                self.assertTrue(torch.isfinite(loss), (mean, scale))
                self.assertTrue(torch.isfinite(outputs.grad).all(), (mean, scale))

    def test_bfloat16_outputs_are_evaluated_in_float32(self):
        outputs = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)).bfloat16()
        targets = torch.tensor([0, 3, 200, 255])
        self.assertEqual(mixture_nll(outputs, targets).dtype, torch.float32)
        self.assertTrue(torch.equal(mixture_nll(outputs, targets),
                                    mixture_nll(outputs.float(), targets)))

    def test_categorical_is_log_softmax_at_the_target(self):
        outputs = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
        targets = torch.tensor([[0, 1, 2], [3, 4, 6]])
        expected = -torch.log_softmax(outputs, -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        self.assertTrue(torch.allclose(categorical_nll(outputs, targets), expected, atol=1e-6))


if __name__ == "__main__":
    unittest.main()
