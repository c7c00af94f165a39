# SPDX-License-Identifier: Apache-2.0
"""config.json of a Hugging Face directory, for the training loop."""

import json
from dataclasses import dataclass
from typing import Optional

from ..checks import ConfigError, is_int
from ..config import LIMITS, CategoricalHead, TokensModality

# Flags of the trainer, and the keys that they change.
FLAGS = {"n_layers": "num_hidden_layers", "d_model": "hidden_size", "d_ff": "intermediate_size",
         "vocab_size": "vocab_size"}
_LIMITED = {"num_hidden_layers": "n_layers", "hidden_size": "d_model", "intermediate_size": "d_ff",
            "vocab_size": "vocab_size"}


@dataclass(frozen=True)
class FamilyConfig:
    """The keys as they are written, and what the training loop asks of every configuration."""

    data: dict
    trained_length: Optional[int] = None  # in the form of our own format; not written here

    head = CategoricalHead()
    modality = TokensModality()
    attention = ()
    max_length = 0

    def __post_init__(self):
        for key, limit in _LIMITED.items():
            value = self.data.get(key)
            if not is_int(value) or not 1 <= value <= LIMITS[limit]:
                raise ConfigError(f"{key}: is {value!r}, expected an integer from 1 to {LIMITS[limit]}")

    @property
    def model_type(self):
        return self.data["model_type"]

    @property
    def vocab_size(self):
        return self.data["vocab_size"]

    @property
    def n_layers(self):
        return self.data["num_hidden_layers"]

    @property
    def width(self):
        return self.data["hidden_size"]

    def get(self, key, default=None):
        """A key that may be absent or null."""
        value = self.data.get(key)
        return default if value is None else value

    def to_dict(self):
        return dict(self.data)

    def to_json(self):
        return json.dumps(self.data, indent=2) + "\n"
