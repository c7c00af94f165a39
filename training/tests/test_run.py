# SPDX-License-Identifier: Apache-2.0
"""Whole runs: every preset, the head, text, and what is not finite."""

import json
import unittest

import torch

import small
from lintel_training import evaluate, model_card, train
from lintel_training.config import CategoricalHead, MixtureHead
from lintel_training.curve import draw_curve
from lintel_training.export import load_model
from lintel_training.presets import PRESETS
from lintel_training.run_log import read_log
from lintel_training.sample import TEXT_SAMPLE_BYTES
from running import RunCase, quiet


class RunTest(RunCase):
    def config(self, *flags):
        args = train.make_parser().parse_args(["--out", "-", "--preset", *flags])
        return train.make_config(args)

    def test_every_image_preset_trains_and_exports(self):
        for preset in PRESETS:
            if not preset.startswith("mnist"):
                continue
            self.train(preset, "--steps", "3", "--shift-augment", "0.5", preset=preset)
            result = self.result(preset)
            self.assertEqual(result["steps"], 3)
            with quiet() as out:
                evaluate.main(["--model", self.path(preset, "model"), "--images",
                               self.path("mnist", "t10k-images-idx3-ubyte.gz"), "--json"])
            report = json.loads(out.getvalue())
            self.assertAlmostEqual(report["bits_per_dim"], result["test_bf16"], places=5)
            self.assertEqual(len(report["per_image"]), 24)

    def test_the_head_is_what_the_flags_ask_for(self):
        mixture = "--head", "mixture_of_logistics"
        for flags, mixtures in ((["mnist-linear"], 10), (["mnist-linear", "--mixtures", "3"], 3),
                                (["mnist-linear-small", *mixture], 10),
                                (["mnist-linear-small", *mixture, "--mixtures", "4"], 4)):
            self.assertEqual(self.config(*flags).head, MixtureHead(mixtures), flags)
        for flags in (["mnist-linear", "--head", "categorical"], ["mnist-linear-small"]):
            self.assertEqual(self.config(*flags).head, CategoricalHead(), flags)

    def test_a_flag_that_does_not_fit_the_architecture_is_named(self):
        for flags, text in ((["--mixtures", "4"], "--mixtures: the head is categorical"),
                            (["--chunk-size", "4"], "--chunk-size: .* linear attention"),
                            (["--head", "mixture_of_logistics", "--mixtures", "0"], "mixtures")):
            self.assertRegex(self.refusal(*flags), text)

    def test_a_loss_that_is_not_finite_is_null_in_the_log_and_left_out_of_the_curve(self):
        with quiet():
            trainer = self.trainer("run")
            for loss in (1.0, float("nan"), float("inf"), 2.0):
                trainer.log.write(step=1, loss=loss, unit="bits/dim")
            trainer.close()
        self.assertNotRegex(self.text("run", "log.jsonl"), "NaN|Infinity")
        self.assertEqual([line["loss"] for line in read_log(self.path("run"))],
                         [1.0, None, None, 2.0])
        draw_curve(self.path("run"))

    def test_an_update_with_a_gradient_that_is_not_finite_is_skipped(self):
        with quiet():
            trainer = self.trainer("skips")
            self.addCleanup(trainer.close)
            trainer._update()
            before = [p.clone() for p in trainer.parameters]
            finite = trainer.loss
            trainer.loss = lambda *batch: finite(*batch) * float("nan")
            trainer._update()
            trainer.loss = finite
        for p, q in zip(before, trainer.parameters):
            self.assertTrue(torch.equal(p, q))
        self.assertEqual(trainer.skipped.item(), 1)
        trainer._update()
        self.assertFalse(torch.equal(before[0], trainer.parameters[0]))

    def test_text_is_learned_and_sampled(self):
        text = self.write("text.txt", b"abcd" * 500)
        with quiet():
            small.run("--preset", "text-linear", "--data", text, "--out", self.path("text"),
                      "--context", "32", "--steps", "120", "--batch-size", "8", "--dropout", "0",
                      "--learning-rate", "0.02", "--d-model", "16")
        # Guessing among the four letters costs log 4 = 1.39 nats.
        self.assertLess(self.result("text")["validation"], 1.1)
        model = load_model(self.path("text", "model"))
        self.assertEqual(model.config.max_length, 0)
        model_card.main(["--run", self.path("text"), "--out", self.path("card")])
        card = self.text("card", "README.md")
        for part in ("nats/byte", f"first {TEXT_SAMPLE_BYTES} bytes", "text.txt"):
            self.assertIn(part, card)


class TextWindowsTest(unittest.TestCase):
    def test_every_byte_is_scored_once(self):
        model = small.model({"type": "linear"}, embedding="value", position_encoding="none",
                            max_length=0)
        model.predictor.weight.data.zero_()  # each byte then costs the same, in any context
        model.predictor.bias.data.zero_()
        for n in (2, 9, 10, 11, 37):
            value = evaluate.text_nats(model, torch.zeros(n, dtype=torch.uint8), 8)
            self.assertAlmostEqual(value, torch.tensor(17.0).log().item(), places=5)


if __name__ == "__main__":
    unittest.main()
