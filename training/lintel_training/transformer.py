# SPDX-License-Identifier: Apache-2.0
"""The layers of the transformer, and how they are joined: which weights, which residuals.

Index letters in shapes as in model.py.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .attention import module_of, projections_of
from .lora import LoraLinear


class SelfAttention(nn.Module):
    """Projections around the inner attention."""

    def __init__(self, config, attention):
        super().__init__()
        self.n_heads = config.n_heads
        kind = module_of(attention.type).Attention
        projections = projections_of(attention.type)
        widths = kind.widths(attention, config, [p["name"] for p in projections])
        for p, width in zip(projections, widths):
            linear = nn.Linear(config.d_model, width, bias=p["has_bias"])
            if not p["is_read"]:  # stored for the format, used by nothing
                linear.requires_grad_(False)
            self.add_module(p["name"], linear)
        self._read = [p["name"] for p in projections if p["is_read"]]
        self.out_projection = nn.Linear(config.n_heads * config.d_head, config.d_model)
        self.inner_attention = kind(attention, config)

    def project(self, x):
        """[B, N, E] -> what the inner attention reads, [B, H, N, D] each.

        One matrix product for all of them: their weights are laid end to end at run time, which
        is cheap, and the tensors keep the names of the format. What adapters add comes after it, so
        that an adapter of zeros leaves every bit as it is: a BLAS may round a narrower product otherwise.
        """
        parts = [getattr(self, name) for name in self._read]
        weight = torch.cat([p.weight for p in parts])
        bias = torch.cat([p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias
                          for p in parts])
        split = F.linear(x, weight, bias).split([len(p.weight) for p in parts], -1)
        split = [y + p.lora(x) if isinstance(p, LoraLinear) else y for y, p in zip(split, parts)]
        batch, n, _ = x.shape
        return [part.reshape(batch, n, self.n_heads, -1).transpose(1, 2) for part in split]

    def merge(self, heads):
        """[B, H, N, D] -> [B, N, E], through the output projection."""
        batch, _, n, _ = heads.shape
        return self.out_projection(heads.transpose(1, 2).reshape(batch, n, -1))

    def forward(self, x):
        return self.merge(self.inner_attention(*self.project(x)))


class Layer(nn.Module):
    """Attention and feed-forward, each with a residual sum; LayerNorm before or after."""

    def __init__(self, config, attention, dropout):
        super().__init__()
        self.pre_norm = config.norm_placement == "pre"
        self.activation = F.relu if config.activation == "relu" else F.gelu
        self.attention = SelfAttention(config, attention)
        self.linear1 = nn.Linear(config.d_model, config.d_ff)
        self.linear2 = nn.Linear(config.d_ff, config.d_model)
        self.norm1 = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.norm2 = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.dropout = nn.Dropout(dropout)

    def feed_forward(self, x):
        hidden = self.dropout(self.activation(self.linear1(x)))
        return self.dropout(self.linear2(hidden))

    def forward(self, x, attention=None):
        """[B, N, E] -> [B, N, E]; `attention` replaces self.attention (incremental decoding)."""
        attention = attention or self.attention
        if self.pre_norm:
            x = x + self.dropout(attention(self.norm1(x)))
            return x + self.feed_forward(self.norm2(x))
        x = self.norm1(x + self.dropout(attention(x)))
        return self.norm2(x + self.feed_forward(x))


class ReversibleLayer(Layer):
    """The same over two streams (RevNet, Gomez et al. 2017; Reformer, Kitaev et al. 2020).

        x1 += attention(norm1(x2)),  x2 += feed_forward(norm2(x1))
    """

    def forward(self, x, attention=None):
        """[2, B, N, E] -> the same."""
        attention = attention or self.attention
        x1, x2 = x.unbind(0)
        x1 = x1 + self.dropout(attention(self.norm1(x2)))
        return torch.stack([x1, x2 + self.feed_forward(self.norm2(x1))])


class Transformer(nn.Module):
    """Layers in turn; several may have the same weights, each of which is one of `layers`."""

    def __init__(self, config, dropout, checkpointing):
        super().__init__()
        self.order, self.residual = config.weights_of_layers, config.residual
        kind = Layer if config.residual == "sum" else ReversibleLayer
        self.layers = nn.ModuleList(kind(config, config.attention[self.order.index(u)], dropout)
                                    for u in range(max(self.order) + 1))
        self.norm = (nn.LayerNorm(config.d_stream, config.layer_norm_eps)
                     if config.final_norm else None)
        self.checkpointing = checkpointing

    def forward(self, x, added, attentions=None):
        """[B, N, E] -> [B, N, E], or 2E where both streams are read.

        added: for each layer what is added to its input, in both streams, or None. attentions: of
        Model.forward.
        """
        if self.residual != "sum":
            x = torch.stack([x, x])
        for i, u in enumerate(self.order):
            layer = self.layers[u]
            if added[i] is not None:
                x = x + added[i]
            if attentions is not None:
                x = layer.forward(x, attentions[i])  # not the compiled form, if there is one
            elif self.checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        if self.residual == "reversible_mean":
            x = x.mean(0)
        elif self.residual == "reversible_concat":
            x = torch.cat(x.unbind(0), -1)
        return x if self.norm is None else self.norm(x)
