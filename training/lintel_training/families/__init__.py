# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face directories that can be trained: RWKV-7 and Qwen3.5's dense hybrids."""

from ..checks import ConfigError
from .config import FLAGS, FamilyConfig
from .qwen3_5 import Qwen35
from .rwkv7 import Rwkv7

FAMILIES = {"rwkv7": Rwkv7, "qwen3_5_text": Qwen35}


def is_family(data):
    """Returns whether a parsed config.json is one of a Hugging Face directory."""
    return isinstance(data, dict) and "model_type" in data


def config_of(data):
    """ConfigError naming what does not fit."""
    if data["model_type"] not in FAMILIES:
        raise ConfigError(f"model_type: is {data['model_type']!r}, expected one of {', '.join(FAMILIES)}")
    return FamilyConfig(dict(data))  # a key that the model does not know changes nothing here


def make(config, dropout=0.0):
    """The model of a FamilyConfig."""
    return FAMILIES[config.model_type](config, dropout)


def overridden(data, changes):
    """config.json with the values of flags, {name of the flag: value}.

    ConfigError for a flag that the family does not have.
    """
    data = dict(data)
    for flag, value in changes.items():
        if flag not in FLAGS:
            raise ConfigError(f"--{flag.replace('_', '-')}: not for {data['model_type']}")
        data[FLAGS[flag]] = value
    return FAMILIES[data["model_type"]].completed(data)
