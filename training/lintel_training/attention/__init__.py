# SPDX-License-Identifier: Apache-2.0
"""The kinds of attention: kinds.json has what the server declares of each, TYPE.py how it is computed.

kinds.json is what `lintel-convert --kinds` prints: keys, projections and tensors.
"""

import importlib
import json
import os

with open(os.path.join(os.path.dirname(__file__), "..", "kinds.json"), encoding="utf-8") as _file:
    _DECLARED = json.load(_file)
KINDS = {kind["type"]: kind for kind in _DECLARED["kinds"]}
SAMPLE_DIMS = _DECLARED["sample_dims"]  # of the projections and tensors of each kind's samples


def module_of(kind):
    """The module of a type."""
    return importlib.import_module(f"{__name__}.{kind}")


def projections_of(kind):
    """Projections that a type has beside out_projection: `name`, `has_bias`, `is_read`. No key changes that."""
    return KINDS[kind]["samples"][0]["projections"]


def own_tensors_of(kind):
    """Names of the tensors under inner_attention, with their shapes in the kind's first sample.

    Those that the kind always has: keys can ask for others, as linear's `features` for feature_map.omega,
    and change shapes; what a layer has is what its module registers.
    """
    return {tensor["name"]: tensor["shape"] for tensor in KINDS[kind]["samples"][0]["tensors"]}
