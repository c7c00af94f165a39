# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face directories: as the reference vectors have them, in chunks and step by step."""

import json
import os
import unittest

import torch

from context import REPOSITORY
from lintel_training import families, safetensors_io
from lintel_training.checks import ConfigError
from lintel_training.export import load_model
from lintel_training.families import delta_rule
from lintel_training.losses import LN2, categorical_nll

GOLDEN = os.path.join(REPOSITORY, "tests", "golden", "families")
# Directory: tolerance of logits, by the page of the vectors.
CASES = {"rwkv7-official": 5e-5, "rwkv7": 5e-5, "qwen3_5": 1e-3, "qwen3_5-multimodal": 1e-3}
# Names in flash-linear-attention's layout, and those of transformers.
FLA_NAMES = {
    "model.embeddings.": "rwkv7.emb.", "model.norm.": "rwkv7.ln_out.", "lm_head.": "head.",
    "model.layers.": "rwkv7.blocks.", ".pre_norm.": ".ln0.", ".attn_norm.": ".ln1.", ".ffn_norm.": ".ln2.",
    ".attn.g_norm.": ".att.ln_x.", ".attn.r_proj.": ".att.receptance.", ".attn.k_proj.": ".att.key.",
    ".attn.v_proj.": ".att.value.", ".attn.o_proj.": ".att.output.", "_lora.lora.0.weight": "1",
    "_lora.lora.2.weight": "2", "_lora.lora.2.bias": "0", ".attn.": ".att."}
TINY = {
    "rwkv7": {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "head_dim": 8,
              "intermediate_size": 24, "decay_low_rank_dim": 3, "a_low_rank_dim": 4, "v_low_rank_dim": 2,
              "gate_low_rank_dim": 5},
    "qwen3_5_text": {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 3, "intermediate_size": 24,
                     "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
                     "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
                     "linear_value_head_dim": 5, "full_attention_interval": 2, "tie_word_embeddings": True},
}


def random_rule(length, decay_width, seed=1):
    """Inputs of delta_rule's functions: 2 rows, 3 heads, keys of 6 and values of 5."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    keys = torch.nn.functional.normalize(normal(2, 3, length, 6), dim=-1)
    rate = torch.sigmoid(normal(2, 3, length, 1))
    # Decays of a vector are as small as RWKV-7's; those of one number are also far below.
    decay = (-0.6065 if decay_width > 1 else -8.0) * torch.sigmoid(normal(2, 3, length, decay_width) + 1)
    inputs = [decay, normal(2, 3, length, 6), normal(2, 3, length, 6), normal(2, 3, length, 5), keys,
              rate * keys, normal(2, 3, 6, 5)]
    return [x.requires_grad_() for x in inputs]


def tiny(model_type, seed=1):
    model = families.make(families.config_of({"model_type": model_type, **TINY[model_type]})).eval()
    model.initialise(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # large enough that every part matters
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def tokens(length, seed=1):
    return torch.randint(0, 11, (2, length), generator=torch.Generator().manual_seed(seed))


def of_fla(tensors):
    """Tensors of flash-linear-attention's layout in that of transformers."""
    out = {}
    for name, tensor in tensors.items():
        is_pair = ".lora." in name and name.endswith(".weight")
        for theirs, ours in FLA_NAMES.items():
            name = name.replace(theirs, ours)
        last = name.rpartition(".")[2]
        is_vector = tensor.numel() == tensor.shape[-1] and last not in ("weight", "bias")
        out[name] = tensor.T if is_pair else tensor.view(1, 1, -1) if is_vector or last in ("w0", "a0", "v0") else tensor
    return out


def of_text(tensors):
    """The language model of a multimodal directory."""
    return {name.replace("model.language_model.", "model."): tensor for name, tensor in tensors.items()
            if not name.startswith(("model.visual.", "mtp.", "model.mtp.", "visual."))}


def golden_model(name):
    directory = os.path.join(GOLDEN, name)
    if name in ("rwkv7-official", "qwen3_5"):
        return load_model(directory)
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        data = json.load(file)
    tensors = safetensors_io.load(os.path.join(directory, "model.safetensors"))
    rename = of_fla if name == "rwkv7" else of_text
    model = families.make(families.config_of(data.get("text_config", data))).eval()
    model.load_tensors({n: tensor.float() for n, tensor in rename(tensors).items()})
    return model


class DeltaRuleTest(unittest.TestCase):
    def test_chunks_equal_single_steps_and_so_do_their_gradients(self):
        for decay_width in (6, 1):
            for length in (1, 31, 32, 33, 100):
                with self.subTest(decay_width=decay_width, length=length):
                    inputs = random_rule(length, decay_width)
                    results = []
                    for rule in (delta_rule.recurrent, delta_rule.chunked):
                        out, state = rule(*inputs)
                        loss = (out * out.detach().cos()).sum() + (state * state.detach().sin()).sum()
                        results.append([out, state, *torch.autograd.grad(loss, inputs)])
                    for one, other in zip(*results):
                        self.assertTrue(torch.allclose(one, other, rtol=1e-8, atol=1e-9),
                                        (one - other).abs().max())

    def test_a_chunk_of_the_fastest_decay_stays_exact_in_float32(self):
        inputs = [x.detach() for x in random_rule(300, 6)]
        inputs[0] = torch.full_like(inputs[0], -0.6065)
        exact = delta_rule.recurrent(*inputs)
        found = delta_rule.chunked(*(x.float() for x in inputs))
        for one, other in zip(exact, found):
            self.assertLess((one - other).abs().max().item(), 2e-5 * one.abs().max().item())

    def test_a_head_that_forgets_at_once_has_finite_gradients(self):
        inputs = random_rule(64, 1)
        with torch.no_grad():
            inputs[0] -= 500.0  # the quotient of two decays is 0 / 0
        out, state = delta_rule.chunked(*inputs)
        for gradient in torch.autograd.grad(out.sum() + state.sum(), inputs):
            self.assertTrue(torch.isfinite(gradient).all())


class FamilyTest(unittest.TestCase):
    def test_the_reference_vectors_are_met(self):
        for name, tolerance in CASES.items():
            with self.subTest(name):
                directory = os.path.join(GOLDEN, name)
                model = golden_model(name)
                golden = safetensors_io.load(os.path.join(directory, "golden.safetensors"))
                inputs = golden["tokens"].long()
                session = model.session(len(inputs))
                with torch.no_grad():
                    at_once = model(inputs)
                steps = torch.stack([session.step(column) for column in inputs.unbind(1)], 1)
                for form, found in (("at once", at_once), ("step by step", steps)):
                    difference = (found - golden["outputs"]).abs().max().item()
                    self.assertLess(difference, tolerance, f"{form}: logits differ by up to {difference}")
                bits = categorical_nll(at_once[:, :-1], inputs[:, 1:]) / LN2
                self.assertLess((bits - golden["log_likelihood_bits"]).abs().max().item(), 1e-3)

    def test_windows_with_a_state_equal_the_whole_text(self):
        for model_type in TINY:
            with self.subTest(model_type):
                model, text = tiny(model_type), tokens(75)
                with torch.no_grad():
                    whole = model(text)
                    session = model.session(2)
                    parts = torch.cat([session.feed(part) for part in text.split([40, 1, 34], 1)], 1)
                self.assertLess((whole - parts).abs().max().item(), 2e-4)

    def test_gradients_of_chunks_are_those_of_single_steps(self):
        for model_type in TINY:
            with self.subTest(model_type):
                model, text = tiny(model_type).double(), tokens(70)
                gradients = []
                for rule in (delta_rule.recurrent, delta_rule.chunked):
                    outputs, _ = model.run(text[:, :-1], model.zero_state(2), rule)
                    loss = categorical_nll(outputs, text[:, 1:]).mean()
                    parameters = [p for n, p in model.named_parameters() if ".0.att.v" not in n]
                    gradients.append(torch.autograd.grad(loss, parameters))
                for one, other in zip(*gradients):
                    self.assertLess((one - other).abs().max().item(), 1e-7 * (1 + one.abs().max().item()))

    def test_a_carried_state_continues_rows_that_do_not_start(self):
        model, text = tiny("rwkv7"), tokens(60)
        model(text[:, :30], torch.tensor([True, True]))
        with torch.no_grad():
            found = model(text[:, 30:], torch.tensor([False, True]))
            self.assertLess((found[0] - model(text)[0, 30:]).abs().max().item(), 1e-4)
            self.assertLess((found[1] - model(text[:, 30:])[1]).abs().max().item(), 1e-5)
        model(text[:, :30], torch.tensor([False, True]))
        self.assertFalse(any(t.requires_grad for t in model.carried))

    def test_tensors_that_do_not_fit_are_named(self):
        model = tiny("rwkv7")
        tensors = dict(model.state_dict())
        tensors["rwkv7.blocks.1.att.w1"] = torch.zeros(16, 9)
        del tensors["head.weight"]
        with self.assertRaisesRegex(ValueError, r"att.w1: has \[16, 9\], expected \[16, 3\][^$]*"
                                                r"|head.weight: missing"):
            model.load_tensors(tensors)

    def test_the_first_value_of_layer_0_may_be_left_out(self):
        model = tiny("rwkv7")
        tensors = {n: t for n, t in model.state_dict().items() if ".blocks.0.att.v" not in n or "value" in n}
        self.assertEqual(len(tensors), len(model.state_dict()) - 3)
        model.load_tensors(tensors)

    def test_keys_that_make_no_model_are_named(self):
        for changes, message in (({"head_dim": 7}, "head_dim: 7 does not divide hidden_size 16"),
                                 ({"hidden_size": 0}, "hidden_size: is 0, expected"),
                                 ({"v_low_rank_dim": None}, "v_low_rank_dim: missing"),
                                 ({"model_type": "llama"}, "model_type: is 'llama', expected one of rwkv7")):
            with self.assertRaisesRegex(ConfigError, message):
                families.make(families.config_of({"model_type": "rwkv7", **TINY["rwkv7"], **changes}))
        with self.assertRaisesRegex(ConfigError, "layer_types: is "):
            families.make(families.config_of({"model_type": "qwen3_5_text", **TINY["qwen3_5_text"],
                                              "layer_types": ["linear_attention"]}))


if __name__ == "__main__":
    unittest.main()
