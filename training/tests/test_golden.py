"""The model computes what the reference implementation computed (tests/golden)."""

import os
import unittest

import torch

from context import REPOSITORY
from lintel_training import safetensors_io
from lintel_training.export import load_model
from lintel_training.losses import LN2, nll

GOLDEN = os.path.join(REPOSITORY, "tests", "golden")
# Streaming is what a session computes and what a model is trained with; other kinds of attention
# have one meaning only.
CASES = {
    "linear-small": "",
    "linear-gelu-nofinalnorm-small": "",
    "softmax-small": "",
    "lsh1-small": "_streaming",
    "lsh4-small": "_streaming",
}


class GoldenTest(unittest.TestCase):
    def check(self, name):
        directory = os.path.join(GOLDEN, name)
        golden = safetensors_io.load(os.path.join(directory, "golden.safetensors"))
        model = load_model(directory)
        tokens = golden["tokens"].long()
        with torch.no_grad():
            outputs = model(tokens)
        expected = golden["outputs" + CASES[name]]
        difference = (outputs - expected).abs().max().item()
        self.assertLess(difference, 1e-4, f"{name}: outputs differ by up to {difference}")

        bits = nll(model.config, expected[:, :-1], tokens[:, 1:]) / LN2
        difference = (bits - golden["log_likelihood_bits" + CASES[name]]).abs().max().item()
        self.assertLess(difference, 1e-3, f"{name}: bits differ by up to {difference}")


for _name in CASES:
    def _test(self, name=_name):
        self.check(name)
    setattr(GoldenTest, "test_" + _name.replace("-", "_"), _test)


if __name__ == "__main__":
    unittest.main()
