# SPDX-License-Identifier: Apache-2.0
"""Splits, order and augmentation of the training data."""

import gzip
import os
import struct
import tempfile
import unittest

import torch

import context  # noqa: F401
from lintel_training.data import (ImageBatches, TextBatches, read_images, shift_images,
                                  split_text)


class IdxTest(unittest.TestCase):
    def test_files_that_are_no_images_are_refused_by_name(self):
        good = struct.pack(">HBB3I", 0, 8, 3, 2, 2, 2) + bytes(8)
        packed = gzip.compress(good)
        huge = struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(8)
        broken = [b"", good[:3], good[:9], good[:-1], good + b"x", packed[:9], packed[:-9],
                  packed[:12] + b"xyz" + packed[15:], b"<html>not found</html>", huge]
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "images")
            for data in broken + [good, packed]:
                with open(path, "wb") as file:
                    file.write(data)
                with self.subTest(data):
                    if data in (good, packed):
                        self.assertEqual(list(read_images(path).shape), [2, 4])
                    else:
                        with self.assertRaisesRegex(ValueError, path):
                            read_images(path)


class ImageBatchesTest(unittest.TestCase):
    def batches(self, seed=0):
        images = torch.arange(10, dtype=torch.uint8).unsqueeze(1).repeat(1, 4)
        return ImageBatches(images, 2, 2, batch_size=3, seed=seed, device="cpu")

    def test_an_epoch_shows_each_image_at_most_once(self):
        batches = self.batches()
        self.assertEqual(batches.batches_per_epoch, 3)
        shown = torch.cat([batches.batch(i)[0][:, 0] for i in range(3)]).tolist()
        self.assertEqual(len(set(shown)), 9)

    def test_order_depends_on_seed_and_epoch_only(self):
        forward, backward = self.batches(), self.batches()
        a = [forward.batch(i)[0] for i in range(9)]
        b = [backward.batch(i)[0] for i in reversed(range(9))][::-1]
        for x, y in zip(a, b):
            self.assertTrue(torch.equal(x, y))
        self.assertFalse(all(torch.equal(a[i], a[i + 3]) for i in range(3)))
        self.assertFalse(all(torch.equal(a[i], self.batches(1).batch(i)[0]) for i in range(3)))

    def test_targets_are_the_inputs_one_later(self):
        images = torch.arange(12, dtype=torch.uint8).reshape(2, 6)
        inputs, targets, offsets = ImageBatches(images, 2, 3, 2, 0, "cpu").batch(0)
        self.assertTrue(torch.equal(inputs + 1, targets))
        self.assertIsNone(offsets)

    def test_shift_moves_and_fills_with_zero(self):
        images = torch.arange(1, 7, dtype=torch.uint8).reshape(1, 6).repeat(3, 1)  # 1 2 3 / 4 5 6
        shifted = shift_images(images, torch.tensor([[0, 0], [1, 0], [0, -1]]), 2, 3)
        self.assertEqual(shifted.tolist(),
                         [[1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 3], [2, 3, 0, 5, 6, 0]])


class TextTest(unittest.TestCase):
    def test_validation_is_the_last_tenth(self):
        train, valid = split_text(torch.arange(100, dtype=torch.uint8))
        self.assertEqual((train.tolist(), valid.tolist()),
                         (list(range(90)), list(range(90, 100))))

    def test_windows_and_offsets(self):
        batches = TextBatches(torch.arange(200, dtype=torch.uint8), 8, 16, 0, "cpu")
        inputs, targets, offsets = batches.batch(0)
        self.assertEqual(inputs.shape, (16, 8))
        self.assertTrue(torch.equal(inputs + 1, targets))
        self.assertTrue((offsets == 0).any() and (offsets > 100).any())
        self.assertTrue(torch.equal(batches.batch(5)[0], batches.batch(5)[0]))


if __name__ == "__main__":
    unittest.main()
