# SPDX-License-Identifier: Apache-2.0
"""Whole runs of models that are Hugging Face directories, on tokens of a text."""

import json
import os
import subprocess
import sys
import unittest

import torch

from context import TRAINING
from lintel_training import bpe, checkpoint, data, evaluate, families, model_card, train
from lintel_training.checks import ConfigError
from lintel_training.export import load_model
from lintel_training.losses import categorical_nll
from lintel_training.presets import PRESETS, Recipe
from lintel_training.run_log import read_log
from running import RunCase, quiet

TEXT = b"".join(b"the %d cats and the %d dogs, they said: we are %d!\n" % (i, i * i, i + 7) for i in range(80))
TINY = ["--n-layers", "2", "--d-model", "64", "--d-ff", "16", "--vocab-size", "270", "--context", "16",
        "--batch-size", "2", "--device", "cpu", "--log-every", "2", "--precision", "f32"]


class TokenRunTest(RunCase):
    def train(self, out, *flags, preset="text-rwkv7-small"):
        with quiet():
            train.main(["--preset", preset, "--data", self.write("text.txt", TEXT), "--out", self.path(out),
                        "--sample-count", "1", *TINY, *flags])

    def test_a_run_writes_a_directory_that_can_be_served(self):
        for preset in ("text-rwkv7-small", "text-qwen3_5-small"):
            with self.subTest(preset):
                self.train(preset, "--steps", "5", preset=preset)
                config = json.loads(self.text(preset, "model", "config.json"))
                self.assertEqual((config["num_hidden_layers"], config["vocab_size"]), (2, 270))
                model = load_model(self.path(preset, "model"))
                tokenizer = bpe.Tokenizer.from_json(self.text(preset, "model", "tokenizer.json"))
                self.assertEqual(len(tokenizer), 270)
                valid = data.split_text(TEXT)[1].decode()
                ids = torch.tensor([tokenizer.encode(valid)[:17]])
                self.assertEqual(model(ids).shape, (1, 17, 270))
                self.assertTrue(os.path.exists(self.path(preset, "samples-5.txt")))
                with quiet() as out:
                    evaluate.main(["--model", self.path(preset, "model"), "--text", self.path("text.txt"),
                                   "--context", "16"])
                report = json.loads(out.getvalue())
                self.assertAlmostEqual(report["nats_per_byte"], self.result(preset)["test_bf16"], 5)

    def test_nats_a_byte_are_the_sum_over_tokens_by_the_bytes_that_are_predicted(self):
        self.train("run", "--steps", "2")
        model = load_model(self.path("run", "model"))
        tokenizer = bpe.Tokenizer.from_json(self.text("run", "model", "tokenizer.json"))
        valid = data.split_text(TEXT)[1]
        ids = torch.tensor(tokenizer.encode(valid.decode()))
        with torch.no_grad():
            nats = torch.nn.functional.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="sum").item()
        expected = nats / (len(valid) - len(tokenizer.tokens[ids[0]]))
        with quiet() as out:
            evaluate.main(["--model", self.path("run", "model"), "--text", self.path("text.txt"),
                           "--context", "100000"])
        self.assertAlmostEqual(json.loads(out.getvalue())["nats_per_byte"], expected, 4)

    def test_training_lowers_the_loss(self):
        self.train("run", "--steps", "60", "--learning-rate", "0.01", "--warmup-steps", "5", "--log-every", "20")
        losses = [line["loss"] for line in read_log(self.path("run")) if "loss" in line]
        self.assertLess(losses[-1], 0.6 * losses[0])

    def test_a_resumed_run_has_the_same_weights_to_the_bit(self):
        flags = ["--steps", "9", "--dropout", "0.1", "--validations", "0"]
        self.train("straight", *flags)
        self.train("stopped", *flags, "--stop-after", "4")
        self.train("stopped", *flags)
        straight, stopped = (checkpoint.load(self.path(d)) for d in ("straight", "stopped"))
        for name, tensor in straight["average"].items():
            self.assertTrue(torch.equal(tensor, stopped["average"][name]), name)
        for one, other in zip(straight["carried"], stopped["carried"]):
            self.assertTrue(torch.equal(one, other))

    def test_another_run_of_the_same_architecture_can_start_from_the_model(self):
        self.train("first", "--steps", "2")
        first = self.path("first", "model")
        self.train("second", "--steps", "1", "--learning-rate", "1e-9", "--init-from", first)
        for one, other in zip(load_model(first).parameters(), load_model(self.path("second", "model")).parameters()):
            self.assertLess((one - other).abs().max().item(), 1e-4 + 0.01 * one.abs().max().item())
        with self.assertRaisesRegex(ValueError, "cannot start this model: its config.json differs"):
            self.train("third", "--steps", "1", "--n-layers", "1", "--init-from", first)

    def test_the_model_card_states_tokens_and_how_to_repeat(self):
        self.train("run", "--steps", "3", "--dropout", "0.3")
        model_card.main(["--run", self.path("run"), "--out", self.path("card"), "--copy-model"])
        text = self.text("card", "README.md")
        result = self.result("run")
        for part in (f"{result['test_bf16']:.4f}", "--dropout 0.3", "--d-model 64", "--vocab-size 270",
                     "RWKV-7, 2 layers, 1 heads of 64", f"{result['data']['train']['tokens']:,} tokens"):
            self.assertIn(part, text)
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
            self.assertTrue(os.path.exists(self.path("card", name)), name)

    def test_a_text_is_drawn_from_a_prompt(self):
        self.train("run", "--steps", "2")
        command = [sys.executable, "-m", "lintel_training.sample", "--model", self.path("run", "model"), "--prompt",
                   "the cats", "--length", "30"]
        text = subprocess.run(command, cwd=TRAINING, capture_output=True, check=True).stdout
        self.assertTrue(text.startswith(b"the cats"))
        self.assertGreater(len(text), 30)

    def test_flags_that_make_no_sense_are_refused(self):
        path = self.write("text.txt", TEXT)
        for flags, message in ((["--lora-rank", "2", "--init-from", "x"], "--lora-rank: the preset is a model of"),
                               (["--n-heads", "2"], "--n-heads: not for rwkv7")):
            errors = self.refusal("--preset", "text-rwkv7-small", "--data", path, *flags)
            self.assertIn(message, errors)
        self.assertIn("--vocab-size: the preset is a model of pixels", self.refusal("--vocab-size", "300"))
        with self.assertRaisesRegex(ValueError, "text.txt: vocab_size: 100000, but the text has pairs for"):
            self.train("never", "--vocab-size", "100000")


class PresetTest(unittest.TestCase):
    def test_a_model_starts_with_a_loss_near_that_of_a_uniform_guess(self):
        for name in ("text-rwkv7-small", "text-qwen3_5-small"):
            data = families.overridden(PRESETS[name].config, {"n_layers": 2, "vocab_size": 300})
            model = families.make(families.config_of(data))
            model.initialise(0)
            text = torch.randint(0, 300, (2, 40), generator=torch.Generator().manual_seed(0))
            loss = categorical_nll(model(text[:, :-1]), text[:, 1:]).mean().item()
            self.assertLess(abs(loss - torch.tensor(300.0).log().item()), 0.5)

    def test_presets_are_configurations_that_flags_change(self):
        data = families.overridden(PRESETS["text-rwkv7-small"].config, {"d_model": 128})
        self.assertEqual((data["hidden_size"], data["num_heads"]), (128, 2))
        with self.assertRaisesRegex(ConfigError, "--n-heads: not for rwkv7"):
            families.overridden(PRESETS["text-rwkv7-small"].config, {"n_heads": 2})
        json.dumps(data)


class BatchesTest(unittest.TestCase):
    def test_windows_of_a_row_follow_each_other(self):
        ids = torch.arange(100)
        recipe = Recipe(batch_size=2, context=7, carry=True)
        batches = data.token_batches(ids, recipe, "cpu")
        self.assertEqual(batches.batches_per_epoch, 7)
        before, later = None, 0
        for i in range(14):
            inputs, targets, begins = batches.batch(i)
            self.assertTrue(torch.equal((inputs + 1) % 100, targets))
            if i % 7 == 0:
                self.assertTrue(begins.all())
            else:
                self.assertTrue(torch.equal(inputs[:, 0], before))
                later += int(begins.sum())
            before = targets[:, -1]
            self.assertEqual((inputs[1, 0] - inputs[0, 0]) % 100, 50)
        self.assertLess(later, 12)
        again = data.token_batches(ids, recipe, "cpu").batch(9)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(again, batches.batch(9))))

    def test_windows_without_a_carried_state_begin_a_text_each(self):
        batches = data.token_batches(torch.arange(100), Recipe(batch_size=2, context=7), "cpu")
        inputs, targets, begins = batches.batch(3)
        self.assertIsNone(begins)
        self.assertTrue(torch.equal(inputs + 1, targets))

    def test_a_text_that_fills_no_window_is_refused(self):
        for carry in (True, False):
            with self.assertRaisesRegex(ValueError, "14 .*text do not fill"):
                data.token_batches(torch.arange(14), Recipe(batch_size=2, context=14, carry=carry), "cpu")


if __name__ == "__main__":
    unittest.main()
