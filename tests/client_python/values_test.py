# SPDX-License-Identifier: Apache-2.0
"""Values of callers, as the wire has them. No server."""

import asyncio
import unittest

import lintel
import numpy as np
from lintel._image import Completion
from lintel._request import score_request, to_wire


class ValuesTest(unittest.TestCase):
    def tokens(self, values):
        wire = to_wire(values)
        self.assertEqual(wire.WhichOneof("form"), "tokens")
        return list(wire.tokens.ids)

    def test_integers_of_any_kind_are_tokens(self):
        for values in ([3, 1, 4], (3, 1, 4), iter([3, 1, 4]), np.array([3, 1, 4]),
                       np.array([3, 1, 4], dtype=np.uint8), [np.int64(3), np.uint8(1), 4]):
            self.assertEqual(self.tokens(values), [3, 1, 4])
        self.assertEqual(self.tokens(range(3)), [0, 1, 2])
        self.assertEqual(self.tokens(np.arange(10)[::3]), [0, 3, 6, 9])
        self.assertEqual(self.tokens([]), [])
        self.assertEqual(self.tokens(np.array([], dtype=np.int64)), [])

    def test_text_is_bytes(self):
        self.assertEqual(to_wire("déjà").text, "déjà".encode())
        for data in (b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")):
            self.assertEqual(to_wire(data).text, b"\x00\xff")

    def test_an_image_goes_in_raster_order_however_it_lies_in_memory(self):
        image = np.arange(6, dtype=np.uint8).reshape(2, 3)
        self.assertEqual(to_wire(image).pixels, bytes(range(6)))
        self.assertEqual(to_wire(np.asfortranarray(image)).pixels, bytes(range(6)))
        self.assertEqual(to_wire(image.T).pixels, bytes([0, 3, 1, 4, 2, 5]))

    def test_non_tokens_are_refused(self):
        for values in ([1.5], [True], ["a"], np.array([1.0]), np.zeros((2, 2)), [None],
                       np.zeros((2, 2), dtype=np.int64), np.array([True]), 7):
            with self.assertRaises(TypeError, msg=repr(values)):
                to_wire(values)
        for values in ([2**31], [-2**31 - 1], np.array([2**40])):
            with self.assertRaises(ValueError, msg=repr(values)):
                to_wire(values)

    def test_a_single_sequence_is_not_taken_for_several(self):
        for single in ("text", b"text", [1, 2], np.array([1, 2])):
            with self.assertRaises(TypeError, msg=repr(single)):
                score_request("", "", single)
        self.assertEqual(len(score_request("", "", [[1, 2], [3, 4]]).sequences), 2)
        self.assertEqual(len(score_request("", "", np.zeros((5, 2, 2), np.uint8)).sequences), 5)

    def test_a_single_image_is_not_taken_for_rows_of_tokens(self):
        image = np.arange(6, dtype=np.uint8).reshape(2, 3)
        with lintel.Client("localhost:1") as client:
            with self.assertRaisesRegex(TypeError, r"np\.newaxis"):
                client.score(image)

        async def same():
            async with lintel.AsyncClient("localhost:1") as client:
                await client.score(image)
        with self.assertRaisesRegex(TypeError, r"np\.newaxis"):
            asyncio.run(same())
        for several in ([image], image[np.newaxis]):
            (sequence,) = score_request("", "", several).sequences
            self.assertEqual(sequence.pixels, bytes(range(6)))
        rows = score_request("", "", image.astype(np.int64)).sequences
        self.assertEqual([list(row.tokens.ids) for row in rows], [[0, 1, 2], [3, 4, 5]])


class CompletionTest(unittest.TestCase):
    IMAGE = np.arange(10, 22, dtype=np.uint8).reshape(3, 4)

    def request(self, hidden, start_token=99, image=IMAGE):
        mask = np.zeros(image.size, dtype=bool)
        mask[list(hidden)] = True
        request = Completion(image, mask.reshape(image.shape)).request(start_token)
        return (request["prompt"].reshape(-1).tolist(), request["max_new_tokens"],
                [(at, values.reshape(-1).tolist()) for at, values in request["given"]])

    def test_known_pixels_are_prompt_or_given_and_nothing_after_the_last_hidden_one_is_sent(self):
        self.assertEqual(self.request([2, 3]), ([10, 11], 2, []))
        self.assertEqual(self.request([2, 5, 6, 9]), ([10, 11], 8, [(3, [13, 14]), (7, [17, 18])]))
        self.assertEqual(self.request([11]), (list(range(10, 21)), 1, []))

    def test_a_hidden_first_pixel_becomes_the_start_token(self):
        self.assertEqual(self.request([0, 1, 3]), ([99], 3, [(2, [12])]))
        self.assertEqual(self.request([0, 3]), ([99, 11, 12], 1, []))
        self.assertEqual(self.request([0]), ([99], 0, []))
        with self.assertRaisesRegex(ValueError, "start token"):
            self.request([0], start_token=None)

    def test_every_mask_of_a_small_image_covers_each_position_once(self):
        image = np.arange(10, 16, dtype=np.uint8).reshape(2, 3)
        for bits in range(1, 64):
            hidden = [i for i in range(6) if bits >> i & 1]
            prompt, new, given = self.request(hidden, image=image)
            known = dict(enumerate(prompt))
            for at, values in given:
                for i, value in enumerate(values):
                    self.assertNotIn(at + i, known)
                    known[at + i] = value
            self.assertEqual(len(prompt) + new, max(hidden[-1] + 1, 1))
            for i in range(len(prompt) + new):
                expected = 99 if i == 0 and 0 in hidden else None if i in hidden else 10 + i
                self.assertEqual(known.get(i), expected, (hidden, i))

    def test_a_mask_of_pixels_covers_all_channels(self):
        image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
        mask = np.array([[False, True], [False, True]])
        request = Completion(image, mask).request(None)
        self.assertEqual(request["prompt"].reshape(-1).tolist(), [0, 1, 2])
        self.assertEqual([(at, v.reshape(-1).tolist()) for at, v in request["given"]],
                         [(6, [6, 7, 8])])

    def test_arrays_of_another_kind_are_refused(self):
        image, mask = self.IMAGE, np.ones((3, 4), dtype=bool)
        for arguments in ((image.astype(float), mask), (image.reshape(-1), mask),
                          (image, mask.astype(np.uint8))):
            with self.assertRaises(TypeError):
                Completion(*arguments)
        with self.assertRaisesRegex(ValueError, r"\[2, 4\]"):
            Completion(image, mask[:2])


if __name__ == "__main__":
    unittest.main()
