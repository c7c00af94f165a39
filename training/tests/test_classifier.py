# SPDX-License-Identifier: Apache-2.0
"""The digit classifier: learns, exports what it is, and says how good that is."""

import gzip
import os
import struct
import tempfile
import unittest

import torch

import context  # noqa: F401
from lintel_training import classifier, safetensors_io
from lintel_training.data import read_labels


def write_idx(path, array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    with gzip.open(path, "wb") as file:
        file.write(header + array.numpy().tobytes())


class ClassifierTest(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())

    def write(self, kind, count, seed):
        """Images whose class is where their bright block lies."""
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(10, (count,), generator=generator)
        images = torch.zeros(count, 28, 28, dtype=torch.uint8)
        for image, label in zip(images, labels.tolist()):
            image[4 + 10 * (label % 2):, 3 + 4 * (label // 2):][:8, :3] = 255
        path = os.path.join(self.directory, f"{kind}-images-idx3-ubyte.gz")
        write_idx(path, images)
        path = os.path.join(self.directory, f"{kind}-labels-idx1-ubyte.gz")
        write_idx(path, labels.to(torch.uint8))

    def test_learns_and_exports_the_network_whose_accuracy_the_card_states(self):
        self.write("train", 2000, 0)
        self.write("t10k", 200, 1)
        out = os.path.join(self.directory, "out")
        classifier.main(["--data", self.directory, "--out", out, "--epochs", "8"])
        tensors = safetensors_io.load(os.path.join(out, "model.safetensors"))
        self.assertEqual(sorted(tensors), ["hidden.0.bias", "hidden.0.weight", "hidden.1.bias",
                                           "hidden.1.weight", "output.bias", "output.weight"])
        self.assertEqual(tensors["output.weight"].dtype, torch.bfloat16)
        with open(os.path.join(out, "README.md"), encoding="utf-8") as file:
            card = file.read()
        accuracy = float(card.split("accuracy ")[1].split(" %")[0])
        self.assertGreater(accuracy, 80)
        self.assertIn("200 test images", card)

    def test_labels_are_not_images(self):
        self.write("train", 3, 0)
        labels = read_labels(os.path.join(self.directory, "train-labels-idx1-ubyte.gz"))
        self.assertEqual(labels.shape, (3,))
        with self.assertRaises(ValueError):
            read_labels(os.path.join(self.directory, "train-images-idx3-ubyte.gz"))


if __name__ == "__main__":
    unittest.main()
