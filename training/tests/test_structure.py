# SPDX-License-Identifier: Apache-2.0
"""Layers that share weights, take positions and steps at each layer, or are reversible."""

import unittest

import torch

import small
from lintel_training.config import ConfigError, ModelConfig
from lintel_training.model import Model
from lintel_training.recurrent import Session

CHANGES = (
    {"n_layers": 4, "layer_weights": [0, 1, 0, 1]},
    {"n_layers": 3, "layer_weights": [0, 0, 0], "position_injection": "every_layer",
     "step_embedding": True},
    {"residual": "reversible_mean", "step_embedding": True, "position_injection": "every_layer"},
    {"residual": "reversible_concat", "n_layers": 3, "layer_weights": [0, 0, 1]},
    {"residual": "reversible_concat", "final_norm": False},
)


def tokens_of(seed=2):
    return small.tokens(2, 30, seed)


class StructureTest(unittest.TestCase):
    def test_steps_compute_what_the_parallel_form_does(self):
        for changes in CHANGES:
            for attention in ("linear", "softmax"):
                with self.subTest(attention, **changes), torch.no_grad():
                    model, tokens = small.model({"type": attention}, **changes), tokens_of()
                    session = Session(model, 2, 30)
                    steps = torch.stack([session.step(t) for t in tokens.unbind(1)], 1)
                    self.assertLess((steps - model(tokens)).abs().max(), 1e-4)

    def test_shared_layers_are_copies(self):
        shared = small.model({"type": "softmax"}, n_layers=4, layer_weights=[0, 1, 0, 1])
        copies = Model(small.config({"type": "softmax"}, n_layers=4)).eval()
        tensors = shared.state_dict()
        for name, tensor in list(tensors.items()):
            for u in (0, 1):
                start = f"transformer.layers.{u}."
                if name.startswith(start):
                    tensors[f"transformer.layers.{u + 2}.{name[len(start):]}"] = tensor
        copies.load_tensors(tensors)
        with torch.no_grad():
            self.assertTrue(torch.equal(shared(tokens_of()), copies(tokens_of())))

    def test_what_is_added_at_each_layer_matters(self):
        base = small.model({"type": "linear"}, step_embedding=True, position_injection="every_layer")
        with torch.no_grad():
            whole = base(tokens_of())
            for change in ({"position_injection": "input"}, {"step_embedding": False}):
                other = Model(small.config({"type": "linear"}, **{
                    "step_embedding": True, "position_injection": "every_layer", **change})).eval()
                other.load_state_dict(base.state_dict(), strict=False)
                self.assertGreater((other(tokens_of()) - whole).abs().max(), 1e-3, change)

    def test_a_reversible_layer_is_its_equations(self):
        model = small.model({"type": "softmax"}, residual="reversible_concat", n_layers=2)
        with torch.no_grad():
            tokens = tokens_of()
            rows = model.positions(30)
            x1 = x2 = model.embed(tokens, rows)
            for layer in model.transformer.layers:
                x1 = x1 + layer.attention(layer.norm1(x2))
                x2 = x2 + layer.feed_forward(layer.norm2(x1))
            x = model.transformer.norm(torch.cat([x1, x2], -1))
            self.assertEqual(list(x.shape), [2, 30, 24])
            self.assertLess((model.predictor(x) - model(tokens)).abs().max(), 1e-5)

    def test_gradients_reach_all_weights(self):
        for changes in CHANGES:
            for checkpointing in (False, True):
                model = Model(small.config({"type": "linear"}, **changes), checkpointing=checkpointing)
                model.load_state_dict(small.model({"type": "linear"}, **changes).state_dict())
                model.train()(tokens_of()).square().mean().backward()
                for name, p in model.named_parameters():
                    self.assertTrue(torch.isfinite(p.grad).all(), (changes, name))

    def test_what_does_not_go_together_is_named(self):
        lists = [{"type": "linear"}, {"type": "softmax"}]
        for changes, text in (
                ({"layer_weights": [0]}, "layer_weights: 1 entries for 2 layers"),
                ({"layer_weights": [1, 0]}, r"layer_weights\[0\]: is 1, .*from 0 to 0"),
                ({"layer_weights": [0, 2]}, r"layer_weights\[1\]: is 2, .*from 0 to 1"),
                ({"layer_weights": [0, True]}, r"layer_weights\[1\]: is True"),
                ({"layer_weights": 2}, "layer_weights: not a list"),
                ({"layer_weights": [0, 0], "attention": lists}, r"attention\[1\]: is not that"),
                ({"residual": "reversible_mean", "norm_placement": "post"}, 'norm_placement "pre"'),
                ({"residual": "mean"}, "residual"), ({"step_embedding": 1}, "step_embedding"),
                ({"trained_length": 0}, "trained_length"), ({"trained_length": 2.0}, "trained_length"),
                ({"position_injection": "every_layer", "embedding": "value_concat_position"},
                 "value_add_position")):
            with self.subTest(**changes), self.assertRaisesRegex(ConfigError, text):
                small.config(**{"attention": {"type": "linear"}, **changes})

    def test_keys_that_change_nothing_are_left_out(self):
        config = small.config({"type": "linear"}, layer_weights=[0, 1], position_injection="input",
                              step_embedding=False, residual="sum")
        self.assertEqual(config, small.config({"type": "linear"}))
        self.assertFalse({"layer_weights", "residual", "trained_length"} & set(config.to_dict()))

    def test_what_it_was_trained_on_is_written_and_read(self):
        config = small.config({"type": "linear"}, trained_length=256)
        self.assertEqual(config.to_dict()["trained_length"], 256)
        self.assertEqual(ModelConfig.from_dict(config.to_dict()), config)


if __name__ == "__main__":
    unittest.main()
