# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: what they compute, their files, and runs that learn one."""

import gzip
import json
import os
import struct
import tempfile
import unittest

import numpy as np
import torch

import small
from context import REPOSITORY
from lintel_training import evaluate, model_card, safetensors_io
from lintel_training.adapter_files import load_adapter, save_adapter
from lintel_training.checkpoint import load as load_checkpoint
from lintel_training.export import load_model
from lintel_training.lora import MODULES, adapt, without_adapter
from lintel_training.selection import parse_labels, stroke_width
from running import RunCase, quiet

GOLDEN = os.path.join(REPOSITORY, "tests", "golden", "zoo", "lora")
TOKENS = small.tokens(2, 30, seed=2)


def numpy_forward(tensors, config, tokens, adapter=None, scaling=0.0):
    """The model of small.config, with linear attention, from its definition, in float64: [N] -> [N, O]."""
    tensors = {name: t.double().numpy() for name, t in tensors.items()}
    adapter = {name: t.double().numpy() for name, t in (adapter or {}).items()}

    def linear(path, x):
        y = x @ tensors[path + ".weight"].T + tensors[path + ".bias"]
        a = adapter.get(f"base_model.model.{path}.lora_A.weight")
        if a is None:
            return y
        return y + scaling * (x @ a.T) @ adapter[f"base_model.model.{path}.lora_B.weight"].T

    def norm(path, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.layer_norm_eps)
        return x * tensors[path + ".weight"] + tensors[path + ".bias"]

    def phi(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    def attention(path, x):
        q, k, v = (linear(f"{path}.{name}_projection", x).reshape(len(x), config.n_heads, -1)
                   for name in ("query", "key", "value"))
        weights = np.tril(np.einsum("thd,shd->hts", phi(q), phi(k)))
        out = np.einsum("hts,shd->thd", weights, v) / (weights.sum(-1).T[..., None] + 1e-6)
        return linear(path + ".out_projection", out.reshape(len(x), -1))

    x = tensors["value_embedding.weight"][tokens] + tensors["pos_embedding.pe"][0, :len(tokens)]
    for i in range(config.n_layers):
        path = f"transformer.layers.{i}"
        x = x + attention(path + ".attention", norm(path + ".norm1", x))
        hidden = np.maximum(linear(path + ".linear1", norm(path + ".norm2", x)), 0)
        x = x + linear(path + ".linear2", hidden)
    return linear("predictor", norm("transformer.norm", x))


def adapted(modules=MODULES, rank=3, scaling=0.5):
    """A small model with an adapter that has learnt something."""
    model = small.model({"type": "linear"})
    adapt(model, rank, scaling, modules)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".lora_" in name:
                p += 0.3 * torch.randn(p.shape, generator=generator)
    return model


class LoraTest(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())

    def test_an_exported_adapter_and_its_base_are_the_model_in_training(self):
        for modules in (MODULES, ("query_projection", "linear2")):
            model = adapted(modules)
            save_adapter(model, self.directory, alpha=1.5)
            given = safetensors_io.load(os.path.join(self.directory, "adapter_model.safetensors"))
            base = small.model({"type": "linear"})
            with torch.no_grad():
                expected = model(TOKENS)
            for row, outputs in zip(TOKENS, expected):
                mine = numpy_forward(base.state_dict(), base.config, row.numpy(), given, 0.5)
                self.assertLess(np.abs(mine - outputs.double().numpy()).max(), 1e-4)
            load_adapter(base, self.directory)
            with torch.no_grad():
                self.assertTrue(torch.equal(base(TOKENS), expected))

    def test_a_new_adapter_changes_nothing_and_without_one_the_model_is_the_base(self):
        base = small.model({"type": "softmax"})
        fresh = small.model({"type": "softmax"})
        adapt(fresh, 2, 1.0)
        changed = adapted()
        with torch.no_grad():
            self.assertTrue(torch.equal(fresh(TOKENS), base(TOKENS)))
            with without_adapter(changed):
                off = changed(TOKENS)
            self.assertTrue(torch.equal(off, small.model({"type": "linear"})(TOKENS)))
            self.assertGreater((changed(TOKENS) - off).abs().max(), 0.1)

    def test_only_maps_that_are_read_and_named_learn(self):
        model = small.model(small.ATTENTIONS["lsh"])  # its keys are stored and not read
        paths = adapt(model, 2, 1.0, ("key_projection", "query_projection", "linear1"))
        self.assertEqual(len(paths), 4)
        self.assertFalse([p for p in paths if "key_projection" in p])
        learns = {name for name, p in model.named_parameters() if p.requires_grad}
        self.assertEqual(learns, {f"{p}.lora_{half}.weight" for p in paths for half in "AB"})

    def test_files_have_the_names_and_keys_of_peft(self):
        model = adapted(MODULES[:-1], rank=2)
        save_adapter(model, self.directory, alpha=3, base_name="small")
        with open(os.path.join(self.directory, "adapter_config.json"), encoding="utf-8") as file:
            mine = json.load(file)
        with open(os.path.join(GOLDEN, "adapters", "all", "adapter_config.json"),
                  encoding="utf-8") as file:
            theirs = json.load(file)
        self.assertEqual(set(mine), set(theirs))
        self.assertEqual({k: mine[k] for k in ("r", "lora_alpha", "base_model_name_or_path")},
                         {"r": 2, "lora_alpha": 3, "base_model_name_or_path": "small"})
        names = [set(safetensors_io.load(os.path.join(d, "adapter_model.safetensors")))
                 for d in (self.directory, os.path.join(GOLDEN, "adapters", "all"))]
        self.assertEqual(*names)

    def test_golden_adapters(self):
        for name in ("qv", "all"):
            directory = os.path.join(GOLDEN, "adapters", name)
            golden = safetensors_io.load(os.path.join(directory, "golden.safetensors"))
            model = load_model(GOLDEN, adapter=directory)
            with torch.no_grad():
                difference = (model(golden["tokens"].long()) - golden["outputs"]).abs().max().item()
            self.assertLess(difference, 5e-5, name)

    def test_what_is_not_read_or_does_not_fit_is_named(self):
        save_adapter(adapted(), self.directory, alpha=1.5)
        path = os.path.join(self.directory, "adapter_config.json")
        with open(path, encoding="utf-8") as file:
            good = json.load(file)
        for change, text in (({"use_dora": True}, "use_dora"), ({"bias": "all"}, "bias"),
                             ({"rank_pattern": {"linear1": 2}}, "rank_pattern"),
                             ({"r": 4}, "lora_A.weight has"), ({"r": 0}, "rank 0")):
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**good, **change}, file)
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                load_adapter(small.model({"type": "linear"}), self.directory)


class SelectionTest(unittest.TestCase):
    def test_labels(self):
        self.assertEqual(parse_labels("0-4"), {0, 1, 2, 3, 4})
        self.assertEqual(parse_labels("7,1-2"), {1, 2, 7})
        for text in ("", "x", "3-1", "1,"):
            with self.assertRaisesRegex(ValueError, "--labels"):
                parse_labels(text)

    def test_the_width_of_a_stroke(self):
        images = torch.zeros(4, 20, 20, dtype=torch.uint8)
        for i, width in enumerate((1, 2, 4)):
            images[i, 2:18, 5:5 + width] = 255
        widths = stroke_width(images.flatten(1), 20, 20).tolist()
        self.assertEqual(widths[3], 0)
        for found, expected in zip(widths, (1, 2, 4)):
            self.assertAlmostEqual(found, expected * 16 / (16 + expected), places=4)


class LoraRunTest(RunCase):
    """Runs over images of 5 x 4."""

    def train(self, out, *flags):
        super().train(out, *flags, preset="mnist-linear-small")

    def base(self):
        self.train("base", "--steps", "3", "--sample-count", "0")
        return ["--init-from", self.path("base", "model"), "--lora-rank", "2"]

    def test_a_run_learns_an_adapter_and_leaves_the_base_as_it_was(self):
        flags = [*self.base(), "--steps", "6", "--learning-rate", "0.05"]
        self.train("lora", *flags, "--stop-after", "2")
        self.train("lora", *flags)
        self.train("straight", *flags)
        states = [load_checkpoint(self.path(d))["model"] for d in ("lora", "straight")]
        for name, tensor in load_model(self.path("base", "model")).state_dict().items():
            self.assertTrue(torch.equal(tensor, states[0][name]), name)
        for name, tensor in states[0].items():
            self.assertTrue(torch.equal(tensor, states[1][name]), name)
        self.assertFalse(os.path.exists(self.path("lora", "model")))
        result = self.result("lora")
        self.assertNotEqual(result["test_f32"], result["test_without_adapter"])
        self.assertLess(result["trained_parameters"], result["parameters"])

        images = self.path("mnist", "t10k-images-idx3-ubyte.gz")
        for adapter, expected in ((["--adapter", self.path("lora", "adapter")], result["test_f32"]),
                                  ([], result["test_without_adapter"])):
            with quiet() as out:
                evaluate.main(["--model", self.path("base", "model"), "--images", images, *adapter])
            self.assertAlmostEqual(json.loads(out.getvalue())["bits_per_dim"], expected, places=5)

        model_card.main(["--run", self.path("lora"), "--out", self.path("card"), "--copy-model"])
        text = self.text("card", "README.md")
        for part in ("adapter of rank 2", "without the adapter", "--lora-rank 2"):
            self.assertIn(part, text)
        self.assertTrue(os.path.exists(self.path("card", "adapter_model.safetensors")))

    def test_images_are_chosen_by_label_and_filter_in_every_part(self):
        for kind in ("train", "t10k"):
            path = self.path("mnist", f"{kind}-labels-idx1-ubyte.gz")
            with gzip.open(path, "wb") as file:
                file.write(struct.pack(">HBBI", 0, 8, 1, 24) + bytes(i % 4 for i in range(24)))
        self.train("chosen", "--steps", "2", "--labels", "0,2-3", "--sample-count", "0")
        data = self.result("chosen")["data"]
        self.assertEqual([data[part]["images"] for part in ("train", "validation", "test")], [15, 3, 18])
        self.assertEqual(data["test"]["selected"], "labels 0,2-3")
        with self.assertRaisesRegex(ValueError, "none of 1 images is chosen"):
            self.train("none", "--steps", "2", "--labels", "0-2", "--valid-count", "1",
                       "--sample-count", "0")

    def test_flags_that_make_no_sense_alone_are_named(self):
        for flags, text in ((["--lora-rank", "2"], "--lora-rank: needs --init-from"),
                            (["--lora-alpha", "2"], "--lora-alpha: is for --lora-rank"),
                            (["--labels", "x"], "--labels x"),
                            (["--lora-rank", "0", "--init-from", "x"], "--lora-rank: is 0"),
                            (["--lora-rank", "2", "--init-from", "x", "--lora-modules", "r_net"],
                             "--lora-modules: 'r_net'")):
            self.assertIn(text, self.refusal(*flags))


if __name__ == "__main__":
    unittest.main()
