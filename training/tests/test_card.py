# SPDX-License-Identifier: Apache-2.0
"""Model cards: what they state, and that their commands train what they stand beside."""

import glob
import json
import os
import re
import shlex
import unittest

from context import TRAINING
from lintel_training import model_card, train
from lintel_training.export import load_model
from running import RunCase


class CardOfARunTest(RunCase):
    def test_the_model_card_states_figures_and_how_to_repeat(self):
        self.train("run", "--steps", "3", "--dropout", "0.3")
        model_card.main(["--run", self.path("run"), "--out", self.path("card"), "--copy-model"])
        text = self.text("card", "README.md")
        for part in (f"{self.result('run')['test_bf16']:.4f}", "--dropout 0.3", "--d-model 8",
                     "--limit-test 24",
                     "SHA-256", "seed 0"):
            self.assertIn(part, text)
        load_model(self.path("card"))


class CardTest(unittest.TestCase):
    def check_files(self, args, model, directory):
        """The files beside a card are of the model, or its adapter, that the flags train."""
        config = os.path.join(os.path.dirname(TRAINING), "weights", model, "config.json")
        with open(config, encoding="utf-8") as file:
            self.assertEqual(train.make_config(args).to_dict(), json.load(file))
        adapter = os.path.join(directory, "adapter_config.json")
        self.assertEqual(args.lora_rank is not None, os.path.exists(adapter))
        if args.lora_rank is not None:
            self.assertEqual(os.path.basename(args.init_from), model)
            with open(adapter, encoding="utf-8") as file:
                given = json.load(file)
            self.assertEqual((given["r"], given["lora_alpha"], given["base_model_name_or_path"]),
                             (args.lora_rank, args.lora_alpha, model))
            load_model(os.path.dirname(config), adapter=directory)

    def test_the_commands_of_all_cards_train_what_they_stand_beside(self):
        weights = os.path.join(os.path.dirname(TRAINING), "weights")
        found = 0
        pages = glob.glob(os.path.join(weights, "*", "README.md"))
        adapters = glob.glob(os.path.join(weights, "*", "adapters", "*", "README.md"))
        for page in sorted(pages + adapters):
            name = os.path.relpath(os.path.dirname(page), weights)
            with open(page, encoding="utf-8") as file:
                text = file.read()
            for block in re.findall(r"```sh\n(python3 -m lintel_training\.train .*?)```", text, re.S):
                found += 1
                with self.subTest(name):
                    lines = block.replace("\\\n", " ").strip().splitlines()
                    self.assertEqual(len(lines), 1, "one command")
                    args = train.make_parser().parse_args(shlex.split(lines[0])[3:])
                    self.check_files(args, name.split(os.sep)[0], os.path.join(weights, name))
                    count = re.search(r"- test: ([0-9,]+) images", text)
                    if count:
                        self.assertEqual(args.limit_test, int(count[1].replace(",", "")))
                    if args.init_from:
                        self.assertTrue(os.path.isdir(os.path.join(TRAINING, args.init_from)))
        self.assertGreaterEqual(found, 6)


if __name__ == "__main__":
    unittest.main()
