# SPDX-License-Identifier: Apache-2.0
"""Hugging Face directories that PyTorch trained, or a .pth file held, are served: the same ids and bits a token.

Needs LINTEL_SERVER and LINTEL_CLI, the two binaries.
"""

import contextlib
import io
import json
import math
import os
import subprocess
import tempfile
import unittest

from serve_test import TOLERANCE, serving  # it makes lintel_training importable

import torch

import convert_checkpoint
import test_from_rwkv7 as rwkv7
from lintel_training import train
from lintel_training.export import load_model
from lintel_training.vocabulary import read_tokenizer

EXACT = ("--weight-type", "f32")  # "auto" may round small models, too
TEXT = "".join(f"the {i} cats and the {i * i} dogs: isn't it?\n" for i in range(80))


def command(address, name, *flags, lines):
    """The JSON objects that `lintel NAME` prints for these."""
    done = subprocess.run([os.environ["LINTEL_CLI"], name, "--address", address, "--input", "-", *flags],
                          input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True,
                          check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def bits_a_token(model, ids):
    """PyTorch's bits per token; the first token is given."""
    with torch.no_grad():
        outputs = model(torch.tensor([ids[:-1]]))[0].double()
    return torch.nn.functional.cross_entropy(outputs, torch.tensor(ids[1:])).item() / math.log(2)


class ServeFamiliesTest(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())

    def at(self, name):
        return os.path.join(self.directory, name)

    def test_a_trained_directory_is_served_with_its_tokenizer(self):
        with open(self.at("text.txt"), "w", encoding="utf-8") as file:
            file.write(TEXT)
        for preset in ("text-rwkv7-small", "text-qwen3_5-small"):
            with self.subTest(preset):
                with contextlib.redirect_stdout(io.StringIO()):
                    train.main(["--preset", preset, "--data", self.at("text.txt"), "--out", self.at(preset), "--steps",
                                "6", "--d-model", "64", "--d-ff", "96", "--vocab-size", "280", "--context", "32",
                                "--batch-size", "2", "--validations", "0", "--precision", "f32", "--device", "cpu",
                                "--sample-count", "0"])
                directory = os.path.join(self.at(preset), "model")
                ids = read_tokenizer(directory).encode(TEXT[:900])
                with serving(directory, *EXACT) as address:
                    tokenized = command(address, "tokenize", lines=[{"text": TEXT[:900]}])
                    scored = command(address, "score", lines=[ids])
                self.assertEqual(tokenized[0]["ids"], ids)
                self.assertAlmostEqual(scored[0]["bits_per_dim"], bits_a_token(load_model(directory), ids),
                                       delta=TOLERANCE)

    def test_a_converted_pth_file_is_served(self):
        torch.save(rwkv7.published(), self.at("model.pth"))
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(convert_checkpoint.main([self.at("model.pth"), "--out", self.at("out"), *rwkv7.EPS]), 0)
        ids = [i * i % 80 for i in range(60)]
        with serving(self.at("out"), *EXACT) as address:
            scored = command(address, "score", lines=[ids])
        self.assertAlmostEqual(scored[0]["bits_per_dim"], bits_a_token(load_model(self.at("out")), ids),
                               delta=TOLERANCE)


if __name__ == "__main__":
    unittest.main()
