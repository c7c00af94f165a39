# SPDX-License-Identifier: Apache-2.0
"""Byte-pair encoding: ids as the reference library has them, and vocabularies of our own."""

import contextlib
import io
import json
import os
import tempfile
import unittest

from context import REPOSITORY
from lintel_training import bpe

GOLDEN = os.path.join(REPOSITORY, "tests", "golden", "tokenizers")
TEXT = "the cat, the cats and the hats: théâtre 42 times\n  and\tthe rest, isn't it?\n\n" * 3


def read(*names):
    with open(os.path.join(*names), encoding="utf-8") as file:
        return file.read()


class BpeTest(unittest.TestCase):
    def test_ids_of_texts_are_those_of_the_reference(self):
        tokenizer = bpe.Tokenizer.from_json(read(GOLDEN, "byte-level", "tokenizer.json"))
        cases = [case for case in json.loads(read(GOLDEN, "byte-level", "golden.json"))["encode"]
                 if not case.get("special")]
        self.assertGreater(len(cases), 15)
        for case in cases:
            self.assertEqual(tokenizer.encode(case["text"]), case["ids"], case["text"][:80])
            self.assertEqual(tokenizer.decode(case["ids"]).decode(), case["text"])

    def test_pieces_are_words_with_their_space_numbers_and_the_rest(self):
        for text, pieces in (("I'm here  now.\n", ["I", "'m", " here", " ", " now", ".", "\n"]),
                             ("  \n x", ["  \n", " x"]), ("a1b 23, !?", ["a", "1", "b", " 23", ",", " !?"]),
                             ("x \x1fy\u2003z", ["x", " \x1f", "y", "\u2003", "z"]),
                             ("é ², ", ["é", " ²", ",", " "])):
            self.assertEqual(bpe.split(text), pieces)

    def test_the_most_frequent_pairs_are_joined_first(self):
        tokenizer = bpe.train("ab ab ab abc abc xyz", 260)
        self.assertEqual(tokenizer.tokens[256:], [b"ab", b" ab", b" abc", b"xy"])

    def test_of_equal_pairs_the_lower_ids_come_first(self):
        self.assertEqual(bpe.train("cd ab", 259).tokens[256:], [b"ab", b"cd", b" ab"])

    def test_any_text_is_encoded_and_decoded(self):
        tokenizer = bpe.train(TEXT, 290)
        for text in (TEXT, "", "日本\U0001f600", "\x00\x7f\x85", "isn't 'sure'"):
            ids = tokenizer.encode(text)
            self.assertEqual(tokenizer.decode(ids).decode(), text)
        self.assertLess(len(tokenizer.encode(TEXT)), 0.6 * len(TEXT.encode()))

    def test_a_written_tokenizer_is_read_as_it_was(self):
        tokenizer = bpe.train(TEXT, 290)
        again = bpe.Tokenizer.from_json(tokenizer.to_json())
        self.assertEqual((again.merges, again.tokens), (tokenizer.merges, tokenizer.tokens))

    def test_another_kind_of_tokenizer_is_refused(self):
        for name in ("byte-fallback", "world-wordpiece"):
            with self.assertRaisesRegex(ValueError, "no byte-level BPE"):
                bpe.Tokenizer.from_json(read(GOLDEN, name, "tokenizer.json"))
        data = json.loads(bpe.train(TEXT, 290).to_json())
        data["model"]["merges"].reverse()
        with self.assertRaisesRegex(ValueError, "merge 0 makes id 289, expected 256"):
            bpe.Tokenizer.from_json(json.dumps(data))

    def test_a_size_that_cannot_be_reached_is_refused(self):
        with self.assertRaisesRegex(ValueError, "vocab_size: is 255, must be from 256 to"):
            bpe.train("ab", 255)
        with self.assertRaisesRegex(ValueError, "vocab_size: 300, but the text has pairs for 258 only"):
            bpe.train("ab ab", 300)

    def test_the_command_writes_a_file(self):
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()) as out:
            text, path = os.path.join(directory, "text.txt"), os.path.join(directory, "tokenizer.json")
            with open(text, "w", encoding="utf-8") as file:
                file.write(TEXT)
            bpe.main(["--text", text, "--vocab-size", "290", "--out", path])
            self.assertEqual(len(bpe.Tokenizer.from_json(read(path))), 290)
            self.assertRegex(out.getvalue(), "290 ids, [0-9.]+ bytes a token")


if __name__ == "__main__":
    unittest.main()
