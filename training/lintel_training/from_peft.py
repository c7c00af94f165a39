# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of PEFT over a checkpoint of another program: the same over the converted model.

Modules get the names of the model directory's tensors, and both files of the adapter follow. What an
adapter computes stays: y = W x + b + scaling B (A x).
"""

import re

import torch

PREFIX = "base_model.model."
_KEY = re.compile(r"(?P<module>.+)\.(?P<part>lora_(?:embedding_)?[AB])(?:\.default)?(?P<weight>\.weight)?")
_LAYER = re.compile(r"(?:.+\.)?layers\.(\d+)\.(.+)")
# Modules of fast-transformers and of linear-transformer-experiments, under any prefix.
_IN_LAYER = {name: (name,) for name in (
    "attention.query_projection", "attention.key_projection", "attention.value_projection",
    "attention.out_projection", "linear1", "linear2")}
# Modules of kimiyoung/transformer-xl: one product of three parts is three here.
_IN_LAYER |= {
    "dec_attn.qkv_net": ("attention.query_projection", "attention.key_projection",
                         "attention.value_projection"),
    "dec_attn.o_net": ("attention.out_projection",),
    "pos_ff.CoreNet.0": ("linear1",), "pos_ff.CoreNet.3": ("linear2",)}
_OUTER = {"value_embedding": "value_embedding", "predictor": "predictor",
          "word_emb.emb_layers.0": "value_embedding", "crit.out_layers.0": "predictor"}
_SCALED = "word_emb.emb_layers.0"  # its rows are multiplied by the square root of their length


class NotAdaptable(ValueError):
    """The adapter has no counterpart; the text names what has none."""


def targets_of(module):
    """Names here of a module there, several where it is cut in parts of equal size."""
    layer = _LAYER.fullmatch(module)
    if layer is not None and layer[2] in _IN_LAYER:
        return [f"transformer.layers.{layer[1]}.{name}" for name in _IN_LAYER[layer[2]]]
    for name, target in _OUTER.items():
        if module == name or module.endswith("." + name):
            return [target]
    raise NotAdaptable(f"{module}: no module of a model directory that can be adapted")


@torch.no_grad()
def converted(config, tensors):
    """adapter_config.json as a dict and {name: tensor}, both as PEFT writes them -> the same, renamed."""
    if config.get("peft_type") != "LORA":
        raise NotAdaptable(f"peft_type is {config.get('peft_type')!r}, expected 'LORA'")
    out, ranks, alphas = {}, {}, {}
    for key, tensor in tensors.items():
        module, part, weight = _split(key)
        targets = targets_of(module)
        if module.endswith(_SCALED) and part.endswith("B"):
            tensor = tensor * len(tensor) ** 0.5
        is_last = part.endswith("B")  # [out, r], else [r, in]
        if is_last and len(tensor) % len(targets):
            raise NotAdaptable(f"{key}: has {list(tensor.shape)}, expected rows of {len(targets)} parts")
        parts = tensor.chunk(len(targets)) if is_last else [tensor] * len(targets)
        for target, values in zip(targets, parts):
            name = f"{PREFIX}{target}.{part}{weight}"
            if name in out:
                raise NotAdaptable(f"{key}: another module is {target}, too")
            out[name] = values.clone()
            ranks[target] = tensor.shape[1 if is_last else 0]
            alphas[target] = _matched(config, "alpha_pattern", module, config.get("lora_alpha"))
    return {**config, "target_modules": sorted(ranks), "exclude_modules": None, "layers_pattern": None,
            "layers_to_transform": None,
            "rank_pattern": {name: r for name, r in ranks.items() if r != config.get("r")},
            "alpha_pattern": {name: alpha for name, alpha in alphas.items()
                              if alpha != config.get("lora_alpha")}}, out


def _split(key):
    """base_model.model.module.transformer.predictor.lora_A.weight -> module, part, ".weight"."""
    found = _KEY.fullmatch(key.removeprefix(PREFIX))
    if found is None:
        raise NotAdaptable(f"{key}: is no matrix of LoRA")
    return found["module"], found["part"], found["weight"] or ""


def _matched(config, patterns, module, otherwise):
    """The value of the first pattern that fits: a module's name, or the end of it after a dot."""
    for pattern, value in (config.get(patterns) or {}).items():
        if not re.fullmatch(r"[\w.]+", pattern):
            raise NotAdaptable(f"{patterns}: {pattern!r} is a regular expression, expected names of modules")
        if module == pattern or module.endswith("." + pattern):
            return value
    return otherwise
