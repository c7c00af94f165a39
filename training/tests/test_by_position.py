# SPDX-License-Identifier: Apache-2.0
"""Likelihood against position: the same bytes, each at a known distance from the start of a sequence."""

import contextlib
import io
import json
import unittest

import torch

import small
from lintel_training import bpe, by_position, families
from lintel_training.export import export_model
from lintel_training.losses import categorical_nll
from lintel_training.vocabulary import encoded
from running import RunCase

TEXT = ("To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer\n" * 6).encode()
TINY = {"model_type": "rwkv7", "vocab_size": 290, "hidden_size": 16, "num_hidden_layers": 2, "head_dim": 8,
        "intermediate_size": 24, "decay_low_rank_dim": 3, "a_low_rank_dim": 4, "v_low_rank_dim": 2,
        "gate_low_rank_dim": 5}


def token_model():
    model = families.make(families.config_of(TINY)).eval()
    model.initialise(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    return model


class WindowsTest(unittest.TestCase):
    def test_ranges_double_up_to_the_length(self):
        self.assertEqual(by_position.ranges(600), [(64, 128), (128, 256), (256, 512)])
        self.assertEqual(by_position.ranges(127), [])

    def test_each_byte_is_scored_once_at_every_distance(self):
        starts = torch.arange(500)
        for first in (64, 100, 128):
            windows = by_position.windows(starts, 500, 300, first)
            self.assertEqual([i for _, score, end in windows for i in range(score, end)], list(range(200, 500)))
            for start, score, end in windows:
                self.assertEqual(score - start, first)
                self.assertLessEqual(end - start, 2 * first)


class LikelihoodTest(RunCase):
    def test_tokens_are_scored_as_one_by_one(self):
        tokenizer, model = bpe.train(TEXT.decode(), 290), token_model()
        text = encoded(tokenizer, TEXT)
        offsets = text.sizes.cumsum(0) - text.sizes
        for first in (64, 128):
            nats = size = 0
            for token in range(1, len(text.ids)):
                offset = int(offsets[token])
                if offset < len(TEXT) - 256:
                    continue
                block = (offset - (len(TEXT) - 256)) // first
                begin = len(TEXT) - 256 + block * first - first  # the possible beginning of the sequence
                start = int((offsets < begin).sum())
                with torch.no_grad():
                    outputs = model(text.ids[start:token].unsqueeze(0))
                nats += categorical_nll(outputs[0, -1:], text.ids[token:token + 1]).item()
                size += int(text.sizes[token])
            found, scored = by_position.nats_between(model, text, 256, first)
            self.assertEqual(scored, size)
            self.assertAlmostEqual(found, nats / size, 4)

    def report(self, *flags):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            by_position.main([*flags, "--text", self.write("text.txt", TEXT * 10)])
        return json.loads(out.getvalue())

    def test_models_of_tokens_and_of_bytes_are_scored_on_the_same_text(self):
        export_model(token_model(), self.path("tokens"))
        self.write("tokens/tokenizer.json", bpe.train(TEXT.decode(), 290).to_json().encode())
        model = small.model({"type": "linear"}, vocab_size=256, max_length=0, position_encoding="sinusoidal",
                            modality={"type": "bytes"})
        export_model(model, self.path("bytes"))
        for kind in ("tokens", "bytes"):
            report = self.report("--model", self.path(kind), "--length", "256", "--scored", "256")
            self.assertEqual([(p["from"], p["to"]) for p in report["positions"]], [(64, 128), (128, 256)])
            for position in report["positions"]:
                self.assertAlmostEqual(position["bytes"], 256, delta=8)
                self.assertGreater(position["nats_per_byte"], 0)

    def test_lengths_that_do_not_fit_are_refused(self):
        for flags, message in ((["--length", "100"], "--length 100: must be at least 128"),
                               (["--length", "256", "--scored", "400"],
                                "--scored 400: must be from 1 to 382, as the text has 510"),
                               (["--length", "128", "--scored", "64"], "config.json")):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
                self.report("--model", self.path("none"), *flags)
            self.assertIn(message, errors.getvalue())


if __name__ == "__main__":
    unittest.main()
