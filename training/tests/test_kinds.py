# SPDX-License-Identifier: Apache-2.0
"""The training package makes of every kind of attention what kinds.json declares."""

import contextlib
import unittest

import torch

import context  # noqa: F401
from lintel_training.attention import KINDS, SAMPLE_DIMS, projections_of
from lintel_training.attention_config import ATTENTIONS
from lintel_training.config import ConfigError
from lintel_training.recurrent import Session
from small import config, model, tokens

N_HEADS = SAMPLE_DIMS["n_heads"]
SAMPLES = [(kind, sample) for kind in KINDS.values() for sample in kind["samples"]]


def wrong_values(key):
    """Values just beyond what a key takes."""
    yield "wrong", [], {}
    if key["type"] in ("integer", "integers"):
        yield key["low"] - 1, key["high"] + 1, key["low"] + 0.5, True
    if key["type"] == "integers":  # one a head
        low = key["low"]
        yield [low] * (N_HEADS + 1), [low - 1] * N_HEADS, [True] * N_HEADS, [[low]] * N_HEADS
    elif key["type"] in ("positive", "not_negative"):
        yield -1.0, key["high"] * 1.01, 1e-300, float("nan")
        if key["type"] == "positive":
            yield (0.0,)
    elif key["type"] == "boolean":
        yield 0, 1
    if "null_means" not in key:
        yield (None,)


class KindsTest(unittest.TestCase):
    def test_tensors_have_the_declared_names_and_shapes(self):
        for kind, sample in SAMPLES:
            with self.subTest(**sample["attention"]):
                made = model(sample["attention"], **SAMPLE_DIMS)
                expected = {"out_projection.weight": [SAMPLE_DIMS["d_model"], sample["out_width"]],
                            "out_projection.bias": [SAMPLE_DIMS["d_model"]]}
                for p in sample["projections"]:
                    expected[p["name"] + ".weight"] = [p["width"], SAMPLE_DIMS["d_model"]]
                    if p["has_bias"]:
                        expected[p["name"] + ".bias"] = [p["width"]]
                for t in sample["tensors"]:
                    expected["inner_attention." + t["name"]] = t["shape"]
                attention = made.transformer.layers[0].attention
                found = {name: list(t.shape) for name, t in attention.state_dict().items()}
                self.assertEqual(found, expected)
                self.assertEqual({name for name, _ in attention.inner_attention.named_parameters()},
                                 {t["name"] for t in sample["tensors"] if t["is_learned"]})

    def test_projections_are_the_same_whatever_the_keys_are(self):
        for kind, sample in SAMPLES:
            for mine, first in zip(sample["projections"], projections_of(kind["type"]), strict=True):
                self.assertEqual(mine, first, kind["type"])

    def test_steps_compute_what_the_parallel_form_does(self):
        for kind, sample in SAMPLES:
            with self.subTest(**sample["attention"]), torch.no_grad():
                made = model(sample["attention"], **SAMPLE_DIMS)
                given = tokens(2, 40, seed=2)
                session = Session(made, 2, 40)
                steps = torch.stack([session.step(given[:, t]) for t in range(40)], 1)
                self.assertLess((steps - made(given)).abs().max(), 2e-4)

    def test_later_tokens_change_nothing_before(self):
        for kind, sample in SAMPLES:
            with self.subTest(**sample["attention"]), torch.no_grad():
                made = model(sample["attention"], **SAMPLE_DIMS)
                given = tokens(1, 64, seed=4)
                whole = made(given)
                for t in (1, 9, 31, 32, 63):
                    other = torch.cat([given[:, :t], (given[:, t:] + 5) % 17], 1)
                    self.assertLess((made(other) - whole)[:, :t].abs().max(), 1e-6, f"before {t}")

    def test_gradients_reach_every_parameter_that_is_read_and_are_finite(self):
        for kind, sample in SAMPLES:
            made = model(sample["attention"], **SAMPLE_DIMS).train()
            given = tokens(2, 64, seed=3)
            with self.subTest(**sample["attention"]):
                for precision in (contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16)):
                    made.zero_grad()
                    with precision:
                        outputs = made(given)
                    outputs.float().square().mean().backward()
                    for name, p in made.named_parameters():
                        if p.requires_grad:
                            self.assertIsNotNone(p.grad, name)
                            self.assertTrue(torch.isfinite(p.grad).all(), name)

    def test_values_beyond_what_a_key_takes_are_refused_by_name(self):
        for kind, sample in SAMPLES:
            whole = sample["attention"]
            self.assertEqual(config(whole, **SAMPLE_DIMS).attention[0].type, kind["type"])
            for key in kind["keys"]:
                for value in (v for values in wrong_values(key) for v in values):
                    with self.subTest(key=key["name"], value=value):
                        with self.assertRaisesRegex(ConfigError, key["name"]):
                            config(dict(whole, **{key["name"]: value}), **SAMPLE_DIMS)
                without = {k: v for k, v in whole.items() if k != key["name"]}
                if "initial" in key:  # which need not go with the sample's others
                    self.assertEqual(getattr(ATTENTIONS[kind["type"]](**without), key["name"]),
                                     key["initial"])
                else:
                    with self.assertRaisesRegex(ConfigError, key["name"]):
                        config(without)
            with self.assertRaisesRegex(ConfigError, "no_such_key"):
                config(dict(whole, no_such_key=1))


if __name__ == "__main__":
    unittest.main()
