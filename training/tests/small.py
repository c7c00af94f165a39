# SPDX-License-Identifier: Apache-2.0
"""Small models and runs that several tests share."""

import gzip
import os
import struct

import numpy as np
import torch

import context  # noqa: F401
from lintel_training import train
from lintel_training.config import ModelConfig
from lintel_training.model import Model, initialise

ATTENTIONS = {
    "linear": {"type": "linear"},
    "softmax": {"type": "softmax"},
    "scaled softmax": {"type": "softmax", "scale": 0.7},
    "lsh": {"type": "lsh", "rounds": 2, "bits": 3, "chunk_size": 4},
    "lsh logsumexp": {"type": "lsh", "rounds": 2, "bits": 3, "chunk_size": 4,
                      "combine": "logsumexp", "mask_self": False},
}


def config(attention, **changes):
    values = {
        "format_version": 1, "vocab_size": 17, "max_length": 40, "d_model": 12, "n_layers": 2,
        "n_heads": 2, "d_head": 8, "d_ff": 20, "activation": "relu", "norm_placement": "pre",
        "final_norm": True, "layer_norm_eps": 1e-5, "embedding": "value_add_position",
        "position_encoding": "learned", "attention": attention, "head": {"type": "categorical"},
        "modality": {"type": "tokens"},
    }
    values.update(changes)
    return ModelConfig.from_dict(values)


def model(attention, seed=1, **changes):
    """A model with weights large enough that every part matters."""
    out = Model(config(attention, **changes)).eval()
    initialise(out, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in out.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return out


def tokens(count, length, seed):
    """Random tokens of config(): int64 [count, length]."""
    return torch.randint(0, 17, (count, length), generator=torch.Generator().manual_seed(seed))


def write_images(directory, count=24, height=5, width=4):
    """IDX files of random images, train and test, as an MNIST directory holds them."""
    os.makedirs(directory, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (count, height, width), np.uint8)
    data = struct.pack(">HBB3I", 0, 8, 3, count, height, width) + pixels.tobytes()
    for kind in ("train", "t10k"):
        with gzip.open(os.path.join(directory, f"{kind}-images-idx3-ubyte.gz"), "wb") as file:
            file.write(data)


TINY = ["--n-layers", "1", "--n-heads", "2", "--d-model", "8", "--d-head", "4", "--d-ff", "8",
        "--batch-size", "2", "--device", "cpu", "--log-every", "2"]


def run(*arguments):
    return train.main([*TINY, *arguments])
