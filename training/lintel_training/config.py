# SPDX-License-Identifier: Apache-2.0
"""config.json of a model directory (format version 1) as dataclasses.

The keys are exactly those of the format; an unknown or missing key is refused by name, so that a
misspelt key never silently becomes a default.
"""

import json
from dataclasses import MISSING, asdict, dataclass
from typing import Optional, Union

from .attention_config import ATTENTIONS, attention_to_dict
from .checks import ConfigError, check_float, check_int, check_keys, is_int, require

FORMAT_VERSION = 1

# Limits of the server (model/config/config.h, docs/model_format.md).
LIMITS = {
    "vocab_size": 2**20, "max_length": 2**31 - 1, "d_model": 2**16, "n_layers": 1024,
    "n_heads": 1024, "d_head": 4096, "d_ff": 2**18, "mixtures": 1024, "height": 2**14,
    "width": 2**14, "channels": 4, "start_token": 2**20 - 1, "layer_norm_eps": 1.0,
    "trained_length": 2**31 - 1,
}
MAX_PROJECTION_WIDTH = 2**16  # n_heads * d_head


def _check_limit(where, key, value, low=1):
    check_int(where, key, value, low, LIMITS[key])


@dataclass(frozen=True)
class MixtureHead:
    """Discretised mixture of logistics: 3 * mixtures outputs (logits, means, scales)."""

    mixtures: int
    type: str = "mixture_of_logistics"

    def check(self, where):
        _check_limit(where, "mixtures", self.mixtures)


@dataclass(frozen=True)
class CategoricalHead:
    """Softmax over vocab_size logits."""

    type: str = "categorical"

    def check(self, where):
        pass


@dataclass(frozen=True)
class ImageModality:
    """Pixels in row order, channels innermost."""

    height: int
    width: int
    channels: int
    start_token: int = 0
    type: str = "image"

    def check(self, where):
        for key in ("height", "width", "channels"):
            _check_limit(where, key, getattr(self, key))
        _check_limit(where, "start_token", self.start_token, low=0)


@dataclass(frozen=True)
class BytesModality:
    type: str = "bytes"

    def check(self, where):
        pass


@dataclass(frozen=True)
class TokensModality:
    type: str = "tokens"

    def check(self, where):
        pass


_HEADS = {"mixture_of_logistics": MixtureHead, "categorical": CategoricalHead}
_MODALITIES = {"image": ImageModality, "bytes": BytesModality, "tokens": TokensModality}

# Left out of config.json where they have these values, as all models of before have.
_STRUCTURE = {"layer_weights": None, "position_injection": "input", "step_embedding": False,
              "residual": "sum", "trained_length": None}
_CHOICES = {
    "activation": ("relu", "gelu"),
    "norm_placement": ("post", "pre"),
    "position_injection": ("input", "every_layer"),
    "residual": ("sum", "reversible_mean", "reversible_concat"),
    "embedding": ("value_concat_position", "value_add_position", "value"),
    "position_encoding": ("sinusoidal", "learned", "none"),
}


@dataclass(frozen=True)
class ModelConfig:
    """The architecture. One letter each in shapes: E d_model, H n_heads, D d_head, F d_ff."""

    vocab_size: int
    max_length: int
    d_model: int
    n_layers: int
    n_heads: int
    d_head: int
    d_ff: int
    activation: str
    norm_placement: str
    final_norm: bool
    embedding: str
    position_encoding: str
    attention: tuple  # one for each layer, of a class of ATTENTIONS
    head: Union[MixtureHead, CategoricalHead]
    modality: Union[ImageModality, BytesModality, TokensModality]
    layer_norm_eps: float = 1e-5
    format_version: int = FORMAT_VERSION
    layer_weights: Optional[tuple] = None  # for each layer the number of its weights; None: its own
    position_injection: str = "input"  # or "every_layer": added to the input of the later ones, too
    step_embedding: bool = False  # a learned row for each layer, added to its input
    residual: str = "sum"  # or two streams, of which the head reads the mean or both
    trained_length: Optional[int] = None  # length in tokens of the training sequences; None: unknown

    def __post_init__(self):
        require(self.format_version == FORMAT_VERSION, "config", "format_version",
                self.format_version)
        for key in ("vocab_size", "d_model", "n_layers", "n_heads", "d_head", "d_ff"):
            _check_limit("config", key, getattr(self, key))
        _check_limit("config", "max_length", self.max_length, low=0)
        if self.trained_length is not None:
            _check_limit("config", "trained_length", self.trained_length)
        if self.n_heads * self.d_head > MAX_PROJECTION_WIDTH:
            raise ConfigError(f"config: n_heads * d_head is {self.n_heads * self.d_head}, must be "
                              f"at most {MAX_PROJECTION_WIDTH}")
        for key, allowed in _CHOICES.items():
            require(getattr(self, key) in allowed, "config", key, getattr(self, key))
        for key in ("final_norm", "step_embedding"):
            require(isinstance(getattr(self, key), bool), "config", key, getattr(self, key))
        check_float("config", "layer_norm_eps", self.layer_norm_eps, LIMITS["layer_norm_eps"])
        if len(self.attention) != self.n_layers:
            raise ConfigError(f"attention: {len(self.attention)} entries for {self.n_layers} layers")
        for i, attention in enumerate(self.attention):
            attention.check(f"attention[{i}]", self)
        self._check_structure()
        self.head.check("head")
        self.modality.check("modality")
        self._check_positions()
        self._check_values()

    def _check_structure(self):
        if self.residual != "sum" and self.norm_placement != "pre":
            raise ConfigError(f'residual: "{self.residual}" needs norm_placement "pre"')
        if self.position_injection == "every_layer" and self.embedding != "value_add_position":
            raise ConfigError('position_injection: "every_layer" needs embedding '
                              '"value_add_position"')
        weights, first = self.weights_of_layers, {}
        if len(weights) != self.n_layers:
            raise ConfigError(f"layer_weights: {len(weights)} entries for {self.n_layers} layers")
        for i, u in enumerate(weights):
            if not is_int(u) or not 0 <= u <= len(first):
                raise ConfigError(f"layer_weights[{i}]: is {u!r}, must be a whole number from 0 to "
                                  f"{len(first)}, since new ones come in order")
            if self.attention[i] != self.attention[first.setdefault(u, i)]:
                raise ConfigError(f"attention[{i}]: is not that of layer {first[u]}, whose weights "
                                  "the layer shares (layer_weights)")

    def _check_positions(self):
        if (self.embedding == "value") != (self.position_encoding == "none"):
            raise ConfigError(f'position_encoding: "{self.position_encoding}" does not fit '
                              f'embedding "{self.embedding}"')
        if self.embedding == "value_concat_position" and self.d_model % 2:
            raise ConfigError("d_model: must be even for value_concat_position")
        if self.position_encoding == "sinusoidal" and self.d_position % 2:
            raise ConfigError("d_model: the position part must have an even width")
        if self.position_encoding == "learned" and self.max_length == 0:
            raise ConfigError("max_length: learned positions need a bound")

    def _check_values(self):
        """Refuses values as the server does (check_config of model/config/config.cpp)."""
        for key in ("head", "modality"):
            kind = getattr(self, key).type
            if kind in ("mixture_of_logistics", "image", "bytes") and self.vocab_size != 256:
                raise ConfigError(f'vocab_size: {self.vocab_size}, must be 256 for {key} "{kind}"')
        if self.modality.type != "image":
            return
        if self.modality.start_token >= self.vocab_size:
            raise ConfigError(f"modality: start_token {self.modality.start_token} is not below "
                              f"vocab_size {self.vocab_size}")

    @property
    def d_value_embedding(self):
        """Width of the value part of the embedding."""
        return self.d_model // 2 if self.embedding == "value_concat_position" else self.d_model

    @property
    def d_position(self):
        """Width of the position part of the embedding; 0 without positions."""
        return 0 if self.embedding == "value" else self.d_value_embedding

    @property
    def d_stream(self):
        """Width of what the final norm and the head read."""
        return 2 * self.d_model if self.residual == "reversible_concat" else self.d_model

    @property
    def weights_of_layers(self):
        """For each layer the number of its weights, which several layers may share."""
        return tuple(range(self.n_layers)) if self.layer_weights is None else self.layer_weights

    @property
    def n_outputs(self):
        """Outputs of the head per position."""
        return 3 * self.head.mixtures if self.head.type == "mixture_of_logistics" else self.vocab_size

    @property
    def length(self):
        """Tokens in a sequence: pixels of an image; None where it has no natural length."""
        if self.modality.type != "image":
            return None
        return self.modality.height * self.modality.width * self.modality.channels

    def to_dict(self):
        """The JSON object, keys in the order of the format page."""
        out = {"format_version": self.format_version}
        for key in ("vocab_size", "max_length", "d_model", "n_layers", "n_heads", "d_head", "d_ff",
                    "activation", "norm_placement", "final_norm", "layer_norm_eps", "embedding",
                    "position_encoding"):
            out[key] = getattr(self, key)
        layers = [attention_to_dict(a) for a in self.attention]
        out["attention"] = layers[0] if all(a == layers[0] for a in layers) else layers
        out["head"] = _part_to_dict(self.head)
        out["modality"] = _part_to_dict(self.modality)
        for key, usual in _STRUCTURE.items():
            value = getattr(self, key)
            if value != usual:
                out[key] = list(value) if key == "layer_weights" else value
        return out

    def to_json(self):
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @staticmethod
    def from_dict(data):
        """Checks and converts a parsed config.json; raises ConfigError naming the key."""
        if not isinstance(data, dict):
            raise ConfigError("config: not a JSON object")
        data = dict(data)
        fields = set(ModelConfig.__dataclass_fields__)
        check_keys("config", data, fields, fields - set(_STRUCTURE))
        attention = data["attention"]
        _check_limit("config", "n_layers", data["n_layers"])
        if "layer_weights" in data:
            if not isinstance(data["layer_weights"], list):
                raise ConfigError("layer_weights: not a list")
            given = tuple(data["layer_weights"])
            is_usual = all(map(is_int, given)) and given == tuple(range(data["n_layers"]))
            data["layer_weights"] = None if is_usual else given
        if not isinstance(attention, (dict, list)):
            raise ConfigError("attention: neither an object nor a list of them")
        if isinstance(attention, dict):
            one = _part_from_dict("attention", attention, ATTENTIONS)
            data["attention"] = (one,) * data["n_layers"]
        else:
            data["attention"] = tuple(_part_from_dict(f"attention[{i}]", a, ATTENTIONS)
                                      for i, a in enumerate(attention))
        data["head"] = _part_from_dict("head", data["head"], _HEADS)
        data["modality"] = _part_from_dict("modality", data["modality"], _MODALITIES)
        return ModelConfig(**data)

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as file:
            return ModelConfig.from_dict(json.load(file))


def _part_to_dict(part):
    fields = asdict(part)
    return {"type": fields.pop("type"), **fields}


def _part_from_dict(where, data, table):
    if (not isinstance(data, dict) or not isinstance(data.get("type"), str)
            or data["type"] not in table):
        raise ConfigError(f"{where}: type must be one of {', '.join(table)}")
    cls = table[data["type"]]
    fields = cls.__dataclass_fields__
    required = {name for name, f in fields.items() if f.default is MISSING}
    check_keys(where, data, set(fields), required)
    return cls(**data)
