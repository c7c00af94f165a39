# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with random features of fast-transformers: converted, they compute what its classes say."""

import math
import unittest

import torch
import torch.nn.functional as F

import small
from converting import convert

HEADS, D, EPS = 2, 8, 1e-6
OMEGA = "transformer.layers.{}.attention.inner_attention.feature_map.omega"


def checkpoint(columns, seed=6):
    """A state_dict of the reference, whose layers have an omega of so many columns."""
    state = small.model({"type": "linear"}, norm_placement="post").state_dict()
    generator = torch.Generator().manual_seed(seed)
    for layer in range(2):
        state[OMEGA.format(layer)] = torch.randn(D, columns, generator=generator)
    return state


def network(state, tokens, phi):
    """Logits of one sequence [N] by Katharopoulos et al. 2020, eq. 5 with eps: phi(x, omega) -> features."""
    x = state["value_embedding.weight"][tokens] + state["pos_embedding.pe"][0, :len(tokens)]
    for layer in range(2):
        at = f"transformer.layers.{layer}."

        def linear(name, x):
            return F.linear(x, state[at + name + ".weight"], state[at + name + ".bias"])

        def norm(name, x):
            return F.layer_norm(x, x.shape[-1:], state[at + name + ".weight"], state[at + name + ".bias"])

        q, k, v = (linear(f"attention.{name}_projection", x).view(-1, HEADS, D).transpose(0, 1)
                   for name in ("query", "key", "value"))
        omega = state[OMEGA.format(layer)]
        weights = torch.tril(phi(q, omega) @ phi(k, omega).transpose(1, 2))  # [H, N, N]
        out = weights @ v / (weights.sum(-1, keepdim=True) + EPS)
        x = norm("norm1", x + linear("attention.out_projection", out.transpose(0, 1).flatten(1)))
        x = norm("norm2", x + linear("linear2", F.relu(linear("linear1", x))))
    x = F.layer_norm(x, x.shape[-1:], state["transformer.norm.weight"], state["transformer.norm.bias"])
    return F.linear(x, state["predictor.weight"], state["predictor.bias"])


# The forward passes of the classes, n n_dims and t softmax_temp.


def fourier(n, t):
    def phi(x, omega):
        u = x * math.sqrt(t) @ omega
        return torch.cat([u.cos(), u.sin()], -1) * math.sqrt(2 / n)
    return phi


def smoothed(n, t, smoothing):
    def phi(x, omega):
        y = fourier(n - 1, t)(x, omega)
        return torch.cat([y, torch.full_like(y[..., :1], smoothing)], -1)
    return phi


def favor(n, t):
    def phi(x, omega):
        x = x * math.sqrt(t)
        u, offset = x @ omega, (x * x).sum(-1, keepdim=True) / 2 + math.log(n) / 2
        return torch.cat([(u - offset).exp(), (-u - offset).exp()], -1)
    return phi


def generalized(t):
    return lambda x, omega: F.relu(x * math.sqrt(t) @ omega)


USUAL = 1 / math.sqrt(D)
# Columns of omega, flags, and the class's features.
CASES = {
    "Favor": (6, ["favor"], favor(12, USUAL)),
    "Favor, cooler": (6, ["favor", "--softmax-temp", "0.1"], favor(12, 0.1)),
    "Favor of an odd number": (6, ["favor", "--n-dims", "13"], favor(13, USUAL)),
    "GeneralizedRandomFeatures": (40, ["generalized"], generalized(1.0)),
    "GeneralizedRandomFeatures, cooler": (40, ["generalized", "--softmax-temp", "0.5"], generalized(0.5)),
    "RandomFourierFeatures": (64, ["fourier"], fourier(128, USUAL / 4)),
    "SmoothedRandomFourierFeatures": (8, ["smoothed-fourier"], smoothed(17, USUAL, 1.0)),
    "smoothed more, of an even number": (
        8, ["smoothed-fourier", "--n-dims", "18", "--smoothing", "1.5"], smoothed(18, USUAL, 1.5)),
}
CASES["RandomFourierFeatures"][1].extend(["--softmax-temp", str(USUAL / 4)])  # denominators above 0


class FastTransformersTest(unittest.TestCase):
    FLAGS = ("--position-encoding", "learned", "--modality", "tokens")

    def test_the_same_logits_after_conversion(self):
        tokens = torch.arange(24) * 5 % 17
        for name, (columns, flags, phi) in CASES.items():
            with self.subTest(name):
                state = checkpoint(columns)
                status, errors, model = convert({"model_state": state}, *self.FLAGS, "--feature-map", *flags)
                self.assertEqual((status, errors), (0, ""))
                self.assertEqual(model.config.n_heads, HEADS)
                expected = network({key: value.double() for key, value in state.items()}, tokens, phi)
                with torch.no_grad():
                    difference = (model(tokens[None])[0] - expected).abs().max().item()
                self.assertLess(difference, 1e-4)

    def test_what_no_shape_tells_is_asked_for(self):
        state = checkpoint(6)
        for flags, text in (
                ((), "--feature-map is needed: feature_map.omega does not tell"),
                (("--feature-map", "favor", "--n-dims", "14"), "--n-dims 14 does not make the 6 columns"),
                (("--feature-map", "generalized", "--n-dims", "12"), "--n-dims 12 does not make the 6"),
                (("--feature-map", "favor", "--smoothing", "1"), "--smoothing is of smoothed-fourier")):
            status, errors, _ = convert(state, *self.FLAGS, *flags)
            self.assertEqual(status, 1)
            self.assertIn(text, errors)
            self.assertEqual(len(errors.splitlines()), 1)

    def test_features_that_do_not_fit_the_heads_are_named(self):
        state = dict(checkpoint(6), **{OMEGA.format(0): torch.zeros(5, 6)})
        status, errors, _ = convert(state, *self.FLAGS, "--feature-map", "favor")
        self.assertEqual(status, 1)
        self.assertIn("inner_attention.feature_map.omega: has [5, 6]", errors)


if __name__ == "__main__":
    unittest.main()
