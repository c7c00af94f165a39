# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters over foreign checkpoints: converted, they add to the converted model what they added before."""

import json
import os
import tempfile
import unittest

import torch

import small
import convert_adapter
from converting import convert as convert_checkpoint, run
from lintel_training import safetensors_io
from lintel_training.from_peft import targets_of
from test_from_transformer_xl import FLAGS, SYMBOLS, TransformerXl

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "use_rslora": False, "target_modules": "all-linear",
          "rank_pattern": {}, "alpha_pattern": {}, "bias": "none", "layers_to_transform": [0], "revision": None}


def pair(module, shape, rank, generator):
    """Names and values of A and B of a module whose weight has that shape, [out, in], or of an embedding [V, E]."""
    embedding = module.endswith(("value_embedding", "emb_layers.0"))
    out, inner = reversed(shape) if embedding else shape
    name = "base_model.model." + module + (".lora_embedding_" if embedding else ".lora_")
    end = "" if embedding else ".weight"
    return {f"{name}A{end}": torch.randn(rank, inner, generator=generator) * 0.3,
            f"{name}B{end}": torch.randn(out, rank, generator=generator) * 0.3}


def convert(config, tensors):
    """(exit status, standard error, the written config, the written tensors)."""
    with tempfile.TemporaryDirectory() as directory:
        given, out = os.path.join(directory, "given"), os.path.join(directory, "out")
        os.mkdir(given)
        with open(os.path.join(given, "adapter_config.json"), "w", encoding="utf-8") as file:
            file.write(config if isinstance(config, str) else json.dumps(config))
        safetensors_io.save(tensors, os.path.join(given, "adapter_model.safetensors"))
        status, errors = run(convert_adapter, given, "--out", out)
        if status != 0:
            return status, errors, None, None
        with open(os.path.join(out, "adapter_config.json"), encoding="utf-8") as file:
            written = json.load(file)
        return status, errors, written, safetensors_io.load(
            os.path.join(out, "adapter_model.safetensors"))


@torch.no_grad()
def merge(state, config, tensors, prefix=""):
    """W + scaling B A, and of an embedding (scaling B A)^T, by the names of the tensors, as PEFT merges."""
    for key in tensors:
        module, dot, part = key.removeprefix("base_model.model.").partition(".lora_")
        if not part.startswith(("A", "embedding_A")):
            continue
        a, b = tensors[key], tensors[key.replace(dot + part, dot + part.replace("A", "B", 1))]
        alpha = next((value for name, value in config["alpha_pattern"].items()
                      if (prefix + module).endswith(name)), config["lora_alpha"])
        delta = alpha / len(a) * (b @ a)
        state[module + ".weight"] += delta.T if part.startswith("embedding") else delta


class PeftTest(unittest.TestCase):
    def test_an_adapter_of_the_reference_is_renamed_and_no_more(self):
        state = small.model({"type": "linear"}).state_dict()
        modules = [name.removesuffix(".weight") for name in state if name.endswith(
            ("_projection.weight", "linear1.weight", "linear2.weight", "predictor.weight", "value_embedding.weight"))]
        generator = torch.Generator().manual_seed(1)
        for prefix in ("", "module."):
            tensors = {}
            for module in modules:
                rank = 3 if module.endswith("linear1") else 2
                tensors.update(pair(prefix + module, state[module + ".weight"].shape, rank, generator))
            status, errors, config, written = convert(
                dict(CONFIG, alpha_pattern={"layers.1.linear2": 5, "predictor": 4}), tensors)
            self.assertEqual((status, errors), (0, ""))
            self.assertEqual(set(written), {key.replace("model.module.", "model.") for key in tensors})
            for key, tensor in tensors.items():
                self.assertTrue(torch.equal(written[key.replace("model.module.", "model.")], tensor), key)
            self.assertEqual(config["target_modules"], sorted(modules))
            self.assertEqual(config["rank_pattern"], {f"transformer.layers.{i}.linear1": 3 for i in range(2)})
            self.assertEqual(config["alpha_pattern"], {"transformer.layers.1.linear2": 5, "predictor": 4})
            self.assertIsNone(config["layers_to_transform"])
            self.assertEqual({key: config[key] for key in ("r", "lora_alpha", "peft_type", "revision")},
                             {"r": 2, "lora_alpha": 6, "peft_type": "LORA", "revision": None})

    def test_layers_are_found_in_whatever_holds_them(self):
        for module in ("layers.3.linear2", "encoder.layers.3.linear2", "module.transformer.layers.3.linear2"):
            self.assertEqual(targets_of(module), ["transformer.layers.3.linear2"])

    def test_names_that_carry_the_adapters_own_are_read(self):
        status, errors, _, written = convert(CONFIG, {
            "base_model.model.predictor.lora_A.default.weight": torch.ones(2, 3),
            "base_model.model.predictor.lora_B.default.weight": torch.ones(4, 2)})
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(sorted(written), ["base_model.model.predictor.lora_A.weight",
                                           "base_model.model.predictor.lora_B.weight"])

    def test_an_adapter_of_transformer_xl_adds_the_same_to_the_converted_model(self):
        torch.manual_seed(6)
        model, tensors = TransformerXl(), {}
        generator = torch.Generator().manual_seed(2)
        for module in ("word_emb.emb_layers.0", "layers.0.dec_attn.qkv_net", "layers.1.dec_attn.o_net",
                       "layers.0.pos_ff.CoreNet.0", "layers.1.pos_ff.CoreNet.3", "crit.out_layers.0"):
            tensors.update(pair(module, model.state_dict()[module + ".weight"].shape, 2, generator))
        given = dict(CONFIG, alpha_pattern={"dec_attn.qkv_net": 3, "emb_layers.0": 2})
        status, errors, config, written = convert(given, tensors)
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(len(written), 2 * 8)  # query, key and value for one
        _, _, converted = convert_checkpoint(model, *FLAGS)
        before = converted.state_dict()["predictor.weight"].clone()
        merge(model.state_dict(), given, tensors)
        merge(converted.state_dict(), config, written)
        self.assertFalse(torch.equal(converted.state_dict()["predictor.weight"], before))
        tokens = torch.arange(20) * 7 % SYMBOLS
        with torch.no_grad():
            difference = (converted(tokens[None])[0] - model(tokens)).abs().max().item()
        self.assertLess(difference, 5e-5)

    def test_what_has_no_counterpart_is_refused_by_name(self):
        good = {"base_model.model.predictor.lora_A.weight": torch.ones(2, 3),
                "base_model.model.predictor.lora_B.weight": torch.ones(4, 2)}
        qkv = "base_model.model.layers.0.dec_attn.qkv_net.lora_B.weight"
        for config, tensors, text in (
                (dict(CONFIG, peft_type="IA3"), good, "peft_type is 'IA3', expected 'LORA'"),
                (CONFIG, dict(good, **{"base_model.model.transformer.layers.0.norm1.lora_A.weight": torch.ones(2, 3)}),
                 "transformer.layers.0.norm1: no module of a model directory that can be adapted"),
                (CONFIG, dict(good, **{"base_model.model.predictor.lora_magnitude_vector": torch.ones(2)}),
                 "predictor.lora_magnitude_vector: is no matrix of LoRA"),
                (CONFIG, dict(good, **{"base_model.model.module.predictor.lora_A.weight": torch.ones(2, 3)}),
                 "another module is predictor, too"),
                (CONFIG, {qkv: torch.ones(10, 2)}, f"{qkv}: has [10, 2], expected rows of 3 parts"),
                (dict(CONFIG, alpha_pattern={"pred.*": 3}), good,
                 "alpha_pattern: 'pred.*' is a regular expression"),
                ("{", good, "adapter_config.json: "), ("[]", good, "is no JSON object")):
            status, errors, _, _ = convert(config, tensors)
            self.assertEqual(status, 1)
            self.assertIn(text, errors)
            self.assertEqual(len(errors.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
