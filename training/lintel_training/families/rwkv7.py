# SPDX-License-Identifier: Apache-2.0
"""RWKV-7 (Peng et al. 2025) in the layout of transformers, which is its author's with `rwkv7.` in front.

Index letters in shapes: B sequences, T tokens, E hidden_size, H heads, D head_dim, R ranks.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..checks import ConfigError
from .base import FamilyModel, precise

_MIXES = "rwkvag"  # inputs of the time mixer, each with a mix of its own
_RANKS = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "v": "v_low_rank_dim",
          "g": "gate_low_rank_dim"}
# log w is -exp(-1/2) sigmoid(.), so a decay is above exp(-0.6065) = 0.545.
_DECAY_SCALE = -math.exp(-0.5)


def _shifted(x, last):
    """The token before each token: x [B, T, E], what came before the first [B, E] -> [B, T, E]."""
    return torch.cat([last.unsqueeze(1), x[:, :-1]], 1)


class TimeMix(nn.Module):
    """The delta rule, whose key is erased at a learned rate and whose decay is a vector."""

    def __init__(self, config, layer):
        super().__init__()
        width, self.head_width = config.width, config.get("head_dim", 64)
        self.heads, self.layer = width // self.head_width, layer
        self.eps = self.head_width * config.get("norm_eps", 1e-5)
        for mix in _MIXES:
            setattr(self, f"x_{mix}", nn.Parameter(torch.zeros(1, 1, width)))
        for pair, key in _RANKS.items():
            rank = config.data[key]
            setattr(self, pair + "1", nn.Parameter(torch.zeros(width, rank)))
            setattr(self, pair + "2", nn.Parameter(torch.zeros(rank, width)))
            if pair != "g":
                setattr(self, pair + "0", nn.Parameter(torch.zeros(1, 1, width)))
        self.k_k = nn.Parameter(torch.zeros(1, 1, width))
        self.k_a = nn.Parameter(torch.zeros(1, 1, width))
        self.r_k = nn.Parameter(torch.zeros(self.heads, self.head_width))
        for name in ("receptance", "key", "value", "output"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.ln_x = nn.GroupNorm(self.heads, width, eps=self.eps)

    def forward(self, x, last, state, first_value, rule):
        """x [B, T, E] -> (the same, last row of x, state, value of layer 0)."""
        change = _shifted(x, last) - x
        x_r, x_w, x_k, x_v, x_a, x_g = (torch.addcmul(x, change, getattr(self, f"x_{m}"))
                                        for m in _MIXES)
        r, k, v = self.receptance(x_r), self.key(x_k), self.value(x_v)
        log_decay = _DECAY_SCALE * torch.sigmoid(torch.tanh(x_w @ self.w1) @ self.w2 + self.w0)
        rate = torch.sigmoid(x_a @ self.a1 @ self.a2 + self.a0)
        gate = torch.sigmoid(x_g @ self.g1) @ self.g2
        if self.layer == 0:
            first_value = v
        else:
            v = v + (first_value - v) * torch.sigmoid(x_v @ self.v1 @ self.v2 + self.v0)

        def heads(y):  # [B, T, E] -> [B, T, H, D]
            return y.unflatten(-1, (self.heads, self.head_width))

        erased = F.normalize(heads(k * self.k_k), dim=-1, eps=1e-12)
        k = k * (1.0 + (rate - 1.0) * self.k_a)
        r, k, v = heads(r), heads(k), heads(v)
        # The recurrence stays in float32 also under autocast: rounded decays lose the past.
        with torch.autocast(x.device.type, enabled=False):
            inputs = (heads(log_decay), r, k, v, erased, erased * heads(rate))
            out, state = rule(*(precise(y).transpose(1, 2) for y in inputs), state)
        out = F.layer_norm(out.transpose(1, 2), (self.head_width,), eps=self.eps).flatten(2)
        out = out * self.ln_x.weight + self.ln_x.bias
        bonus = (r * k * self.r_k).sum(-1, keepdim=True) * v
        return self.output((out + bonus.flatten(2)) * gate), x[:, -1], state, first_value


class ChannelMix(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config.width, config.data["intermediate_size"]
        self.x_k = nn.Parameter(torch.zeros(1, 1, width))
        self.key = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(inner, width, bias=False)

    def forward(self, x, last):
        y = torch.addcmul(x, _shifted(x, last) - x, self.x_k)
        return self.value(torch.relu(self.key(y)).square()), x[:, -1]


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        eps = config.get("norm_eps", 1e-5)
        if layer == 0:
            self.ln0 = nn.LayerNorm(config.width, eps)
        self.ln1, self.ln2 = nn.LayerNorm(config.width, eps), nn.LayerNorm(config.width, eps)
        self.att, self.ffn = TimeMix(config, layer), ChannelMix(config)

    def forward(self, x, state, first_value, rule, dropout):
        """state: [last row of ln1 [B, E], S [B, H, D, D], last row of ln2 [B, E]]."""
        mixed, last_att, memory, first_value = self.att(self.ln1(x), state[0], state[1], first_value, rule)
        x = x + dropout(mixed)
        mixed, last_ffn = self.ffn(self.ln2(x), state[2])
        return x + dropout(mixed), [last_att, memory, last_ffn], first_value


class Rwkv7(FamilyModel):
    """A state is, for each layer, two rows and a matrix for each head."""

    def __init__(self, config, dropout=0.0):
        super().__init__(config, dropout)
        if config.width % config.get("head_dim", 64):
            raise ConfigError(f"head_dim: {config.get('head_dim', 64)} does not divide hidden_size {config.width}")
        for key in _RANKS.values():
            if config.get(key) is None:
                raise ConfigError(f"{key}: missing, and needed to build a model")
        eps = config.get("norm_eps", 1e-5)
        body = nn.Module()
        body.emb = nn.Embedding(config.vocab_size, config.width)
        body.blocks = nn.ModuleList(Block(config, i) for i in range(config.n_layers))
        body.ln_out = nn.LayerNorm(config.width, eps)
        self.rwkv7 = body
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)

    def zero_state(self, batch):
        weight, width = self.head.weight, self.config.width
        mixer = self.rwkv7.blocks[0].att
        sizes = [(width,), (mixer.heads, mixer.head_width, mixer.head_width), (width,)]
        return [weight.new_zeros(batch, *size) for _ in self.rwkv7.blocks for size in sizes]

    def run(self, tokens, state, rule):
        body = self.rwkv7
        x = self.dropout(body.blocks[0].ln0(body.emb(tokens)))
        after, first_value = [], None
        for i, block in enumerate(body.blocks):
            x, new, first_value = block(x, state[3 * i:3 * i + 3], first_value, rule, self.dropout)
            after += new
        with torch.autocast(x.device.type, enabled=False):
            return self.head(body.ln_out(precise(x))), after

    def load_tensors(self, tensors):
        """Tensors of layer 0 that are never used may be left out."""
        unused = {f"rwkv7.blocks.0.att.v{i}" for i in range(3)}
        own = self.state_dict()
        super().load_tensors({**{name: own[name] for name in unused}, **tensors})

    @staticmethod
    def completed(data):
        """config.json with what follows from other keys."""
        data["num_heads"] = data["hidden_size"] // data["head_dim"]
        return data

    @torch.no_grad()
    def initialise(self, seed):
        """Residual outputs start at 0, and decays spread over the channels of a head.

        The slowest forgets within exp(6) tokens, the fastest within two; deeper layers are slower.
        Mixes run from the token before to the token itself, as early layers need both.
        """
        generator = torch.Generator().manual_seed(seed)

        def normal(tensor, std):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)

        width, layers = self.config.width, self.config.n_layers
        normal(self.rwkv7.emb.weight, 0.5)
        normal(self.head.weight, 0.5 / math.sqrt(width))
        channel = (torch.arange(width) + 0.5) / width
        within = (torch.arange(width) % self.rwkv7.blocks[0].att.head_width + 0.5) / \
            self.rwkv7.blocks[0].att.head_width
        for i, block in enumerate(self.rwkv7.blocks):
            att, depth = block.att, i / max(1, layers - 1)
            for mix, power in zip(_MIXES, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)):
                getattr(att, f"x_{mix}").copy_(1 - channel.pow(power * (1 - 0.7 * depth)))
            block.ffn.x_k.copy_(1 - channel.pow(1 - 0.5 * depth))
            att.w0.copy_(-5.5 + 5.0 * within.pow(1.0 + depth))
            att.a0.fill_(-0.5)
            att.v0.fill_(0.7)
            att.k_k.fill_(0.85)
            att.k_a.fill_(1.0)
            for pair in _RANKS:
                normal(getattr(att, pair + "1"), 0.3 / math.sqrt(width))
                second = getattr(att, pair + "2")
                normal(second, (1.0 if pair == "g" else 0.3) / math.sqrt(second.shape[0]))
            for linear, gain in ((att.receptance, 0.5), (att.key, 0.5), (att.value, 1.0),
                                 (block.ffn.key, 1.0)):
                normal(linear.weight, gain / math.sqrt(width))
            att.output.weight.zero_()
            block.ffn.value.weight.zero_()
