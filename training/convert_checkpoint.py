#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns a PyTorch checkpoint into a model directory.

Takes a checkpoint of idiap/linear-transformer-experiments (a dict with `model_state`), a bare
state_dict, or one nested under `state_dict`, `model_state_dict` or `model`; a Transformer-XL of
kimiyoung/transformer-xl, as train.py saves it or as a state_dict; or RWKV-7 of BlinkDL, which becomes a
directory of transformers. Prefixes of the names (`module.`,
`_orig_mod.`, `model.`) are removed:

    python3 training/convert_checkpoint.py model.pth --out DIR --heads 8
    python3 training/convert_checkpoint.py model.pt --out DIR --same-length --memory-length 2100
    python3 training/convert_checkpoint.py rwkv7.pth --out DIR --tokenizer rwkv_vocab_v20230424.txt

Widths and the number of layers are read off the tensors. The number of heads cannot be, unless the
layers hold LSH planes, random features or biases of each head; what else the tensors do not tell are
flags. Tensors that do not fit are named with both shapes, and the exit status is 1.
"""

import argparse
import itertools
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402

from lintel_training import foreign, from_fast_transformers, from_rwkv7, from_transformer_xl  # noqa: E402
from lintel_training.attention import KINDS, module_of, own_tensors_of  # noqa: E402
from lintel_training.config import ModelConfig  # noqa: E402
from lintel_training.export import DTYPES, export_model, write_directory  # noqa: E402
from lintel_training.model import Model  # noqa: E402
from lintel_training.safetensors_io import write_atomically  # noqa: E402

_LAYER = "transformer.layers.0."
_OWN = _LAYER + "attention.inner_attention."
# Tensors of every checkpoint that can be converted, for messages.
EXPECTED = (_LAYER + "attention.query_projection.weight", _LAYER + "linear1.weight", _LAYER + "norm1.weight",
            "value_embedding.weight", "predictor.weight")
_BARE_LAYER = re.compile(r"(.*\.)?layers\.\d+\.(attention|linear1|norm1)\.")
MNIST_LENGTHS = (783, 784)  # positions; the last pixel need not be fed


class ConversionError(Exception):
    """The checkpoint does not describe a model that the server knows."""


_MOST_LISTED = 5  # names in a message


def _some(names):
    """The first names, and how many more there are."""
    shown = ", ".join(repr(name) if not isinstance(name, str) else name for name in names[:_MOST_LISTED])
    return shown + (f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else "")


def _kind_of(data):
    name = data.name if isinstance(data, foreign.Stranger) else type(data).__name__
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"


def _beside(state):
    """Names found beside names expected, a line each."""
    found = list(state)[:_MOST_LISTED]
    if len(state) > _MOST_LISTED:
        found[-1] += f" (and {len(state) - _MOST_LISTED} more)"
    width = max(map(len, ["found", *found]))
    lines = itertools.zip_longest(["found", *found], ["expected", *EXPECTED], fillvalue="")
    return "".join(f"\n  {mine:{width}}  {theirs}" for mine, theirs in lines)


# The prefix of every model of every library before its layers.
_IN_MODEL = re.compile(r"(.*?)(?:transformer\.layers|word_emb\.emb_layers)\.\d+\.")


def _renaming(state):
    """The function that removes wrappers and a prefix from a name: `module.` and such anywhere, and in front
    what all layers have there, as `model.` of Lightning.
    """
    prefixes = sorted({m[1] for m in map(_IN_MODEL.match, map(foreign.unwrapped, state)) if m})
    if len(prefixes) > 1:
        raise ConversionError(f"{len(prefixes)} models in one checkpoint, expected one; their tensors begin with "
                              + _some([f"{p}transformer." for p in prefixes]))
    prefix = prefixes[0] if prefixes else ""
    return lambda name: foreign.unwrapped(name).removeprefix(prefix)


def _renamed(state, rename):
    renamed, before = {}, {}
    for name, tensor in state.items():
        plain = rename(name)
        if plain in before:
            raise ConversionError(f"{before[plain]} and {name}: both are {plain} without their prefixes")
        renamed[plain], before[plain] = tensor, name
    return renamed


def read_state(path, trust=False):
    """{name: tensor} of a checkpoint, without prefixes; and of a model that was saved whole the plain
    attributes, {path: value}.
    """
    try:
        if trust:
            data = torch.load(path, map_location="cpu", weights_only=False)
        else:  # a pickle from elsewhere could run code
            data = foreign.load(path)
    except Exception as error:  # errors of foreign bytes have many names
        if isinstance(error, OSError) and error.filename:  # not of the content: it names the file
            raise
        reason = "no PyTorch checkpoint, or damaged"
        if trust:
            reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConversionError(f"{path}: cannot be read: {reason}") from error
    state, attributes = foreign.state_in(data)
    if state is None:
        *others, last = foreign.NESTED
        raise ConversionError(f"{path}: neither a state_dict nor a dict with {', '.join(others)} or {last}: "
                              f"found {_kind_of(data)}")
    for name, value in state.items():
        if isinstance(value, foreign.Stranger) and not str(name).endswith("_extra_state"):
            raise ConversionError(
                f"{name}: is a {value.name}, which is no plain tensor; --trust loads it all the same, "
                "running all code in the file")
    keys = list(state)
    state = {name: value for name, value in state.items()
             if isinstance(name, str) and isinstance(value, torch.Tensor)}
    rename = _renaming(state)
    state = _renamed(state, rename)
    attributes = {rename(name): value for name, value in attributes.items()}
    if not state:
        raise ConversionError(f"{path}: holds no tensors" + (f", but {_some(keys)}" if keys else ""))
    for name, tensor in state.items():
        if tensor.layout != torch.strided or not tensor.dtype.is_floating_point:
            kind = str(tensor.dtype if tensor.layout == torch.strided else tensor.layout)
            raise ConversionError(f"{name}: is {kind.removeprefix('torch.')}, expected floats")
    return state, attributes


def _shape(state, name, rank=2):
    if name not in state:
        raise ConversionError(f"{name}: missing, and needed to tell the architecture{_beside(state)}")
    shape = list(state[name].shape)
    if len(shape) != rank:
        raise ConversionError(f"{name}: has {shape}, expected {rank} dimensions")
    return shape


def infer_config(state, args, attention=None):
    """config.json as a dict, from the shapes of the tensors and the flags. attention: where it is known."""
    layers = {int(m.group(1)) for m in map(re.compile(r"transformer\.layers\.(\d+)\.").match, state)
              if m}
    if not layers:
        bare = any(map(_BARE_LAYER.match, state))
        why = ". Its layers seem to be an encoder alone, without the embedding and the predictor" if bare else ""
        raise ConversionError(f"transformer.layers.*: no layer among {len(state)} tensors{why}{_beside(state)}")
    inner, d_model = _shape(state, _LAYER + "attention.query_projection.weight")
    d_ff, _ = _shape(state, _LAYER + "linear1.weight")
    vocab_size, d_value = _shape(state, "value_embedding.weight")
    outputs, _ = _shape(state, "predictor.weight")

    own = {name[len(_OWN):]: tensor for name, tensor in state.items() if name.startswith(_OWN)}
    attention, d_head = _attention(state, own, args, attention)
    if d_head is not None and (d_head == 0 or inner % d_head):
        shapes = ", ".join(f"{_OWN}{name}: has {list(t.shape)}" for name, t in own.items())
        raise ConversionError(f"{shapes}, whose last dimension does not divide the projections' "
                              f"{inner} rows")
    heads = args.heads or (inner // d_head if d_head is not None else None)
    if heads is None:
        raise ConversionError("--heads is needed: the number of heads is not in any shape")
    if inner % heads:
        raise ConversionError(f"--heads {heads} does not divide the projections' {inner} rows")

    categorical = args.head == "categorical" or (args.head is None and outputs == vocab_size)
    if not categorical and outputs % 3:
        raise ConversionError(f"predictor.weight: {outputs} outputs are neither 3 for each mixture "
                              f"component nor the {vocab_size} symbols")
    has_pe = "pos_embedding.pe" in state
    embedding = args.embedding or ("value_concat_position" if d_value * 2 == d_model else
                                   "value_add_position" if has_pe else "value")
    max_length = args.max_length
    if max_length is None:
        max_length = _shape(state, "pos_embedding.pe", rank=3)[1] if has_pe else 0
    position = args.position_encoding or ("none" if embedding == "value" else "sinusoidal")
    head = {"type": "categorical"} if categorical else {"type": "mixture_of_logistics",
                                                        "mixtures": outputs // 3}
    return {
        "format_version": 1, "vocab_size": vocab_size, "max_length": max_length,
        "d_model": d_model, "n_layers": max(layers) + 1, "n_heads": heads,
        "d_head": inner // heads, "d_ff": d_ff, "activation": args.activation,
        "norm_placement": args.norm_placement or "post", "final_norm": "transformer.norm.weight" in state,
        "layer_norm_eps": args.layer_norm_eps, "embedding": embedding,
        "position_encoding": position, "attention": attention, "head": head,
        "modality": _modality(args, categorical, vocab_size, max_length),
    }


def _attention(state, own, args, known):
    """The attention object, and d_head where the kind's own tensors tell it."""
    if known is not None:
        return known, _shape(state, _OWN + "r_w_bias")[1]
    if from_fast_transformers.OMEGA in own:
        d_head, _ = _shape(state, _OWN + from_fast_transformers.OMEGA)
        return {"type": "linear", **from_fast_transformers.keys_of(
            own[from_fast_transformers.OMEGA], args.feature_map, args.softmax_temp, args.n_dims,
            args.smoothing)}, d_head
    kind = args.attention or next((k for k in KINDS if set(own_tensors_of(k)) == set(own)), None)
    if kind is None:
        raise ConversionError(f"{_OWN}{next(iter(own))}: no kind of attention has it")
    for name, shape in own_tensors_of(kind).items():
        if name not in own:
            raise ConversionError(f"{_OWN}{name}: missing. The reference draws new {name} at every "
                                  "call; a model to serve needs fixed ones")
        _shape(state, _OWN + name, rank=len(shape))
    if not own_tensors_of(kind):
        return {"type": kind}, None
    if not hasattr(module_of(kind), "read_off"):
        raise ConversionError(f"--attention {kind}: no program is known whose checkpoints hold it")
    keys, d_head = module_of(kind).read_off(own)
    flags = {key["name"]: getattr(args, key["name"]) for key in KINDS[kind]["keys"]
             if getattr(args, key["name"], None) is not None}
    defaults = {key["name"]: key["initial"] for key in KINDS[kind]["keys"] if key.get("initial")}
    return {"type": kind, **keys, **flags, **defaults}, d_head


def _modality(args, categorical, vocab_size, max_length):
    text = "bytes" if vocab_size == 256 else "tokens"
    kind = args.modality or (text if categorical else "image")
    if kind != "image":
        return {"type": kind}
    if args.image_shape is None and max_length not in MNIST_LENGTHS:
        raise ConversionError(f"--image-shape is needed: {max_length} positions do not tell the "
                              "shape of an image (28 28 1 is assumed for 783 and 784 only)")
    height, width, channels = args.image_shape or (28, 28, 1)
    return {"type": "image", "height": height, "width": width, "channels": channels,
            "start_token": args.start_token}


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help=".pth file")
    parser.add_argument("--out", required=True, help="model directory to write")
    parser.add_argument("--dtype", choices=list(DTYPES),
                        help="default: f32, or of RWKV-7 that of each tensor")
    parser.add_argument("--heads", type=int,
                        help="not in any shape: a wrong number that divides the width converts "
                             "without a word, so compare the model's likelihood with your own")
    parser.add_argument("--attention", choices=list(KINDS),
                        help="default: the first that has the layers' own tensors")
    parser.add_argument("--chunk-size", type=int, default=32, help="lsh")
    features = parser.add_argument_group("random features of fast-transformers")
    features.add_argument("--feature-map", choices=from_fast_transformers.MAPS,
                          help="the class of omega, which its shape does not show")
    features.add_argument("--softmax-temp", type=float, help="default: that of the class")
    features.add_argument("--n-dims", type=int, help="default: the least that makes the columns of omega")
    features.add_argument("--smoothing", type=float, help="of smoothed-fourier; default: 1")
    xl = parser.add_argument_group("Transformer-XL", "default: what a model that was saved whole says")
    xl.add_argument("--segment-length", type=int, help="tgt_len")
    xl.add_argument("--memory-length", type=int, help="mem_len")
    xl.add_argument("--clamp-length", type=int, help="clamp_len; 0: none")
    xl.add_argument("--same-length", action="store_true", default=None,
                    help="every position sees mem_len positions: a segment of one")
    rwkv = parser.add_argument_group("RWKV-7")
    rwkv.add_argument("--tokenizer", metavar="FILE", help=f"World's vocabulary, {from_rwkv7.WORLD}, to copy")
    parser.add_argument("--activation", choices=["relu", "gelu"], default="relu")
    parser.add_argument("--norm-placement", choices=["post", "pre"],
                        help="default: post, or what a Transformer-XL says")
    parser.add_argument("--layer-norm-eps", type=float, default=1e-5)
    parser.add_argument("--embedding",
                        choices=["value_concat_position", "value_add_position", "value"],
                        help="default: by the width of value_embedding")
    parser.add_argument("--position-encoding", choices=["sinusoidal", "learned", "none"],
                        help="default: sinusoidal, or none without positions")
    parser.add_argument("--max-length", type=int, help="default: the rows of pos_embedding.pe")
    parser.add_argument("--head", choices=["mixture_of_logistics", "categorical"],
                        help="default: categorical when there are as many outputs as symbols")
    parser.add_argument("--modality", choices=["image", "bytes", "tokens"],
                        help="default: image for mixtures, else bytes with 256 symbols and "
                             "tokens with any other number")
    parser.add_argument("--image-shape", type=int, nargs=3,
                        metavar=("HEIGHT", "WIDTH", "CHANNELS"),
                        help="default: 28 28 1 with 783 or 784 positions, else needed for images")
    parser.add_argument("--start-token", type=int, default=0)
    parser.add_argument("--trust", action="store_true",
                        help="load the pickle without restrictions: it can run code. Needed for tensors "
                             "of a kind of their own only")
    return parser


def _convert_rwkv7(state, args):
    if args.dtype:  # before the check: what is too large for the type becomes infinite here
        state = {name: tensor.to(DTYPES[args.dtype]) for name, tensor in state.items()}
    config, tensors = from_rwkv7.directory_of(state, args.layer_norm_eps)
    if args.heads not in (None, config["num_heads"]):
        raise ConversionError(f"--heads {args.heads}: blocks.0.att.r_k has {config['num_heads']} heads")
    vocabulary = None
    if args.tokenizer:
        vocabulary = from_rwkv7.world_vocabulary(args.tokenizer, config["vocab_size"])
    write_directory(args.out, json.dumps(config, indent=2) + "\n", tensors, is_hugging_face=True)
    if vocabulary is not None:
        write_atomically(os.path.join(args.out, from_rwkv7.WORLD), vocabulary)
    return (f"RWKV-7, {config['num_hidden_layers']} layers, {config['num_heads']} heads of {config['head_dim']}, "
            f"hidden_size {config['hidden_size']}" + ("" if vocabulary else "; without a tokenizer (--tokenizer)"))


def convert(args):
    """Writes the directory; what was converted, in words."""
    state, attributes = read_state(args.checkpoint, args.trust)
    if from_rwkv7.is_one(state):
        return _convert_rwkv7(state, args)
    if args.tokenizer:
        raise ConversionError("--tokenizer: is for RWKV-7, and the checkpoint has no tensor blocks.0.att.*")
    attention, dtype = None, args.dtype or "f32"
    if from_transformer_xl.is_one(state):
        settings = from_transformer_xl.Settings(
            tgt_len=args.segment_length, mem_len=args.memory_length, clamp_len=args.clamp_length,
            same_length=args.same_length).first(from_transformer_xl.settings_of(attributes))
        attention = from_transformer_xl.attention_of(settings)
        state = from_transformer_xl.tensors_of(state)
        args.norm_placement = args.norm_placement or ("pre" if settings.pre_lnorm else "post")
    config = ModelConfig.from_dict(infer_config(state, args, attention))
    model = Model(config)
    pe = state.get("pos_embedding.pe")
    if pe is not None and config.position_encoding == "sinusoidal":
        # The reference's table is often longer than the sequences it was trained on.
        state["pos_embedding.pe"] = pe[:, :config.max_length]
        if config.max_length == 0:  # computed for any position, so there is none to store
            del state["pos_embedding.pe"]
    # The tensors as they will be written: a value too large for the type becomes infinite here.
    model.load_tensors({name: tensor.to(DTYPES[dtype]).float()
                        for name, tensor in state.items()})
    export_model(model, args.out, dtype)
    return (f"{config.n_layers} layers, {config.n_heads} heads of {config.d_head}, "
            f"d_model {config.d_model}, {config.attention[0].type} attention")


def main(argv=None):
    args = make_parser().parse_args(argv)
    try:
        summary = convert(args)
    # RuntimeError and MemoryError: sizes of tensors that no machine holds.
    except (ConversionError, ValueError, OSError, RuntimeError, MemoryError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{args.out}: {summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
