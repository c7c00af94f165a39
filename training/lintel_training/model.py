# SPDX-License-Identifier: Apache-2.0
"""The autoregressive transformer, parallel over the sequence.

The names of its `state_dict` are those of the model directory's tensors. Index letters in shapes:
B sequences, N positions, E d_model, H n_heads, D d_head, F d_ff, V vocab_size, O outputs of the head.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .transformer import Transformer

# Sequences are padded at their end to a multiple of this: matrix products and the attention
# kernels want aligned rows, and in a causal model nothing before the padding sees it.
LENGTH_MULTIPLE = 16


def sinusoidal(positions, d):
    """pe[p, 2i] = sin(p * 10000^(-2i/d)), pe[p, 2i+1] = cos: [...] -> float32 [..., d].

    The angle is in double, so that positions of a million still have a phase.
    """
    i = torch.arange(0, d, 2, dtype=torch.float64, device=positions.device)
    angle = positions.double().unsqueeze(-1) * torch.exp(i * (-math.log(10000.0) / d))
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).float()


class PositionEmbedding(nn.Module):
    """Holds `pe` [1, max_length, d]: learned, or a table, or nothing when unbounded."""

    def __init__(self, config):
        super().__init__()
        self.d = config.d_position
        self.max_length = config.max_length
        if config.position_encoding == "learned":
            self.pe = nn.Parameter(torch.zeros(1, config.max_length, self.d))
        elif config.max_length:
            self.register_buffer("pe", sinusoidal(torch.arange(config.max_length), self.d)[None])

    def forward(self, positions):
        """int64 positions [...] -> [..., d]."""
        if self.max_length == 0:
            return sinusoidal(positions, self.d)
        # The clamp is for the padding after a full-length sequence.
        return self.pe[0][positions.clamp(max=self.max_length - 1)]


class Model(nn.Module):
    """int64 tokens [B, N] -> head outputs [B, N, O].

    Options: `dropout` is the rate on the embedding, after attention and in the feed-forward;
    `checkpointing` recomputes each layer in the backward pass instead of keeping its
    intermediate values.
    """

    def __init__(self, config, dropout=0.0, checkpointing=False):
        super().__init__()
        self.config = config
        self.value_embedding = nn.Embedding(config.vocab_size, config.d_value_embedding)
        if config.position_encoding != "none":
            self.pos_embedding = PositionEmbedding(config)
        if config.step_embedding:
            self.step_embedding = nn.Embedding(config.n_layers, config.d_model)
        self.transformer = Transformer(config, dropout, checkpointing)
        self.predictor = nn.Linear(config.d_stream, config.n_outputs)
        self.dropout = nn.Dropout(dropout)

    def positions(self, n, offsets=None):
        """Position rows of n tokens [N, E'] (with offsets [B, N, E']); None without positions."""
        if self.config.position_encoding == "none":
            return None
        positions = torch.arange(n, device=self.predictor.weight.device)
        if offsets is not None:
            positions = positions + offsets.unsqueeze(1)
        return self.pos_embedding(positions)

    def embed(self, tokens, rows):
        """tokens [B, N], their position rows -> [B, N, E]."""
        x = self.value_embedding(tokens)
        if rows is None:
            return x
        if self.config.embedding == "value_add_position":
            return x + rows
        return torch.cat([x, rows.expand(*x.shape[:2], -1)], -1)

    def added(self, rows):
        """For each layer what is added to its input: [N, E] or what broadcasts to it, or None."""
        out = []
        for i in range(self.config.n_layers):
            parts = []
            if i > 0 and self.config.position_injection == "every_layer":
                parts.append(rows)
            if self.config.step_embedding:
                parts.append(self.step_embedding.weight[i])
            out.append(sum(parts) if parts else None)
        return out

    def forward(self, tokens, offsets=None, attentions=None):
        """tokens [B, N], the position of each sequence's first token [B] or 0 -> [B, N, O].

        attentions: for each layer what computes its attention, [B, N, E] -> the same, where it is not
        the parallel form (recurrent.py).
        """
        n = tokens.shape[1]
        if self.config.max_length and n > self.config.max_length:
            raise ValueError(f"{n} tokens, but max_length is {self.config.max_length}")
        if attentions is None:
            tokens = F.pad(tokens, (0, -n % LENGTH_MULTIPLE))
        rows = self.positions(tokens.shape[1], offsets)
        x = self.dropout(self.embed(tokens, rows))
        x = self.transformer(x, self.added(rows), attentions)
        # The head is in float32 also under autocast: a mean or a scale in bfloat16 is coarser than a pixel.
        with torch.autocast(x.device.type, enabled=False):
            return self.predictor(x.float())[:, :n]

    def load_tensors(self, tensors):
        """Loads the tensors of a model directory; ValueError names each one that does not fit."""
        expected = self.state_dict()
        if self.config.position_encoding == "sinusoidal":  # the table may be left out
            expected = {k: v for k, v in expected.items()
                        if k != "pos_embedding.pe" or k in tensors}
        problems = mismatches(expected, tensors)
        if problems:
            raise ValueError("\n".join(problems))
        self.load_state_dict(tensors, strict=False)


def mismatches(expected, given):
    """A line for each tensor that is missing, surplus, mis-shaped or not finite."""
    lines = []
    for name, tensor in expected.items():
        if name not in given:
            lines.append(f"{name}: missing, expected {list(tensor.shape)}")
        elif given[name].shape != tensor.shape:
            lines.append(f"{name}: has {list(given[name].shape)}, expected {list(tensor.shape)}")
        elif not torch.isfinite(given[name].float()).all():
            lines.append(f"{name}: {list(tensor.shape)} holds a value that is not finite")
    lines += [f"{name}: {list(tensor.shape)} is not part of the model"
              for name, tensor in given.items() if name not in expected]
    return lines


@torch.no_grad()
def initialise(model, seed):
    """Weights N(0, 1/fan_in), residual outputs scaled down by sqrt(2 n_layers), biases 0.

    Queries and keys start twice as wide: with narrow ones phi(x) = elu(x) + 1 is nearly 1 for
    everything, attention is a plain mean, and thousands of steps go by before it looks anywhere.
    Means of the mixture components start spread over the pixel range, with a wide scale, so that
    each component has something to specialise in from the first step. Values start as strong as the
    sinusoids they are added to: a LayerNorm divides both by the same number, and a value of 0.02
    beside a position of 0.7 is hardly seen (text: 2.92 nats/byte after 150 updates, against 2.51).
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor, std):
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)

    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.zero_()
        elif ".norm" in name:
            parameter.fill_(1.0)
        elif name.startswith("value_embedding") and model.config.position_encoding == "sinusoidal":
            normal(parameter, math.sqrt(0.5))
        elif ".inner_attention." in name:
            continue  # below, as the kind of attention wants it
        elif "embedding" in name or name.startswith("predictor."):
            normal(parameter, 0.02)
        else:
            gain = 1.0
            if name.endswith(("out_projection.weight", "linear2.weight")):
                gain = 1 / math.sqrt(2 * model.config.n_layers)
            elif name.endswith(("query_projection.weight", "key_projection.weight")):
                gain = 2.0
            normal(parameter, gain / math.sqrt(parameter.shape[1]))
    if model.config.modality.type == "image":
        _initialise_image_embedding(model)
    for layer in model.transformer.layers:
        layer.attention.inner_attention.initialise(normal)
    if model.config.head.type == "mixture_of_logistics":
        m = model.config.head.mixtures
        model.predictor.bias[m:2 * m] = torch.linspace(-1, 1, m)
        model.predictor.bias[2 * m:] = -2.0


def _waves(x, periods):
    """cos and sin of x [N] at each period: [N, 2 * len(periods)]."""
    angle = 2 * math.pi * x.unsqueeze(1) / periods
    return torch.cat([angle.cos(), angle.sin()], 1)


def _initialise_image_embedding(model):
    """Adds what is known of pixels to the random embedding: values are ordered, positions a grid.

    Waves over the value fill the first half of the features and, where positions are learned,
    waves over column and row the second. From 256 + 783 unrelated vectors the network would have
    to find both out, the rarer values from few examples.
    """
    config, m = model.config, model.config.modality
    values = model.value_embedding.weight
    half = (config.d_model // 2) // 2 * 2
    if values.shape[1] >= half:
        periods = torch.logspace(math.log10(1 / 16), math.log10(2.0), half // 2)
        v = torch.arange(config.vocab_size) / (config.vocab_size - 1.0)
        values[:, :half] += 0.5 * _waves(v, periods)
    if config.position_encoding != "learned" or m.channels != 1:
        return
    table = model.pos_embedding.pe[0]  # [max_length, d]
    quarter = half // 4 * 2
    target = torch.arange(config.max_length) + 1  # the pixel that is predicted from there
    size = max(m.height, m.width)
    periods = torch.logspace(math.log10(2.0), math.log10(2.0 * size), quarter // 2)
    grid = torch.cat([_waves(target % m.width, periods), _waves(target // m.width, periods)], 1)
    table[:, -grid.shape[1]:] += 0.5 * grid
