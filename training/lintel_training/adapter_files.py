# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters on disk, as PEFT writes them: adapter_config.json and adapter_model.safetensors."""

import json
import math
import os

import torch

from . import safetensors_io
from .lora import LoraLinear, adapt, check_rank

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_A = ".lora_A.weight"
# Keys that change what an adapter computes, and what we read: with anything else it is refused.
_READ_AS = {"peft_type": "LORA", "bias": "none", "use_dora": False, "lora_bias": False,
            "fan_in_fan_out": False, "modules_to_save": None, "layer_replication": None,
            "rank_pattern": {}, "alpha_pattern": {}}


def save_adapter(model, directory, alpha, base_name=None):
    """Writes the adapter of an adapted Model, in float32, each file atomically.

    alpha: lora_alpha, scaling times the rank. base_name: of the model that it was trained on.
    """
    adapted = {path: m for path, m in model.named_modules() if isinstance(m, LoraLinear)}
    names = sorted({path.rpartition(".")[2] for path in adapted})
    config = {
        "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": base_name,
        "bias": "none", "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True,
        "layer_replication": None, "layers_pattern": None, "layers_to_transform": None,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha, "lora_bias": False,
        "lora_dropout": 0.0, "modules_to_save": None,
        "peft_type": "LORA", "r": next(iter(adapted.values())).lora_A.out_features,
        "rank_pattern": {}, "revision": None, "target_modules": names, "task_type": None,
        "use_dora": False, "use_rslora": False,
    }
    tensors = {f"{_PREFIX}{path}.{half}.weight": getattr(m, half).weight.float()
               for path, m in adapted.items() for half in ("lora_A", "lora_B")}
    os.makedirs(directory, exist_ok=True)
    safetensors_io.write_atomically(os.path.join(directory, CONFIG),
                                    (json.dumps(config, indent=2) + "\n").encode())
    safetensors_io.save(tensors, os.path.join(directory, TENSORS))


@torch.no_grad()
def load_adapter(model, directory):
    """Adapts a Model in place with the adapter of a directory; ValueError naming what does not fit."""
    path = os.path.join(directory, CONFIG)
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    for key, value in _READ_AS.items():
        if config.get(key, value) != value:
            raise ValueError(f"{path}: {key} is {config[key]!r}, only {value!r} is read")
    rank = config["r"]
    check_rank(rank)
    scaling = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    given = safetensors_io.load(os.path.join(directory, TENSORS))
    paths = {name[len(_PREFIX):-len(_A)] for name in given if name.endswith(_A)}
    adapt(model, rank, scaling, paths)
    own = {_PREFIX + name: t for name, t in model.state_dict().items() if ".lora_" in name}
    for name in sorted(set(own) | set(given)):
        shapes = [list(t[name].shape) if name in t else None for t in (given, own)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{directory}/{TENSORS}: {name} has {shapes[0]}, expected {shapes[1]}")
        own[name].copy_(given[name])
