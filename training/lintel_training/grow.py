# SPDX-License-Identifier: Apache-2.0
"""A larger model that computes what a smaller one does: a warm start for training.

Wider: units of the residual stream, heads and hidden units of the feed-forward are repeated. LayerNorm
of a repeated vector is the repeated LayerNorm, so that every layer's input stays one. A weight from
a unit becomes one from each of its copies; they are drawn at random and sum to the old one, so that
copies, which would otherwise get the same gradient for ever, learn different things (Chen et al.,
"Net2Net", 2016, section 3).

Deeper: after each old layer come copies of it whose output projections are zero, which add
nothing until they have learnt to (Wu et al., "LLaMA Pro", 2024, section 3). With LayerNorm after
the sums there is no layer that changes nothing, and so no depth to add.
"""

import math
from dataclasses import dataclass

import torch

SIZES = ("d_model", "n_heads", "d_ff", "n_layers")
# Values that a model that grows must have, and the model that it becomes.
_STRUCTURE = {"layer_weights": None, "step_embedding": False, "residual": "sum"}

# Ends of tensor names, and what their rows and columns belong to: the residual stream, heads or
# the feed-forward's hidden units ("" for what is not repeated).
_MATRICES = {
    "value_embedding.weight": ("", "d_model"), "pos_embedding.pe": ("", "d_model"),
    "query_projection.weight": ("n_heads", "d_model"),
    "key_projection.weight": ("n_heads", "d_model"),
    "value_projection.weight": ("n_heads", "d_model"),
    "out_projection.weight": ("d_model", "n_heads"),
    "linear1.weight": ("d_ff", "d_model"), "linear2.weight": ("d_model", "d_ff"),
    "predictor.weight": ("", "d_model"),
}
_VECTORS = {
    "query_projection.bias": "n_heads", "key_projection.bias": "n_heads",
    "value_projection.bias": "n_heads", "out_projection.bias": "d_model", "linear1.bias": "d_ff",
    "linear2.bias": "d_model", "predictor.bias": "", "norm.weight": "d_model",
    "norm1.weight": "d_model", "norm2.weight": "d_model", "norm.bias": "d_model",
    "norm1.bias": "d_model", "norm2.bias": "d_model",
}
# Looked up, not computed with: their columns are repeated, not shared out among copies.
_TABLES = ("value_embedding.weight", "pos_embedding.pe")
_LAYER = "transformer.layers."


@dataclass(frozen=True)
class _Growth:
    """The factor of each of SIZES; layers: for each new one, its source and whether it is added."""

    factor: dict
    layers: list


def _plan(small, large):
    """The _Growth from one ModelConfig to the other; ValueError naming what stands in its way."""
    problems, factor = [], {"": 1}
    for key in ("d_model", "n_heads", "d_ff"):
        a, b = getattr(small, key), getattr(large, key)
        factor[key] = b // a
        if b % a:
            problems.append(f"{key} {b} is not a multiple of {a}")
    problems += [f"{key} is {getattr(c, key)!r}" for key, usual in _STRUCTURE.items()
                 for c in (small, large) if getattr(c, key) != usual]
    n, m = small.n_layers, large.n_layers
    if m < n:
        problems.append(f"n_layers {m} are fewer than {n}")
    if m != n and large.norm_placement != "pre":
        problems.append("layers can be added with norm_placement pre only")
    if factor["d_model"] != 1 and (large.position_encoding == "sinusoidal"
                                   or large.embedding != "value_add_position"):
        problems.append("d_model can grow with embedding value_add_position and learned or no "
                        "positions only")
    if problems:
        raise ValueError("; ".join(problems))
    sources = [i * n // m for i in range(m)]
    return _Growth(factor, [(s, i > 0 and s == sources[i - 1]) for i, s in enumerate(sources)])


def _shares(rows, columns, copies, generator):
    """[rows, copies, columns] that sum to 1 over copies, as large as independent weights are.

    Of variance such that the weights keep the sum of their squares: what N(0, 1/fan_in) has for
    every fan-in.
    """
    noise = torch.randn(rows, copies, columns, generator=generator)
    return 1 / copies + (noise - noise.mean(1, keepdim=True)) / math.sqrt(copies)


def _widened(name, tensor, factor, generator):
    """One tensor of the small model in the widths of the large one."""
    if ".inner_attention." in name:  # of a head's width, which stays
        return tensor.clone()
    for ending, unit in _VECTORS.items():
        if name.endswith(ending):
            return tensor.repeat(factor[unit]) if unit else tensor.clone()
    row, column = next(units for ending, units in _MATRICES.items() if name.endswith(ending))
    if name.endswith(_TABLES):
        return tensor.repeat(*[1] * (tensor.dim() - 1), factor[column])
    tensor, copies = tensor.repeat(factor[row], 1), factor[column]
    if copies == 1:
        return tensor
    shares = _shares(tensor.shape[0], tensor.shape[1], copies, generator)
    return (tensor.unsqueeze(1) * shares).flatten(1)


@torch.no_grad()
def grown(tensors, small, large, seed=0):
    """The state_dict of a model of `large` that computes what `tensors`, of `small`, do.

    `small` and `large` are ModelConfigs; what they differ in beside SIZES is left as it is.
    ValueError when one cannot grow into the other, saying why. What is computed is equal up to the
    rounding of float32 sums.
    """
    growth = _plan(small, large)
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for name, tensor in tensors.items():
        if not name.startswith(_LAYER):
            result[name] = _widened(name, tensor, growth.factor, generator)
            continue
        index, rest = name[len(_LAYER):].split(".", 1)
        for i, (source, is_added) in enumerate(growth.layers):
            if source != int(index):
                continue
            wide = _widened(name, tensor, growth.factor, generator)
            if is_added and rest.startswith(("attention.out_projection.", "linear2.")):
                wide.zero_()
            result[f"{_LAYER}{i}.{rest}"] = wide
    return result

