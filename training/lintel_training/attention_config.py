# SPDX-License-Identifier: Apache-2.0
"""The attention object of config.json: a dataclass for each kind, of the keys it declares (kinds.json)."""

from dataclasses import asdict, field, make_dataclass

from .attention import KINDS, module_of
from .checks import ConfigError, check_float, check_int, require


def _check(attention, where, config):
    """ConfigError naming a key beyond its range, or that does not go with others or the ModelConfig."""
    for key in KINDS[attention.type]["keys"]:
        name, value = key["name"], getattr(attention, key["name"])
        if value is not None or "null_means" not in key:
            _check_value(where, key, value, config.n_heads)
    problem = module_of(attention.type).Attention.contradiction(attention, config)
    if problem is not None:
        raise ConfigError(f"{where}: {problem}")


def _check_value(where, key, value, n_heads):
    name, kind = key["name"], key["type"]
    if kind == "integers" and isinstance(value, list):
        if len(value) != n_heads:
            raise ConfigError(f"{where}: {name} has {len(value)} numbers, must be one, or a list of "
                              f"n_heads, {n_heads}")
        for one in value:
            check_int(where, name, one, key["low"], key["high"])
    elif kind in ("integer", "integers"):
        check_int(where, name, value, key["low"], key["high"])
    elif kind in ("positive", "not_negative"):
        check_float(where, name, value, key["high"], may_be_zero=kind == "not_negative")
    elif kind == "boolean":
        require(isinstance(value, bool), where, name, value)
    else:
        require(value in key["choices"], where, name, value)


def attention_to_dict(attention):
    """The JSON object: without keys that are null or mean nothing beside the others."""
    left_out = module_of(attention.type).Attention.unused_keys(attention)
    fields = asdict(attention)
    return {"type": fields.pop("type"),
            **{k: v for k, v in fields.items() if v is not None and k not in left_out}}


def _attention_class(kind):
    keys = sorted(kind["keys"], key=lambda key: "initial" in key)  # required ones first
    fields = [(key["name"], object, *([field(default=key["initial"])] if "initial" in key else []))
              for key in keys]
    fields.append(("type", str, field(default=kind["type"])))
    return make_dataclass(kind["type"].title() + "Attention", fields, frozen=True,
                          namespace={"check": _check, "__doc__": kind["doc"]})


ATTENTIONS = {name: _attention_class(kind) for name, kind in KINDS.items()}

# Keys that are whole numbers, for flags: key -> {type: what it is}.
ATTENTION_FLAGS = {}
for _kind in KINDS.values():
    for _key in _kind["keys"]:
        if _key["type"] in ("integer", "integers"):
            ATTENTION_FLAGS.setdefault(_key["name"], {})[_kind["type"]] = _key["doc"]
