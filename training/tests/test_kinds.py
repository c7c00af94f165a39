"""What kinds.json declares of every kind of attention is what the training package makes of it."""

import unittest

import torch

import context  # noqa: F401
from lintel_training.attention import KINDS, SAMPLE_DIMS
from lintel_training.config import ConfigError
from lintel_training.recurrent import Session
from small import config, model

SAMPLES = [(kind, sample) for kind in KINDS.values() for sample in kind["samples"]]


def wrong_values(key):
    """Values just beyond what a key takes."""
    yield "wrong", [], {}
    if key["type"] == "integer":
        yield key["low"] - 1, key["high"] + 1, key["low"] + 0.5, True
    elif key["type"] == "positive":
        yield 0.0, -1.0, key["high"] * 1.01, 1e-300, float("nan")
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

    def test_steps_compute_what_the_parallel_form_does(self):
        for kind, sample in SAMPLES:
            with self.subTest(**sample["attention"]), torch.no_grad():
                made = model(sample["attention"], **SAMPLE_DIMS)
                tokens = torch.randint(0, 17, (2, 40),
                                       generator=torch.Generator().manual_seed(2))
                session = Session(made, 2, 40)
                steps = torch.stack([session.step(tokens[:, t]) for t in range(40)], 1)
                self.assertLess((steps - made(tokens)).abs().max(), 2e-4)

    def test_values_beyond_what_a_key_takes_are_refused_by_name(self):
        for kind, sample in SAMPLES:
            whole = sample["attention"]
            self.assertEqual(config(whole).attention[0].type, kind["type"])
            for key in kind["keys"]:
                for value in (v for values in wrong_values(key) for v in values):
                    with self.subTest(key=key["name"], value=value):
                        with self.assertRaisesRegex(ConfigError, key["name"]):
                            config(dict(whole, **{key["name"]: value}))
                without = {k: v for k, v in whole.items() if k != key["name"]}
                if "initial" in key:
                    self.assertEqual(getattr(config(without).attention[0], key["name"]),
                                     key["initial"])
                else:
                    with self.assertRaisesRegex(ConfigError, key["name"]):
                        config(without)
            with self.assertRaisesRegex(ConfigError, "no_such_key"):
                config(dict(whole, no_such_key=1))


if __name__ == "__main__":
    unittest.main()
