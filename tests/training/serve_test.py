# SPDX-License-Identifier: Apache-2.0
"""The server's bits/dim are those of PyTorch, for models that it trained and for checkpoints.

Needs LINTEL_SERVER and LINTEL_CLI, the two binaries.
"""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

TRAINING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "training")
sys.path.insert(0, os.path.join(TRAINING, "tests"))

import context  # noqa: E402, F401
import torch  # noqa: E402

import convert_checkpoint  # noqa: E402
import small  # noqa: E402
import test_from_fast_transformers as fast_transformers  # noqa: E402
import test_from_transformer_xl as transformer_xl  # noqa: E402
from lintel_training.data import read_images  # noqa: E402
from lintel_training.evaluate import image_bits  # noqa: E402
from lintel_training.export import load_model  # noqa: E402

TOLERANCE = 0.0005  # bits/dim


@contextlib.contextmanager
def serving(model, *flags):
    """Address of a server of one model directory."""
    server = subprocess.Popen([os.environ["LINTEL_SERVER"], "--model", model, "--listen",
                               "127.0.0.1:0", "--http-listen", "off", *flags], stdout=subprocess.PIPE, text=True)
    try:
        ready = server.stdout.readline()
        yield ready.strip().rpartition(" ")[2]
    finally:
        server.terminate()
        status = server.wait()
        server.stdout.close()
    assert status == 0, f"lintel-server ended with {status}"


def served_bits(model, sequences):
    """Bits/dim of each sequence, as `lintel score` gets them."""
    lines = "".join(json.dumps(s) + "\n" for s in sequences)
    with serving(model) as address:
        done = subprocess.run([os.environ["LINTEL_CLI"], "score", "--address", address, "--input",
                               "-"], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line)["bits_per_dim"] for line in done.stdout.splitlines()]


class ServeTest(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())

    def check(self, model, images):
        expected = image_bits(load_model(model), images)
        served = served_bits(model, images.tolist())
        self.assertEqual(len(served), len(images))
        for ours, theirs in zip(served, expected.tolist()):
            self.assertAlmostEqual(ours, theirs, delta=TOLERANCE)

    def test_a_trained_model_scores_as_in_pytorch(self):
        data = os.path.join(self.directory, "images")
        small.write_images(data, count=8, height=28, width=28)
        images = read_images(os.path.join(data, "t10k-images-idx3-ubyte.gz"), 3)
        for preset in ("mnist-linear-small", "mnist-linear", "mnist-softmax", "mnist-lsh1"):
            out = os.path.join(self.directory, preset)
            with contextlib.redirect_stdout(io.StringIO()):
                small.run("--preset", preset, "--data", data, "--out", out, "--steps", "4",
                          "--valid-count", "2", "--limit-test", "2", "--sample-count", "0",
                          "--validations", "0", "--precision", "f32")
            with self.subTest(preset):
                self.check(os.path.join(out, "model"), images)

    def test_a_converted_checkpoint_scores_as_in_pytorch(self):
        model = small.model(
            {"type": "linear"}, norm_placement="post", embedding="value_concat_position",
            position_encoding="sinusoidal", vocab_size=256,
            head={"type": "mixture_of_logistics", "mixtures": 4},
            modality={"type": "image", "height": 5, "width": 5, "channels": 1})
        checkpoint = os.path.join(self.directory, "model.pth")
        state = {"module." + name: tensor for name, tensor in model.state_dict().items()}
        torch.save({"model_state": state, "epoch": 3}, checkpoint)
        out = os.path.join(self.directory, "converted")
        with contextlib.redirect_stdout(io.StringIO()):
            status = convert_checkpoint.main([checkpoint, "--out", out, "--heads", "2",
                                              "--image-shape", "5", "5", "1"])
        self.assertEqual(status, 0)
        generator = torch.Generator().manual_seed(0)
        self.check(out, torch.randint(256, (4, 25), generator=generator, dtype=torch.uint8))

    def check_converted(self, checkpoint, logits_of, symbols, *flags):
        """Its own logits, of [N] tokens [N, symbols], tell the bits that the converted model is scored with."""
        path, out = (os.path.join(self.directory, name) for name in ("foreign.pth", "converted"))
        torch.save(checkpoint, path)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(convert_checkpoint.main([path, "--out", out, "--modality", "tokens", *flags]), 0)
        tokens = torch.arange(4).unsqueeze(1) + torch.arange(36) ** 2
        tokens = tokens % symbols
        served = served_bits(out, tokens.tolist())
        self.assertEqual(len(served), len(tokens))
        for ours, sequence in zip(served, tokens):
            nats = torch.nn.functional.cross_entropy(logits_of(sequence)[:-1].double(), sequence[1:])
            self.assertAlmostEqual(ours, nats.item() / math.log(2), delta=TOLERANCE)

    def test_a_converted_transformer_xl_scores_as_its_equations_say(self):
        for changes in ({"clamp_len": 4}, {"same_length": True, "pre_lnorm": True}):
            torch.manual_seed(7)
            model = transformer_xl.TransformerXl(**changes)
            with self.subTest(**changes):
                self.check_converted(model, model, transformer_xl.SYMBOLS)

    def test_converted_random_features_score_as_their_classes_say(self):
        for name, (columns, flags, phi) in fast_transformers.CASES.items():
            state = fast_transformers.checkpoint(columns)
            with self.subTest(name):
                self.check_converted(
                    state, lambda tokens: fast_transformers.network(state, tokens, phi), 17,
                    "--position-encoding", "learned", "--feature-map", *flags)


if __name__ == "__main__":
    unittest.main()
