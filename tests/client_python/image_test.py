# SPDX-License-Identifier: Apache-2.0
"""Images that a model cannot complete, or would take for something else."""

import unittest
import warnings

import lintel
import numpy as np

from serving import ServedTest, run_async


class ImageTest(ServedTest):
    models = ("tokens",)
    mnist = True
    MODEL = "mnist-linear-small"

    def complete(self, image, mask, **options):
        """Completes by either kind of client."""
        async def asynchronous():
            async with lintel.AsyncClient(self.server.address) as client:
                return await client.complete_image(image, mask, **options)
        yield lambda: self.client.complete_image(image, mask, **options)
        yield lambda: run_async(asynchronous())

    def test_one_of_another_shape_is_refused_naming_both(self):
        for shape in ((20, 20), (28, 20), (20, 28), (14, 56), (28, 28, 3)):
            image = np.zeros(shape, np.uint8)
            mask = np.zeros(shape[:2], bool)
            mask[10:] = True
            for call in self.complete(image, mask, model=self.MODEL):
                with self.assertRaises(ValueError) as raised:
                    call()
                self.assertEqual(
                    str(raised.exception),
                    f"the image is {list(shape)}, the model {self.MODEL} draws [28, 28]; "
                    "`lintel complete --fit` fits pictures of digits")
        for call in self.complete(np.zeros((28, 28), np.uint8), mask, model="tokens"):
            with self.assertRaisesRegex(ValueError, "mask|draws no images"):
                call()

    def test_a_channel_of_one_value_may_have_an_axis(self):
        image, mask = np.zeros((28, 28, 1), np.uint8), np.zeros((28, 28), bool)
        mask[27] = True
        for call in self.complete(image, mask, model=self.MODEL):
            self.assertEqual(call().shape, (28, 28, 1))

    def test_dark_on_light_is_warned_of_by_its_known_border(self):
        digit, mask = np.zeros((28, 28), np.uint8), np.zeros((28, 28), bool)
        digit[5:23, 12:16] = 255
        mask[26:] = True
        for call in self.complete(255 - digit, mask, model=self.MODEL):
            with self.assertWarnsRegex(UserWarning, "border is light.*255 - image"):
                call()
        half = digit.copy()
        half[14:] = 255  # light, but hidden
        below = np.zeros((28, 28), bool)
        below[14:] = True
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for image, hidden in ((digit, mask), (half, below)):
                for call in self.complete(image, hidden, model=self.MODEL):
                    call()


if __name__ == "__main__":
    unittest.main()
