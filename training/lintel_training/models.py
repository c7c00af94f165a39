# SPDX-License-Identifier: Apache-2.0
"""Configurations and models of either kind: of our own format (model.py), or of a Hugging Face directory (families)."""

from . import families
from .config import ModelConfig
from .model import Model, initialise


def config_of(data):
    """The configuration in a parsed config.json; ConfigError naming the key that does not fit."""
    return families.config_of(data) if families.is_family(data) else ModelConfig.from_dict(data)


def is_family(config):
    return isinstance(config, families.FamilyConfig)


def make_model(config, dropout=0.0, checkpointing=False):
    """The model of a configuration, its weights still to be set."""
    if is_family(config):
        return families.make(config, dropout)
    return Model(config, dropout, checkpointing)


def set_initial_weights(model, seed):
    if is_family(model.config):
        model.initialise(seed)
    else:
        initialise(model, seed)
