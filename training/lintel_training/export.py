# SPDX-License-Identifier: Apache-2.0
"""Model directories: config.json and model.safetensors."""

import json
import os

import torch

from . import safetensors_io
from .adapter_files import load_adapter
from .grow import SIZES, grown
from .models import config_of, is_family, make_model

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def export_model(model, directory, dtype="bf16"):
    """Writes a model directory, each file atomically; weights are rounded to `dtype`."""
    tensors = {name: tensor.detach().to("cpu", DTYPES[dtype])
               for name, tensor in model.state_dict().items()}
    write_directory(directory, model.config.to_json(), tensors, is_family(model.config))


def write_directory(directory, config, tensors, is_hugging_face):
    """config.json, a text, and model.safetensors."""
    os.makedirs(directory, exist_ok=True)
    safetensors_io.write_atomically(os.path.join(directory, "config.json"), config.encode())
    # transformers refuses a file that does not say so.
    metadata = {"format": "pt"} if is_hugging_face else None
    safetensors_io.save(tensors, os.path.join(directory, "model.safetensors"), metadata)


def load_model(directory, device="cpu", adapter=None):
    """A model directory, with the LoRA adapter of a directory, as a float32 model in evaluation mode."""
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = config_of(json.load(file))
    model = make_model(config)
    tensors = safetensors_io.load(os.path.join(directory, "model.safetensors"))
    model.load_tensors({name: tensor.float() for name, tensor in tensors.items()})
    if adapter is not None:
        load_adapter(model, adapter)
    return model.to(device).eval()


@torch.no_grad()
def start_from(model, directory):
    """Copies the weights of a model directory into `model`; attention and head may differ.

    The predictor of another head stays as it is, and attention's own tensors (hash planes) of other
    shapes; of those that differ in the first size alone the first parts are taken over. A smaller model grows into the
    larger one (grow.py). ValueError for another architecture.
    """
    source = load_model(directory)
    if is_family(source.config) or is_family(model.config):
        if source.config != model.config:
            raise ValueError(f"{directory} cannot start this model: its config.json differs")
        model.load_state_dict(source.state_dict())
        return
    other_head = source.config.head != model.config.head
    given, own = source.state_dict(), model.state_dict()
    if any(getattr(source.config, key) != getattr(model.config, key) for key in SIZES):
        try:
            given = grown(given, source.config, model.config)
        except ValueError as error:
            raise ValueError(f"{directory} cannot start this model: {error}") from None
    given = {name: _fitted(tensor, own[name])
             if ".inner_attention." in name and name in own else tensor
             for name, tensor in given.items()}
    shared = {name: tensor for name, tensor in given.items()
              if name in own and not (other_head and name.startswith("predictor."))}
    different = [f"{name}: has {list(tensor.shape)}, expected {list(own[name].shape)}"
                 for name, tensor in shared.items() if tensor.shape != own[name].shape]
    different += [f"{name}: missing" for name in own
                  if name not in given and ".inner_attention." not in name]
    if different:
        raise ValueError("\n".join([f"{directory} cannot start this model:"] + different))
    model.load_state_dict(shared, strict=False)


def _fitted(given, own):
    """The given values in the shape of `own`, which has its own where the given ones are too few or do not fit."""
    if given.shape[1:] != own.shape[1:]:
        return own
    return torch.cat([given[:len(own)], own[len(given):]])


@torch.no_grad()
def round_weights(model, dtype):
    """Rounds a model's weights to `dtype` in place, as an export followed by a load would."""
    for tensor in model.state_dict().values():
        tensor.copy_(tensor.to(DTYPES[dtype]).to(tensor.dtype))
