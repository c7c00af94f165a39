# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5's dense text models: gated delta layers and, every few layers, gated softmax attention.

Index letters in shapes: B sequences, T tokens, E hidden_size; of a delta layer H value heads, K and V
the widths of keys and values; of a softmax layer D head_dim.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..checks import ConfigError
from .base import FamilyModel, RmsNorm, precise


def _unit(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


class ShortConvolution(nn.Module):
    """A causal depthwise convolution with silu; its state is the last inputs."""

    def __init__(self, channels, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, 1, size))

    def forward(self, x, tail):
        """x [B, T, C], the inputs before it [B, size - 1, C] -> (the same, the last inputs)."""
        size, length = self.weight.shape[-1], x.shape[1]
        x = torch.cat([tail, x], 1)
        taps = self.weight[:, 0].unbind(-1)
        out = sum(tap * x[:, i:i + length] for i, tap in enumerate(taps))
        return F.silu(out), x[:, x.shape[1] - size + 1:]


class GatedDelta(nn.Module):
    """Gated DeltaNet (Yang et al. 2024)."""

    def __init__(self, config):
        super().__init__()
        self.key_heads = config.get("linear_num_key_heads", 16)
        self.heads = config.get("linear_num_value_heads", 32)
        self.key_width = config.get("linear_key_head_dim", 128)
        self.value_width = config.get("linear_value_head_dim", 128)
        self.size = config.get("linear_conv_kernel_dim", 4)
        if self.heads % self.key_heads:
            raise ConfigError(f"linear_num_value_heads: {self.heads} is no multiple of "
                              f"linear_num_key_heads {self.key_heads}")
        keys, values = self.key_heads * self.key_width, self.heads * self.value_width
        self.widths, width = [keys, keys, values], config.width
        self.in_proj_qkv = nn.Linear(width, sum(self.widths), bias=False)
        self.in_proj_z = nn.Linear(width, values, bias=False)
        self.in_proj_b = nn.Linear(width, self.heads, bias=False)
        self.in_proj_a = nn.Linear(width, self.heads, bias=False)
        self.conv1d = ShortConvolution(sum(self.widths), self.size)
        self.A_log = nn.Parameter(torch.zeros(self.heads))
        self.dt_bias = nn.Parameter(torch.zeros(self.heads))
        self.norm = RmsNorm(self.value_width, config.get("rms_norm_eps", 1e-6), adds_one=False)
        self.out_proj = nn.Linear(values, width, bias=False)

    def zero_state(self, like, batch):
        return [like.new_zeros(batch, self.size - 1, sum(self.widths)),
                like.new_zeros(batch, self.heads, self.key_width, self.value_width)]

    def forward(self, x, state, rule):
        rows, tail = self.conv1d(self.in_proj_qkv(x), state[0])
        q, k, v = rows.split(self.widths, -1)

        def heads(y, width):  # [B, T, n * width] -> [B, H, T, width]; a key head serves several
            y = precise(y.unflatten(-1, (-1, width)).transpose(1, 2))
            return y.repeat_interleave(self.heads // y.shape[1], 1)

        q, k, v = heads(q, self.key_width), heads(k, self.key_width), heads(v, self.value_width)
        b, a = self.in_proj_b(x), self.in_proj_a(x)
        with torch.autocast(x.device.type, enabled=False):
            q, k = _unit(q) / math.sqrt(self.key_width), _unit(k)
            beta = torch.sigmoid(precise(b)).transpose(1, 2).unsqueeze(-1)  # [B, H, T, 1]
            log_decay = -self.A_log.exp() * F.softplus(precise(a) + self.dt_bias)
            log_decay = log_decay.transpose(1, 2).unsqueeze(-1)
            # beta (v - d S^T k) is written where k is: the decayed state is what it corrects.
            out, memory = rule(log_decay, q, k, beta * v, log_decay.exp() * k, beta * k, state[1])
            out = self.norm(out.transpose(1, 2)).flatten(2)
        return self.out_proj(out * F.silu(self.in_proj_z(x))), [tail, memory]


class GatedSoftmax(nn.Module):
    """Softmax attention whose output passes a gate; the state is all keys and values."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.get("num_attention_heads", 16)
        self.key_heads = config.get("num_key_value_heads", 4)
        self.width = config.get("head_dim", 256)
        if self.heads % self.key_heads:
            raise ConfigError(f"num_attention_heads: {self.heads} is no multiple of "
                              f"num_key_value_heads {self.key_heads}")
        rope = config.get("rope_parameters", {})
        self.turned = int(self.width * rope.get("partial_rotary_factor", 0.25))
        self.theta = rope.get("rope_theta", 10000.0)
        has_bias, eps = config.get("attention_bias", False), config.get("rms_norm_eps", 1e-6)
        self.q_proj = nn.Linear(config.width, self.heads * 2 * self.width, bias=has_bias)
        self.k_proj = nn.Linear(config.width, self.key_heads * self.width, bias=has_bias)
        self.v_proj = nn.Linear(config.width, self.key_heads * self.width, bias=has_bias)
        self.o_proj = nn.Linear(self.heads * self.width, config.width, bias=has_bias)
        self.q_norm, self.k_norm = RmsNorm(self.width, eps), RmsNorm(self.width, eps)

    def zero_state(self, like, batch):
        return [like.new_zeros(batch, self.key_heads, 0, self.width) for _ in range(2)]

    def _rotated(self, x, first):
        """x [B, heads, T, D], whose first token is at position `first`."""
        half = self.turned // 2
        i = torch.arange(half, dtype=torch.float64, device=x.device)
        positions = torch.arange(first, first + x.shape[2], dtype=torch.float64, device=x.device)
        angle = positions.unsqueeze(1) * self.theta ** (-i / half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        left, right, rest = x.split([half, half, self.width - 2 * half], -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], -1)

    def forward(self, x, state, rule):
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, 2, self.width)).unbind(-2)
        k = self.k_proj(x).unflatten(-1, (self.key_heads, self.width))
        v = self.v_proj(x).unflatten(-1, (self.key_heads, self.width)).transpose(1, 2)
        first, length = state[0].shape[2], x.shape[1]
        q = self._rotated(self.q_norm(q).transpose(1, 2), first)
        k = torch.cat([state[0], self._rotated(self.k_norm(k).transpose(1, 2), first)], 2)
        v = torch.cat([state[1], v], 2)
        all_k, all_v = (y.repeat_interleave(self.heads // self.key_heads, 1) for y in (k, v))
        scores = q @ all_k.transpose(-1, -2) / math.sqrt(self.width)
        seen = torch.ones(length, first + length, dtype=torch.bool, device=x.device).tril(first)
        weights = precise(scores).masked_fill(~seen, -torch.inf).softmax(-1).to(all_v.dtype)
        out = (weights @ all_v).transpose(1, 2) * torch.sigmoid(gate)
        return self.o_proj(out.flatten(2)), [k, v]


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        inner = config.data["intermediate_size"]
        self.gate_proj = nn.Linear(config.width, inner, bias=False)
        self.up_proj = nn.Linear(config.width, inner, bias=False)
        self.down_proj = nn.Linear(inner, config.width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config, is_full):
        super().__init__()
        eps = config.get("rms_norm_eps", 1e-6)
        self.input_layernorm = RmsNorm(config.width, eps)
        self.post_attention_layernorm = RmsNorm(config.width, eps)
        if is_full:
            self.self_attn = GatedSoftmax(config)
        else:
            self.linear_attn = GatedDelta(config)
        self.mlp = FeedForward(config)

    @property
    def mixer(self):
        return self.self_attn if hasattr(self, "self_attn") else self.linear_attn

    def forward(self, x, state, rule, dropout):
        mixed, state = self.mixer(self.input_layernorm(x), state, rule)
        x = x + dropout(mixed)
        return x + dropout(self.mlp(self.post_attention_layernorm(x))), state


class Qwen35(FamilyModel):
    """A state is two tensors for each layer; those of softmax layers grow."""

    has_constant_state = False

    def __init__(self, config, dropout=0.0):
        super().__init__(config, dropout)
        interval = config.get("full_attention_interval", 4)
        types = config.get("layer_types", ["full_attention" if (i + 1) % interval == 0 else "linear_attention"
                                           for i in range(config.n_layers)])
        if len(types) != config.n_layers or set(types) - {"linear_attention", "full_attention"}:
            raise ConfigError(f"layer_types: is {types}, expected num_hidden_layers, {config.n_layers}, of "
                              "linear_attention and full_attention")
        body = nn.Module()
        body.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        body.layers = nn.ModuleList(Layer(config, kind == "full_attention") for kind in types)
        body.norm = RmsNorm(config.width, config.get("rms_norm_eps", 1e-6))
        self.model = body
        if not config.get("tie_word_embeddings", False):
            self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)

    def zero_state(self, batch):
        like = self.model.norm.weight
        return [tensor for layer in self.model.layers for tensor in layer.mixer.zero_state(like, batch)]

    def run(self, tokens, state, rule):
        x, after = self.dropout(self.model.embed_tokens(tokens)), []
        for i, layer in enumerate(self.model.layers):
            x, new = layer(x, state[2 * i:2 * i + 2], rule, self.dropout)
            after += new
        with torch.autocast(x.device.type, enabled=False):
            head = self.lm_head if hasattr(self, "lm_head") else self.model.embed_tokens
            return F.linear(self.model.norm(precise(x)), head.weight), after

    @staticmethod
    def completed(data):
        """config.json with what follows from other keys."""
        if "layer_types" in data:
            interval = data.get("full_attention_interval", 4)
            data["layer_types"] = ["full_attention" if (i + 1) % interval == 0 else "linear_attention"
                                   for i in range(data["num_hidden_layers"])]
        return data

    @torch.no_grad()
    def initialise(self, seed):
        """Weights N(0, 1/fan_in), residual outputs scaled down by sqrt(2 n_layers); heads of delta layers
        forget within 2 to 1,000 tokens.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                std = 0.5 / math.sqrt(self.config.width)
            elif parameter.dim() < 2:
                continue
            else:
                std = 1 / math.sqrt(parameter.shape[-1])
                if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * self.config.n_layers)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
        for layer in self.model.layers:
            if isinstance(layer.mixer, GatedDelta):
                rates = torch.logspace(math.log10(1e-3), math.log10(0.5), layer.mixer.heads)
                layer.mixer.dt_bias.copy_(torch.log(torch.expm1(rates)))  # softplus's inverse
