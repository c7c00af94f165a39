# SPDX-License-Identifier: Apache-2.0
"""Larger models that start as smaller ones."""

import os
import tempfile
import unittest

import torch

import small
from lintel_training.export import export_model, start_from
from lintel_training.grow import grown
from lintel_training.model import Model, initialise

# Sizes larger than the small model's, see small.config.
WIDER = {"d_model": 24, "n_heads": 4, "d_ff": 60}
DEEPER = {"n_layers": 5}


class GrowTest(unittest.TestCase):
    def started(self, source, **changes):
        """A model of `changes` that starts from `source` as a model directory."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model")
            export_model(source, path, "f32")
            out = Model(small.config(**changes)).eval()
            initialise(out, 3)
            start_from(out, path)
        return out

    def outputs(self, model):
        tokens = small.tokens(3, 40, seed=5)
        with torch.no_grad():
            return model(tokens)

    def test_a_larger_model_starts_with_what_the_smaller_one_computes(self):
        for changes in (WIDER, DEEPER, {**WIDER, **DEEPER}, {"d_ff": 40},
                        {**WIDER, "activation": "gelu", "final_norm": False}):
            base = {k: v for k, v in changes.items() if k in ("activation", "final_norm")}
            for attention in ("linear", "softmax"):
                source = small.model(small.ATTENTIONS[attention], **base)
                larger = self.started(source, attention=small.ATTENTIONS[attention], **changes)
                difference = (self.outputs(source) - self.outputs(larger)).abs().max().item()
                self.assertLess(difference, 2e-4, f"{attention} {changes}")

    def test_every_copy_gets_a_gradient_of_its_own(self):
        larger = self.started(small.model(small.ATTENTIONS["linear"]),
                              attention=small.ATTENTIONS["linear"], **WIDER)
        larger(torch.arange(16)[None]).square().mean().backward()
        for name in ("value_projection.weight", "query_projection.weight", "out_projection.weight"):
            g = dict(larger.named_parameters())[f"transformer.layers.0.attention.{name}"].grad
            first, second = g.chunk(2, 0)
            self.assertGreater((first - second).abs().max(), 0.1 * g.abs().max(), name)

    def test_the_other_attention_and_head_may_differ_while_it_grows(self):
        source = small.model(small.ATTENTIONS["linear"], vocab_size=256)
        larger = self.started(source, attention=small.ATTENTIONS["lsh"], vocab_size=256, **WIDER,
                              **DEEPER, head={"type": "mixture_of_logistics", "mixtures": 4})
        self.assertTrue(torch.isfinite(self.outputs(larger)).all())
        self.assertTrue(torch.equal(larger.value_embedding.weight[:, :12],
                                    source.value_embedding.weight))

    def test_hash_planes_of_another_number_of_rounds_are_not_taken(self):
        source = small.model(small.ATTENTIONS["lsh"])
        more = self.started(source, attention={**small.ATTENTIONS["lsh"], "rounds": 3})
        planes = more.state_dict()["transformer.layers.0.attention.inner_attention.planes"]
        self.assertEqual(list(planes.shape), [3, 3, 8])
        self.assertTrue(planes.abs().max() > 0)

    def test_what_cannot_grow_is_named(self):
        linear = small.ATTENTIONS["linear"]
        source = small.model(linear)
        for changes, text in (({"d_model": 18}, "d_model 18 is not a multiple of 12"),
                              ({"n_layers": 1}, "n_layers 1 are fewer than 2"),
                              ({"d_model": 24, "d_head": 4}, "query_projection.weight: has")):
            with self.assertRaisesRegex(ValueError, text):
                self.started(source, attention=linear, **changes)
        shared = {"layer_weights": [0, 0, 0, 0, 0]}
        with self.assertRaisesRegex(ValueError, r"layer_weights is \(0, 0, 0, 0, 0\)"):
            self.started(source, attention=linear, **DEEPER, **shared)
        post = small.config(linear, norm_placement="post")
        with self.assertRaisesRegex(ValueError, "norm_placement pre only"):
            grown(small.model(linear, norm_placement="post").state_dict(), post,
                  small.config(linear, norm_placement="post", **DEEPER))
        waves = {"position_encoding": "sinusoidal"}
        with self.assertRaisesRegex(ValueError, "learned or no positions only"):
            grown(small.model(linear, **waves).state_dict(), small.config(linear, **waves),
                  small.config(linear, **waves, **WIDER))


if __name__ == "__main__":
    unittest.main()
