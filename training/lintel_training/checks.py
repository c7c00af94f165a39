# SPDX-License-Identifier: Apache-2.0
"""Checks of single values of config.json; each refusal names the key."""

import math

MIN_FLOAT = 2.0**-126  # the least normal float32


class ConfigError(ValueError):
    """config.json does not describe a model; the text names the key."""


def is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def check_int(where, key, value, low, high):
    if not is_int(value) or not low <= value <= high:
        raise ConfigError(f"{where}: {key} is {value!r}, must be a whole number from {low} to "
                          f"{high}")


def check_float(where, key, value, high, may_be_zero=False):
    """Above 0, and no less than what float32 has, or 0 where it may be."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and may_be_zero and value == 0:
        return
    if not number or not math.isfinite(value) or not MIN_FLOAT <= value <= high:
        least = "0 or above" if may_be_zero else "above 0"
        raise ConfigError(f"{where}: {key} is {value!r}, must be a number {least}, and at most "
                          f"{high:g}")


def require(condition, where, key, value):
    if not condition:
        raise ConfigError(f"{where}: {key} has an unsupported value {value!r}")


def check_keys(where, data, known, required):
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}")
    for key in sorted(required):
        if key not in data:
            raise ConfigError(f"{where}: missing key {key!r}")
