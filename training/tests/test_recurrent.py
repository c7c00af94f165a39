# SPDX-License-Identifier: Apache-2.0
"""Decoding token by token gives what one pass over the sequence gives."""

import unittest

import torch

import small
from lintel_training.model import Model, initialise
from lintel_training.recurrent import Session


class RecurrentTest(unittest.TestCase):
    def check(self, model, length=23, offset=0):
        tokens = small.tokens(3, length, seed=0)
        session = Session(model, 3, length)
        with torch.no_grad():
            whole = model(tokens)
        for t in range(length):
            difference = (session.step(tokens[:, t]) - whole[:, t]).abs().max().item()
            self.assertLess(difference, 1e-4, f"position {t}: {difference}")

    def test_every_attention_and_norm_placement(self):
        for name, attention in small.ATTENTIONS.items():
            for placement in ("pre", "post"):
                with self.subTest(attention=name, placement=placement):
                    self.check(small.model(attention, norm_placement=placement))

    def test_every_embedding(self):
        for changes in ({"embedding": "value", "position_encoding": "none", "max_length": 0},
                        {"embedding": "value_concat_position"},
                        {"position_encoding": "sinusoidal"},
                        {"position_encoding": "sinusoidal", "max_length": 0}):
            with self.subTest(**changes):
                self.check(small.model({"type": "linear"}, final_norm=False, **changes))

    def test_layers_may_attend_differently(self):
        self.check(small.model([{"type": "linear"}, {"type": "softmax"}]))

    def test_a_position_offset_shifts_the_positions(self):
        model = small.model({"type": "linear"}, position_encoding="sinusoidal", max_length=0)
        tokens = small.tokens(2, 5, seed=0)
        with torch.no_grad():
            plain, moved = model(tokens), model(tokens, torch.tensor([0, 1000]))
        self.assertTrue(torch.allclose(plain[0], moved[0], atol=1e-5))
        self.assertGreater((plain[1] - moved[1]).abs().max().item(), 1e-2)

    def test_values_start_as_strong_as_the_sinusoids_beside_them(self):
        model = Model(small.config({"type": "linear"}, position_encoding="sinusoidal", max_length=0,
                                   d_model=64))
        initialise(model, 0)
        strength = model.value_embedding.weight.pow(2).mean().sqrt().item()
        position = model.pos_embedding(torch.arange(100)).pow(2).mean().sqrt().item()
        self.assertAlmostEqual(strength / position, 1.0, delta=0.2)

    def test_more_tokens_than_max_length_are_refused(self):
        with self.assertRaisesRegex(ValueError, "max_length is 40"):
            small.model({"type": "linear"})(torch.zeros(1, 41, dtype=torch.int64))


if __name__ == "__main__":
    unittest.main()
