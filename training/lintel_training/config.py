"""config.json of a model directory (format version 1) as dataclasses.

The keys are exactly those of the format; an unknown or missing key is refused by name, so that a
misspelt key never silently becomes a default.
"""

import json
import math
from dataclasses import asdict, dataclass, field, make_dataclass
from typing import Union

from .attention import KINDS

FORMAT_VERSION = 1

# What the server takes at most (model/config/config_limits.h, docs/model_format.md).
LIMITS = {
    "vocab_size": 2**20, "max_length": 2**31 - 1, "d_model": 2**16, "n_layers": 1024,
    "n_heads": 1024, "d_head": 4096, "d_ff": 2**18, "mixtures": 1024, "height": 2**14,
    "width": 2**14, "channels": 4, "start_token": 2**20 - 1, "layer_norm_eps": 1.0,
}
MAX_PROJECTION_WIDTH = 2**16  # n_heads * d_head
MIN_FLOAT = 2.0**-126  # the least normal float32


class ConfigError(ValueError):
    """config.json does not describe a model; the text names the key."""


@dataclass(frozen=True)
class MixtureHead:
    """Discretised mixture of logistics: 3 * mixtures outputs (logits, means, scales)."""

    mixtures: int
    type: str = "mixture_of_logistics"

    def check(self, where):
        _check_int(where, "mixtures", self.mixtures)


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
            _check_int(where, key, getattr(self, key))
        _check_int(where, "start_token", self.start_token, low=0)


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


def _check_attention(attention, where):
    for key in KINDS[attention.type]["keys"]:
        name, value = key["name"], getattr(attention, key["name"])
        if value is None and "null_means" in key:
            continue
        if key["type"] == "integer":
            _check_int(where, name, value, key["low"], key["high"])
        elif key["type"] == "positive":
            _check_float(where, name, value, key["high"])
        elif key["type"] == "boolean":
            _require(isinstance(value, bool), where, name, value)
        else:
            _require(value in key["choices"], where, name, value)


def _attention_class(kind):
    """A dataclass of the keys that a kind of attention declares (kinds.json)."""
    keys = sorted(kind["keys"], key=lambda key: "initial" in key)  # those that are required first
    fields = [(key["name"], object, *([field(default=key["initial"])] if "initial" in key else []))
              for key in keys]
    fields.append(("type", str, field(default=kind["type"])))
    return make_dataclass(kind["type"].title() + "Attention", fields, frozen=True,
                          namespace={"check": _check_attention, "__doc__": kind["doc"]})


_ATTENTIONS = {name: _attention_class(kind) for name, kind in KINDS.items()}
_HEADS = {"mixture_of_logistics": MixtureHead, "categorical": CategoricalHead}
_MODALITIES = {"image": ImageModality, "bytes": BytesModality, "tokens": TokensModality}

_CHOICES = {
    "activation": ("relu", "gelu"),
    "norm_placement": ("post", "pre"),
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
    attention: tuple  # one for each layer, of a class of _ATTENTIONS
    head: Union[MixtureHead, CategoricalHead]
    modality: Union[ImageModality, BytesModality, TokensModality]
    layer_norm_eps: float = 1e-5
    format_version: int = FORMAT_VERSION

    def __post_init__(self):
        _require(self.format_version == FORMAT_VERSION, "config", "format_version",
                 self.format_version)
        for key in ("vocab_size", "d_model", "n_layers", "n_heads", "d_head", "d_ff"):
            _check_int("config", key, getattr(self, key))
        _check_int("config", "max_length", self.max_length, low=0)
        if self.n_heads * self.d_head > MAX_PROJECTION_WIDTH:
            raise ConfigError(f"config: n_heads * d_head is {self.n_heads * self.d_head}, must be "
                              f"at most {MAX_PROJECTION_WIDTH}")
        for key, allowed in _CHOICES.items():
            _require(getattr(self, key) in allowed, "config", key, getattr(self, key))
        _require(isinstance(self.final_norm, bool), "config", "final_norm", self.final_norm)
        _check_float("config", "layer_norm_eps", self.layer_norm_eps)
        if len(self.attention) != self.n_layers:
            raise ConfigError(f"attention: {len(self.attention)} entries for {self.n_layers} layers")
        for i, attention in enumerate(self.attention):
            attention.check(f"attention[{i}]")
        self.head.check("head")
        self.modality.check("modality")
        self._check_positions()
        self._check_values()

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
        """What the server refuses as well (check_config of model/config/config.cpp)."""
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
    def n_outputs(self):
        """Outputs of the head per position."""
        return 3 * self.head.mixtures if self.head.type == "mixture_of_logistics" else self.vocab_size

    @property
    def length(self):
        """Values in a sequence: pixels of an image; None where it has no natural length."""
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
        layers = [_part_to_dict(a) for a in self.attention]
        out["attention"] = layers[0] if all(a == layers[0] for a in layers) else layers
        out["head"] = _part_to_dict(self.head)
        out["modality"] = _part_to_dict(self.modality)
        return out

    def to_json(self):
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @staticmethod
    def from_dict(data):
        """Checks and converts a parsed config.json; raises ConfigError naming the key."""
        if not isinstance(data, dict):
            raise ConfigError("config: not a JSON object")
        data = dict(data)
        fields = {f for f in ModelConfig.__dataclass_fields__}
        _check_keys("config", data, fields, fields)
        attention = data["attention"]
        _check_int("config", "n_layers", data["n_layers"])
        if not isinstance(attention, (dict, list)):
            raise ConfigError("attention: neither an object nor a list of them")
        if isinstance(attention, dict):
            one = _part_from_dict("attention", attention, _ATTENTIONS)
            data["attention"] = (one,) * data["n_layers"]
        else:
            data["attention"] = tuple(_part_from_dict(f"attention[{i}]", a, _ATTENTIONS)
                                      for i, a in enumerate(attention))
        data["head"] = _part_from_dict("head", data["head"], _HEADS)
        data["modality"] = _part_from_dict("modality", data["modality"], _MODALITIES)
        return ModelConfig(**data)

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as file:
            return ModelConfig.from_dict(json.load(file))


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _check_int(where, key, value, low=1, high=None):
    high = LIMITS[key] if high is None else high
    if not _is_int(value) or not low <= value <= high:
        raise ConfigError(f"{where}: {key} is {value!r}, must be a whole number from {low} to "
                          f"{high}")


def _check_float(where, key, value, high=None):
    high = LIMITS[key] if high is None else high
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not MIN_FLOAT <= value <= high:
        raise ConfigError(f"{where}: {key} is {value!r}, must be a number above 0, and at most "
                          f"{high:g}")


def _require(condition, where, key, value):
    if not condition:
        raise ConfigError(f"{where}: {key} has an unsupported value {value!r}")


def _check_keys(where, data, known, required):
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}")
    for key in sorted(required):
        if key not in data:
            raise ConfigError(f"{where}: missing key {key!r}")


def _part_to_dict(part):
    fields = asdict(part)
    out = {"type": fields.pop("type")}
    out.update({k: v for k, v in fields.items() if v is not None})
    return out


def _part_from_dict(where, data, table):
    if (not isinstance(data, dict) or not isinstance(data.get("type"), str)
            or data["type"] not in table):
        raise ConfigError(f"{where}: type must be one of {', '.join(table)}")
    cls = table[data["type"]]
    fields = cls.__dataclass_fields__
    required = {name for name, f in fields.items() if f.default is f.default_factory}
    _check_keys(where, data, set(fields), required)
    return cls(**data)
