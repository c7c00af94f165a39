# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of kimiyoung/transformer-xl (PyTorch), in the shape of its enwik8 and text8 models.

    https://github.com/kimiyoung/transformer-xl, Dai et al. 2019

Those train.py saves are whole models (torch.save(model)), which know most of what a state_dict does not:
`Settings` are read off their attributes, flags come first.
"""

import re
from dataclasses import dataclass
from typing import Optional

import torch

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_IN_LAYER = {
    "dec_attn.o_net.weight": "attention.out_projection.weight",
    "dec_attn.r_net.weight": "attention.inner_attention.r_net.weight",
    "dec_attn.r_w_bias": "attention.inner_attention.r_w_bias",
    "dec_attn.r_r_bias": "attention.inner_attention.r_r_bias",
    "dec_attn.layer_norm.weight": "norm1.weight",
    "dec_attn.layer_norm.bias": "norm1.bias",
    "pos_ff.CoreNet.0.weight": "linear1.weight",
    "pos_ff.CoreNet.0.bias": "linear1.bias",
    "pos_ff.CoreNet.3.weight": "linear2.weight",
    "pos_ff.CoreNet.3.bias": "linear2.bias",
    "pos_ff.layer_norm.weight": "norm2.weight",
    "pos_ff.layer_norm.bias": "norm2.bias",
}
_QKV = "dec_attn.qkv_net.weight"
_PROJECTIONS = ("query", "key", "value")
# Biases that every layer shares, unless it has its own.
_SHARED = ("r_w_bias", "r_r_bias")
_EMBEDDING = "word_emb.emb_layers.0.weight"
_OUTPUT = "crit.out_layers.0.weight"
# Without a counterpart here, and why.
_REFUSED = (
    (r"crit\.cluster_", "an adaptive softmax with clusters (cutoffs) has no counterpart"),
    (r"(word_emb\.emb_layers|crit\.out_layers)\.[1-9]",
     "an adaptive softmax with clusters (cutoffs) has no counterpart"),
    (r"out_layer\.", "a sampled softmax (sample_softmax) has no counterpart"),
    (r"r_emb$|r_bias$", "learned relative positions (attn_type 1 or 3) are not served"),
    (r"layers\.\d+\.dec_attn\.(q_net|kv_net)\.",
     "absolute positions (attn_type 2 or 3) are not served"),
)


class NotServed(ValueError):
    """The checkpoint is a Transformer-XL without a counterpart; the text names what has none."""


@dataclass
class Settings:
    """Settings that the tensors do not show, by the names of the authors' flags; None: not known."""

    tgt_len: Optional[int] = None
    mem_len: Optional[int] = None
    clamp_len: Optional[int] = None  # 0 or less: none
    same_length: Optional[bool] = None
    pre_lnorm: Optional[bool] = None
    ext_len: Optional[int] = None
    attn_type: Optional[int] = None
    sample_softmax: Optional[int] = None

    def first(self, other):
        """These where they are known, else those of `other`."""
        return Settings(**{name: getattr(other, name) if value is None else value
                           for name, value in vars(self).items()})


def is_one(state):
    return any(name.startswith("word_emb.emb_layers.") for name in state)


def settings_of(attributes):
    """Settings of a saved model's attributes {path: value}, as foreign.module_of gives them."""
    known = {name: attributes[name] for name in vars(Settings()) if name in attributes}
    if "layers.0.dec_attn.pre_lnorm" in attributes:
        known["pre_lnorm"] = attributes["layers.0.dec_attn.pre_lnorm"]
    return Settings(**known)


def attention_of(settings):
    """The attention object. A segment of one position is same_length: each sees as many."""
    for name, flag in (("tgt_len", "--segment-length"), ("mem_len", "--memory-length")):
        if getattr(settings, name) is None and not (name == "tgt_len" and settings.same_length):
            raise NotServed(f"{flag} ({name}) is needed: it is in no shape")
    if settings.ext_len:
        raise NotServed(f"ext_len is {settings.ext_len}: an extended context is not served, expected 0")
    if settings.attn_type:
        raise NotServed(f"attn_type is {settings.attn_type}: expected 0, relative sinusoids")
    if settings.sample_softmax and settings.sample_softmax > 0:
        raise NotServed(f"sample_softmax is {settings.sample_softmax}: expected none")
    segment, memory = settings.tgt_len, settings.mem_len
    if settings.same_length:
        if memory < 1:
            raise NotServed(f"mem_len is {memory}: with same_length nothing would be seen")
        segment, memory = 1, memory - 1
    clamp = settings.clamp_len if settings.clamp_len and settings.clamp_len > 0 else None
    return {"type": "transformer_xl", "segment_length": segment, "memory_length": memory,
            "clamp_length": clamp}


@torch.no_grad()
def tensors_of(state):
    """{Lintel's name: tensor} of a checkpoint's; NotServed for one that has no place."""
    for name in state:
        for pattern, reason in _REFUSED:
            if re.match(pattern, name):
                raise NotServed(f"{name}: {reason}")
    state = {name: tensor for name, tensor in state.items()
             if name not in ("pos_emb.inv_freq", "crit.out_layers.0.bias", _EMBEDDING, _OUTPUT)
             and not name.startswith(("word_emb.emb_projs.", "crit.out_projs."))} | _outer(state)
    out, shared = {}, {name: state.pop(name) for name in _SHARED if name in state}
    for name, tensor in state.items():
        in_layer = _LAYER.fullmatch(name)
        if in_layer is None:
            out[name] = tensor
        elif in_layer[2] == _QKV:
            if tensor.dim() != 2 or len(tensor) % 3:
                raise NotServed(f"{name}: has {list(tensor.shape)}, expected rows of query, key and value")
            for kind, part in zip(_PROJECTIONS, tensor.chunk(3)):
                out[f"transformer.layers.{in_layer[1]}.attention.{kind}_projection.weight"] = part
        elif in_layer[2] in _IN_LAYER:
            out[f"transformer.layers.{in_layer[1]}.{_IN_LAYER[in_layer[2]]}"] = tensor
        else:
            out[name] = tensor  # refused by its own name, as what is no part of the model
    for layer in _layers(out):
        for name, tensor in shared.items():
            out.setdefault(f"{layer}attention.inner_attention.{name}", tensor)
        for kind in (*_PROJECTIONS, "out"):  # the authors' have no biases
            weight = out.get(f"{layer}attention.{kind}_projection.weight")
            if weight is not None:
                out[f"{layer}attention.{kind}_projection.bias"] = torch.zeros(len(weight))
    return out


def _outer(state):
    """Embedding and predictor. Embeddings are multiplied by the square root of d_model, and both go
    through a projection where they are narrower than the model: products that are stored.
    """
    out = {}
    for name in (_EMBEDDING, _OUTPUT):
        if name not in state:
            raise NotServed(f"{name}: missing")
    embedding = state[_EMBEDDING]
    for name in ("word_emb.emb_projs.0", "crit.out_projs.0"):
        if name in state and (state[name].dim() != 2 or state[name].shape[1] != embedding.shape[1]):
            raise NotServed(f"{name}: has {list(state[name].shape)}, expected [d_model, {embedding.shape[1]}]")
    if "word_emb.emb_projs.0" in state:
        embedding = embedding @ state["word_emb.emb_projs.0"].T
    out["value_embedding.weight"] = embedding * embedding.shape[1] ** 0.5
    predictor = state[_OUTPUT]
    if "crit.out_projs.0" in state:
        predictor = predictor @ state["crit.out_projs.0"].T
    out["predictor.weight"] = predictor
    if "crit.out_layers.0.bias" in state:
        out["predictor.bias"] = state["crit.out_layers.0.bias"]
    return out


def _layers(tensors):
    return sorted({m[0] for m in map(re.compile(r"transformer\.layers\.\d+\.").match, tensors) if m})
