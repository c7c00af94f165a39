# SPDX-License-Identifier: Apache-2.0
"""The model computes what the reference implementation computed (tests/golden), at once and step by step."""

import json
import os
import unittest

import torch

from context import REPOSITORY
from lintel_training import safetensors_io
from lintel_training.config import ModelConfig
from lintel_training.export import load_model
from lintel_training.losses import LN2, nll
from lintel_training.recurrent import Session

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
CASES.update((os.path.join("zoo", name), "") for name in sorted(os.listdir(os.path.join(GOLDEN, "zoo")))
             if os.path.isdir(os.path.join(GOLDEN, "zoo", name)))


class GoldenTest(unittest.TestCase):
    def check(self, name):
        directory = os.path.join(GOLDEN, name)
        golden = safetensors_io.load(os.path.join(directory, "golden.safetensors"))
        model = load_model(directory)
        tokens = golden["tokens"].long()
        with torch.no_grad():
            outputs = model(tokens)
            session = Session(model, *tokens.shape)
            steps = torch.stack([session.step(column) for column in tokens.unbind(1)], 1)
        expected = golden["outputs" + CASES[name]]
        for form, found in (("all positions at once", outputs), ("step by step", steps)):
            difference = (found - expected).abs().max().item()
            self.assertLess(difference, 1e-4, f"{name}, {form}: outputs differ by up to {difference}")

        bits = nll(model.config, expected[:, :-1], tokens[:, 1:]) / LN2
        difference = (bits - golden["log_likelihood_bits" + CASES[name]]).abs().max().item()
        self.assertLess(difference, 1e-3, f"{name}: bits differ by up to {difference}")

    def test_a_configuration_is_written_as_it_was_read(self):
        for name in CASES:
            with open(os.path.join(GOLDEN, name, "config.json"), encoding="utf-8") as file:
                data = json.load(file)
            config = ModelConfig.from_dict(data)
            written = config.to_dict()
            self.assertEqual(ModelConfig.from_dict(written), config, name)
            for key in ("layer_weights", "position_injection", "step_embedding", "residual"):
                self.assertEqual(written.get(key), data.get(key), (name, key))


for _name in CASES:
    def _test(self, name=_name):
        self.check(name)
    setattr(GoldenTest, "test_" + _name.replace("-", "_").replace(os.sep, "_"), _test)


if __name__ == "__main__":
    unittest.main()
