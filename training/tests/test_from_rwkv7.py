# SPDX-License-Identifier: Apache-2.0
"""RWKV-7 as its author publishes it: converted, it is the directory that transformers has."""

import json
import os
import tempfile
import unittest

import torch

import context
import convert_checkpoint
import converting
from lintel_training import from_rwkv7, safetensors_io
from lintel_training.export import load_model
from test_foreign import Attack

GOLDEN = os.path.join(context.REPOSITORY, "tests", "golden")
OFFICIAL = os.path.join(GOLDEN, "families", "rwkv7-official")
WORLD = os.path.join(GOLDEN, "tokenizers", "world", from_rwkv7.WORLD)
EPS = ("--layer-norm-eps", "2e-5")


def official_tensors():
    return safetensors_io.load(os.path.join(OFFICIAL, "model.safetensors"))


def published():
    """The reference vectors' model as its author would save it."""
    return {name.removeprefix("rwkv7."): tensor for name, tensor in official_tensors().items()}


class Rwkv7Test(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())
        self.path, self.out = self.at("model.pth"), self.at("out")

    def at(self, name):
        return os.path.join(self.directory, name)

    def convert(self, state, *flags):
        """(exit status, standard error)."""
        torch.save(state, self.path)
        return converting.run(convert_checkpoint, self.path, "--out", self.out, *flags)

    def refusal(self, state, *flags):
        status, errors = self.convert(state, *flags)
        self.assertEqual(status, 1)
        self.assertFalse(os.path.exists(self.out))
        return errors

    def converted(self):
        return safetensors_io.load(os.path.join(self.out, "model.safetensors"))

    def config(self):
        with open(os.path.join(self.out, "config.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_tensors_and_sizes_are_those_of_the_official_directory(self):
        self.assertEqual(self.convert(published(), *EPS), (0, ""))
        official, found = official_tensors(), self.converted()
        self.assertEqual(sorted(found), sorted(official))
        for name, tensor in official.items():
            self.assertEqual((found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertTrue(torch.equal(found[name].view(torch.int16), tensor.view(torch.int16)), name)
        with open(os.path.join(OFFICIAL, "config.json"), encoding="utf-8") as file:
            theirs = json.load(file)
        for key, value in self.config().items():
            self.assertEqual(value, theirs[key], key)
        with open(os.path.join(self.out, "model.safetensors"), "rb") as file:
            self.assertIn(b'"__metadata__":{"format":"pt"}', file.read(200))

    def test_the_result_computes_the_reference_vectors(self):
        self.assertEqual(self.convert(published(), *EPS), (0, ""))
        golden = safetensors_io.load(os.path.join(OFFICIAL, "golden.safetensors"))
        with torch.no_grad():
            outputs = load_model(self.out)(golden["tokens"].long())
        self.assertLess((outputs - golden["outputs"]).abs().max().item(), 5e-5)

    def test_heads_of_another_width_keep_the_norm_of_the_author(self):
        # Heads of 32, of which the directory's norm adds half of 64e-5: receptance and r_k make up for it.
        self.assertEqual(self.convert(published()), (0, ""))
        self.assertEqual(self.config()["norm_eps"], 1e-5)
        found = self.converted()
        for name, tensor in official_tensors().items():
            factor = {"att.receptance.weight": 0.5 ** 0.5, "att.r_k": 2 ** 0.5}.get(name.split(".", 3)[-1])
            if factor is None:
                self.assertEqual(found[name].dtype, tensor.dtype, name)
                self.assertTrue(torch.equal(found[name], tensor), name)
            else:
                self.assertEqual(found[name].dtype, torch.float32, name)
                torch.testing.assert_close(found[name], tensor.float() * factor)

    def test_a_power_of_two_keeps_the_type(self):
        scaled = from_rwkv7._scaled(torch.tensor([1.5], dtype=torch.bfloat16), 0.5)
        self.assertEqual((scaled.dtype, scaled.item()), (torch.bfloat16, 0.75))
        self.assertEqual(from_rwkv7._scaled(torch.tensor([1.5], dtype=torch.bfloat16), 0.7).dtype, torch.float32)

    def test_a_type_can_be_chosen(self):
        self.assertEqual(self.convert(published(), "--dtype", "f32"), (0, ""))
        self.assertEqual({t.dtype for t in self.converted().values()}, {torch.float32})
        self.assertEqual(self.config()["dtype"], "float32")

    def test_vectors_without_leading_ones_and_an_unused_first_value_are_taken(self):
        state = {name: tensor.squeeze() if tensor.dim() == 3 else tensor for name, tensor in published().items()
                 if name not in ("blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2")}
        self.assertEqual(self.convert(state), (0, ""))
        self.assertEqual(self.converted()["rwkv7.blocks.1.att.x_r"].shape, (1, 1, 64))
        self.assertNotIn("rwkv7.blocks.0.att.v1", self.converted())
        self.assertEqual(self.config()["v_low_rank_dim"], 4)

    def test_the_tokenizer_is_copied(self):
        self.assertIn("vocab_size", self.config_after("--tokenizer", self.world(79)))
        with open(os.path.join(self.out, from_rwkv7.WORLD), "rb") as copy, open(self.world(79), "rb") as file:
            self.assertEqual(copy.read(), file.read())
        self.assertTrue(from_rwkv7.world_vocabulary(WORLD, 65536))

    def config_after(self, *flags):
        self.assertEqual(self.convert(published(), *flags), (0, ""))
        return self.config()

    def world(self, last):
        """A file of World's form with ids up to `last`, in which a text may hold a line's end as a code point."""
        with open(self.at("world.txt"), "w", encoding="utf-8", newline="\n") as file:
            file.write("".join(f"{i} '{chr(0x85)}{i}' 3\n" for i in range(1, last)) + f"{last} b'\\xff' 1\n")
        return self.at("world.txt")

    def test_a_file_that_is_no_tokenizer_of_the_model_is_refused(self):
        self.assertIn("world.txt: line 80: found id 80, expected less than the model's vocabulary of 80",
                      self.refusal(published(), "--tokenizer", self.world(80)))
        with open(self.at("other.json"), "w", encoding="utf-8") as file:
            file.write('{"version": "1.0"}')
        self.assertIn("""other.json: line 1: found '{"version": "1.0"}', expected an id, a quoted text""",
                      self.refusal(published(), "--tokenizer", self.at("other.json")))
        self.assertIn("none.txt", self.refusal(published(), "--tokenizer", self.at("none.txt")))
        errors = self.refusal({"predictor.weight": torch.zeros(2, 2)}, "--tokenizer", WORLD)
        self.assertIn("--tokenizer: is for RWKV-7", errors)

    def test_tensors_that_do_not_fit_are_named_with_what_was_expected(self):
        for name, tensor, message in (
                ("blocks.1.att.w1", torch.zeros(64, 9), "blocks.1.att.w1: has [64, 9], expected [64, 8]"),
                ("blocks.2.att.v0", None, "blocks.2.att.v0: missing, expected [1, 1, 64]"),
                ("blocks.2.s_emb.weight", torch.zeros(3), "blocks.2.s_emb.weight: [3] is not part of the model"),
                ("blocks.1.att.k_a", torch.full((64,), torch.nan), "blocks.1.att.k_a: [1, 1, 64] holds a value"),
                ("emb.weight", None, "emb.weight: missing, and needed to tell the sizes of RWKV-7; found 1"),
                ("emb.weight", torch.zeros(80), "emb.weight: has [80], expected 2 dimensions"),
                ("blocks.0.att.r_k", torch.zeros(2, 33), "blocks.0.att.r_k: has heads of 33, expected a divisor"),
                ("blocks.5.ln1.weight", torch.zeros(64), "blocks.3.ln1.weight: missing"),
                ("blocks.0.att.time_decay", torch.zeros(64), "blocks.0.att.time_decay: found a tensor of RWKV-6")):
            with self.subTest(name):
                state = published()
                if tensor is None:
                    del state[name]
                else:
                    state[name] = tensor
                self.assertIn(message, self.refusal(state))

    def test_a_number_too_large_for_the_type_is_refused(self):
        state = published()
        state["blocks.0.ffn.key.weight"] = torch.full((160, 64), 1e6)
        self.assertIn("blocks.0.ffn.key.weight: [160, 64] holds a value that is not finite",
                      self.refusal(state, "--dtype", "f16"))

    def test_another_number_of_heads_is_refused(self):
        self.assertIn("--heads 3: blocks.0.att.r_k has 2 heads", self.refusal(published(), "--heads", "3"))

    def test_code_in_a_file_is_not_run(self):
        made = self.at("made")
        errors = self.refusal({**published(), "more": Attack(made)})
        self.assertRegex(errors, "more: is a .*mkdir, which is no plain tensor")
        self.assertEqual(self.convert({"model": published(), "more": Attack(made)}), (0, ""))
        self.assertFalse(os.path.exists(made))
        self.convert({"model": published(), "more": Attack(made)}, "--trust")  # it was worth the test
        self.assertTrue(os.path.exists(made))


if __name__ == "__main__":
    unittest.main()
