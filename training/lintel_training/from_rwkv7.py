# SPDX-License-Identifier: Apache-2.0
"""RWKV-7 as its author publishes it: a .pth file with a bare state_dict, as a directory of transformers.

Names gain `rwkv7.` in front, but for `head.weight`. Sizes follow from the shapes:

    emb.weight, head.weight [V, E];  ln_out.{weight,bias} [E]
    below blocks.{i}.:  ln0.* (of block 0 alone), ln1.*, ln2.*, att.ln_x.* [E]
    att.x_{r,w,k,v,a,g}, w0, a0, v0, k_k, k_a, ffn.x_k [1, 1, E];  att.r_k [H, D]
    att.{w,a,v,g}1 [E, R], {w,a,v,g}2 [R, E];  att.{receptance,key,value,output}.weight [E, E]
    ffn.key.weight [F, E];  ffn.value.weight [E, F]

v0, v1 and v2 of block 0 are never used and may be missing.

The author's norm over heads adds 64e-5 to the variance for any width D of them, that of transformers D times norm_eps.
Where the two differ, `receptance` is multiplied by s = sqrt(D * norm_eps / 64e-5), sqrt(D / 64) with the usual 1e-5, so
that the outputs of the heads are s times as large, and the norm makes the same of them; `r_k` is divided by s, so that
its product with r stays. Both become float32, unless s is a power of two. No other number changes.
"""

import math
import re

import torch

from .model import mismatches

WORLD = "rwkv_vocab_v20230424.txt"  # the tokenizer's file, as the server looks for it
_BLOCK = re.compile(r"blocks\.(\d+)\.")
_OF_RWKV = re.compile(r"blocks\.\d+\.(att|ffn)\.")
_OLDER = re.compile(r"blocks\.\d+\.(att|ffn)\.time_")
_VECTORS = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a")
_RANKS = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "v": "v_low_rank_dim",
          "g": "gate_low_rank_dim"}
_HEAD_NORM_EPS = 64e-5  # the author's, for heads of any width
_WORLD_LINE = re.compile(r"""(\d+) b?(['"]).*\2 \d+""", re.S)


class NotRwkv7(ValueError):
    """The tensors are of another model, or incomplete."""


def is_one(state):
    """Returns whether a state_dict is of RWKV, of any version."""
    return any(map(_OF_RWKV.match, state))


def _expected_shapes(sizes, layers, head_width, ranks):
    """{name: shape}; sizes: V, E and F."""
    vocabulary, width, inner = sizes
    shapes = {"emb.weight": (vocabulary, width), "head.weight": (vocabulary, width)}
    for i in range(layers):
        block = f"blocks.{i}."
        norms = ["ln1", "ln2", "att.ln_x"] + (["ln0"] if i == 0 else [])
        shapes.update({f"{block}{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")})
        shapes.update({f"{block}att.{name}": (1, 1, width) for name in _VECTORS})
        shapes[block + "att.r_k"] = (width // head_width, head_width)
        for pair, rank in ranks.items():
            shapes[f"{block}att.{pair}1"], shapes[f"{block}att.{pair}2"] = (width, rank), (rank, width)
        shapes.update({f"{block}att.{name}.weight": (width, width)
                       for name in ("receptance", "key", "value", "output")})
        shapes[block + "ffn.x_k"] = (1, 1, width)
        shapes[block + "ffn.key.weight"], shapes[block + "ffn.value.weight"] = (inner, width), (width, inner)
    shapes.update({f"ln_out.{part}": (width,) for part in ("weight", "bias")})
    return shapes


def _shape(state, name):
    if name not in state:
        found = ", ".join(list(state)[:5])
        raise NotRwkv7(f"{name}: missing, and needed to tell the sizes of RWKV-7; found {len(state)} tensors: "
                       f"{found}{', ...' if len(state) > 5 else ''}")
    shape = list(state[name].shape)
    if len(shape) != 2 or 0 in shape:
        raise NotRwkv7(f"{name}: has {shape}, expected 2 dimensions")
    return shape


def _sizes(state):
    """(V, E, F), layers, D and the ranks, off the shapes."""
    older = next(filter(_OLDER.match, state), None)
    if older is not None:
        raise NotRwkv7(f"{older}: found a tensor of RWKV-6 or older, expected names of RWKV-7 such as "
                       "blocks.0.att.w1")
    vocabulary, width = _shape(state, "emb.weight")
    head_width = _shape(state, "blocks.0.att.r_k")[1]
    if width % head_width:
        raise NotRwkv7(f"blocks.0.att.r_k: has heads of {head_width}, expected a divisor of the width {width} "
                       "that emb.weight has")
    layers = 1 + max(int(m[1]) for m in map(_BLOCK.match, state) if m)
    ranks = {}
    for pair in _RANKS:
        block = 1 if pair == "v" and layers > 1 else 0  # block 0 never uses its own
        ranks[pair] = _shape(state, f"blocks.{block}.att.{pair}1")[1]
    return (vocabulary, width, _shape(state, "blocks.0.ffn.key.weight")[0]), layers, head_width, ranks


def _check(state, expected):
    """NotRwkv7 with a line for each tensor that does not fit."""
    unused = {f"blocks.0.att.v{i}" for i in range(3)}
    expected = {name: shape for name, shape in expected.items() if name not in unused}
    given = {name: tensor for name, tensor in state.items() if name not in unused}
    # Vectors may have been stored without their leading ones.
    given = {name: tensor.reshape(expected[name])
             if len(expected.get(name, ())) == 3 and tensor.numel() == expected[name][-1] else tensor
             for name, tensor in given.items()}
    problems = mismatches({name: torch.empty(shape, device="meta") for name, shape in expected.items()}, given)
    if problems:
        raise NotRwkv7("\n".join(problems))
    given.update({name: state[name] for name in unused if name in state})
    return given


def _scaled(tensor, factor):
    """The product in float32, unless a power of two is exact in any type."""
    if math.frexp(factor)[0] != 0.5:
        tensor = tensor.float()
    return tensor * factor


def _with_norm_of_width(tensors, eps, head_width):
    """The same function by a norm over heads that adds eps times their width."""
    scale = math.sqrt(head_width * eps / _HEAD_NORM_EPS)
    if math.isclose(scale, 1.0, rel_tol=1e-6):
        return tensors
    factors = {"att.receptance.weight": scale, "att.r_k": 1.0 / scale}
    return {name: _scaled(tensor, factors[_BLOCK.sub("", name)]) if _BLOCK.sub("", name) in factors else tensor
            for name, tensor in tensors.items()}


def directory_of(state, eps=1e-5):
    """(config.json as a dict, tensors by their names there) of a state_dict. NotRwkv7 naming what does not fit."""
    sizes, layers, head_width, ranks = _sizes(state)
    tensors = _with_norm_of_width(_check(state, _expected_shapes(sizes, layers, head_width, ranks)), eps, head_width)
    vocabulary, width, inner = sizes
    config = {
        "architectures": ["Rwkv7ForCausalLM"], "model_type": "rwkv7", "vocab_size": vocabulary,
        "hidden_size": width, "num_hidden_layers": layers, "head_dim": head_width,
        "num_heads": width // head_width, "intermediate_size": inner,
        **{key: ranks[pair] for pair, key in _RANKS.items()},
        "norm_eps": eps, "norm_bias": True, "tie_word_embeddings": False,
        # World's id 0 ends a text.
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
        "dtype": str(state["emb.weight"].dtype).removeprefix("torch."), "wkv_state_dtype": "float32",
    }
    return config, {name if name == "head.weight" else "rwkv7." + name: tensor
                    for name, tensor in tensors.items()}


def world_vocabulary(path, vocab_size):
    """The bytes of World's file; ValueError where it is none, or of a larger vocabulary than the model's."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: found bytes that are no UTF-8, expected World's vocabulary") from error
    for number, line in enumerate(lines, 1):
        match = _WORLD_LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{path}: line {number}: found {line[:40]!r}, expected an id, a quoted text and "
                             f"its bytes, as {WORLD} has")
        if int(match[1]) >= vocab_size:
            raise ValueError(f"{path}: line {number}: found id {match[1]}, expected less than the model's "
                             f"vocabulary of {vocab_size}")
    return content
