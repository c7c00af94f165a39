# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of kimiyoung/transformer-xl: converted, they compute what the paper says."""

import math
import os
import tempfile
import unittest

import torch
from torch import nn

import context  # noqa: F401
from converting import convert

SYMBOLS, WIDTH, HEADS, D, INNER, LAYERS = 19, 12, 3, 4, 20, 2


class Attention(nn.Module):
    """Has the names and shapes of RelPartialLearnableMultiHeadAttn."""

    def __init__(self, pre_lnorm, untied):
        super().__init__()
        self.pre_lnorm = pre_lnorm
        self.qkv_net = nn.Linear(WIDTH, 3 * HEADS * D, bias=False)
        self.o_net = nn.Linear(HEADS * D, WIDTH, bias=False)
        self.r_net = nn.Linear(WIDTH, HEADS * D, bias=False)
        self.layer_norm = nn.LayerNorm(WIDTH)
        if untied:
            self.r_w_bias = nn.Parameter(torch.zeros(HEADS, D))
            self.r_r_bias = nn.Parameter(torch.zeros(HEADS, D))

    def forward(self, x, memory, w_bias, r_bias, clamp, window):
        """Dai et al. 2019, section 3.3, score by score: x [N, E] behind memory [M, E] -> [N, E]."""
        both = torch.cat([memory, x])
        qkv = self.qkv_net(self.layer_norm(both) if self.pre_lnorm else both)
        q, k, v = (part.view(-1, HEADS, D) for part in qkv.chunk(3, -1))
        outs = []
        for i in range(len(memory), len(both)):
            out = []
            for h in range(HEADS):
                scores = []
                seen = [j for j in range(i + 1) if window is None or i - j < window]
                for j in seen:
                    r = self.r_net(sinusoid(min(i - j, clamp or i))).view(HEADS, D)[h]
                    scores.append((q[i, h] + w_bias[h]) @ k[j, h] + (q[i, h] + r_bias[h]) @ r)
                weights = torch.softmax(torch.stack(scores) / math.sqrt(D), 0)
                out.append(weights @ v[seen, h])
            outs.append(torch.cat(out))
        y = x + self.o_net(torch.stack(outs))
        return y if self.pre_lnorm else self.layer_norm(y)


def sinusoid(distance):
    angles = torch.tensor([distance / 10000 ** (2 * i / WIDTH) for i in range(WIDTH // 2)])
    return torch.cat([angles.sin(), angles.cos()])


class FeedForward(nn.Module):
    """Has the parameters of PositionwiseFF."""

    def __init__(self, pre_lnorm):
        super().__init__()
        self.pre_lnorm = pre_lnorm
        self.CoreNet = nn.Sequential(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Dropout(0.0),
                                     nn.Linear(INNER, WIDTH), nn.Dropout(0.0))
        self.layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        if self.pre_lnorm:
            return x + self.CoreNet(self.layer_norm(x))
        return self.layer_norm(x + self.CoreNet(x))


class Layer(nn.Module):
    def __init__(self, pre_lnorm, untied):
        super().__init__()
        self.dec_attn = Attention(pre_lnorm, untied)
        self.pos_ff = FeedForward(pre_lnorm)


class TransformerXl(nn.Module):
    """Has the names of MemTransformerLM, where there are no clusters."""

    def __init__(self, tgt_len=5, mem_len=7, clamp_len=-1, same_length=False, pre_lnorm=False, untied=False,
                 d_embed=WIDTH):
        super().__init__()
        self.tgt_len, self.mem_len, self.ext_len, self.attn_type = tgt_len, mem_len, 0, 0
        self.clamp_len, self.same_length, self.sample_softmax = clamp_len, same_length, -1
        self.word_emb, self.crit, self.pos_emb = nn.Module(), nn.Module(), nn.Module()
        self.word_emb.emb_layers = nn.ModuleList([nn.Embedding(SYMBOLS, d_embed)])
        self.crit.out_layers = nn.ModuleList([nn.Linear(d_embed, SYMBOLS)])
        if d_embed != WIDTH:
            self.word_emb.emb_projs, self.crit.out_projs = (
                nn.ParameterList([nn.Parameter(torch.zeros(WIDTH, d_embed))]) for _ in range(2))
        self.pos_emb.register_buffer("inv_freq", torch.arange(WIDTH // 2) / 2.0)
        self.layers = nn.ModuleList(Layer(pre_lnorm, untied) for _ in range(LAYERS))
        if not untied:
            self.r_w_bias = nn.Parameter(torch.zeros(HEADS, D))
            self.r_r_bias = nn.Parameter(torch.zeros(HEADS, D))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)

    @torch.no_grad()
    def forward(self, tokens):
        """Logits of one sequence [N], by segments that see the hidden rows of those before."""
        memories = [torch.zeros(0, WIDTH) for _ in self.layers]
        logits = []
        for segment in tokens.split(self.tgt_len):
            x = self.word_emb.emb_layers[0](segment)
            if hasattr(self.word_emb, "emb_projs"):
                x = x @ self.word_emb.emb_projs[0].T
            x = x * math.sqrt(WIDTH)
            for i, layer in enumerate(self.layers):
                before, memories[i] = memories[i], torch.cat([memories[i], x])[-self.mem_len:]
                if self.mem_len == 0:
                    memories[i] = before
                biases = layer.dec_attn if hasattr(layer.dec_attn, "r_w_bias") else self
                x = layer.dec_attn(x, before, biases.r_w_bias, biases.r_r_bias,
                                   max(0, self.clamp_len), self.mem_len if self.same_length else None)
                x = layer.pos_ff(x)
            if hasattr(self.crit, "out_projs"):
                x = x @ self.crit.out_projs[0]
            logits.append(self.crit.out_layers[0](x))
        return torch.cat(logits)


FLAGS = ("--modality", "tokens")
SHAPES = {
    "plain": {}, "pre-norm": {"pre_lnorm": True}, "untied": {"untied": True},
    "no memory": {"mem_len": 0}, "token by token": {"tgt_len": 1}, "a short clamp": {"clamp_len": 3},
    "a clamp beyond": {"clamp_len": 100}, "same length": {"same_length": True, "mem_len": 6},
    "narrow embedding": {"d_embed": 5},
}


class TransformerXlTest(unittest.TestCase):
    def check_same(self, model, converted):
        tokens = torch.arange(33) * 7 % SYMBOLS
        with torch.no_grad():
            difference = (converted(tokens[None])[0] - model(tokens)).abs().max().item()
        self.assertLess(difference, 2e-5)

    def test_a_model_that_was_saved_whole_computes_the_same_logits(self):
        for name, changes in SHAPES.items():
            with self.subTest(name):
                torch.manual_seed(3)
                model = TransformerXl(**changes)
                status, errors, converted = convert(model, *FLAGS)
                self.assertEqual((status, errors), (0, ""))
                self.check_same(model, converted)
                attention = converted.config.attention[0]
                self.assertEqual(attention.type, "transformer_xl")
                if changes.get("same_length"):
                    self.assertEqual((attention.segment_length, attention.memory_length), (1, 5))

    def test_a_state_dict_and_flags_are_the_same(self):
        torch.manual_seed(4)
        model = TransformerXl(pre_lnorm=True, clamp_len=4)
        state = {"module." + name: tensor for name, tensor in model.state_dict().items()}
        status, errors, converted = convert(
            state, *FLAGS, "--segment-length", "5", "--memory-length", "7", "--clamp-length", "4",
            "--norm-placement", "pre")
        self.assertEqual((status, errors), (0, ""))
        self.check_same(model, converted)
        status, errors, _ = convert(state, *FLAGS, "--segment-length", "5")
        self.assertEqual(status, 1)
        self.assertIn("--memory-length (mem_len) is needed", errors)

    def test_flags_come_before_what_was_saved(self):
        torch.manual_seed(5)
        model = TransformerXl(mem_len=7)
        status, errors, converted = convert(model, *FLAGS, "--same-length", "--memory-length", "3")
        self.assertEqual((status, errors), (0, ""))
        model.mem_len, model.same_length = 3, True
        self.check_same(model, converted)

    def test_what_is_not_served_is_refused_by_name(self):
        state = TransformerXl().state_dict()

        def refused(text, changed=None, **attributes):
            data = changed
            if changed is None:
                data = TransformerXl()
                for name, value in attributes.items():
                    setattr(data, name, value)
            status, errors, _ = convert(data, *FLAGS, "--segment-length", "5", "--memory-length", "7")
            self.assertEqual(status, 1)
            self.assertIn(text, errors)
            self.assertEqual(len(errors.splitlines()), 1)

        def without(name):
            return {key: value for key, value in state.items() if key != name}

        refused("crit.cluster_weight: an adaptive softmax with clusters",
                dict(state, **{"crit.cluster_weight": torch.zeros(2, WIDTH)}))
        refused("word_emb.emb_layers.1.weight: an adaptive softmax with clusters",
                dict(state, **{"word_emb.emb_layers.1.weight": torch.zeros(2, 4)}))
        refused("r_emb: learned relative positions (attn_type 1 or 3)",
                dict(state, r_emb=torch.zeros(LAYERS, 9, HEADS, D)))
        refused("layers.0.dec_attn.q_net.weight: absolute positions",
                dict(state, **{"layers.0.dec_attn.q_net.weight": torch.zeros(HEADS * D, WIDTH)}))
        refused("crit.out_layers.0.weight: missing", without("crit.out_layers.0.weight"))
        refused("layers.1.dec_attn.more: [2] is not part of the model",
                dict(state, **{"layers.1.dec_attn.more": torch.zeros(2)}))
        refused("transformer.layers.1.norm1.bias: missing",
                without("layers.1.dec_attn.layer_norm.bias"))
        refused("layers.0.dec_attn.qkv_net.weight: has [10, 12]",
                dict(state, **{"layers.0.dec_attn.qkv_net.weight": torch.zeros(10, WIDTH)}))
        refused("ext_len is 4", ext_len=4)
        refused("attn_type is 1", attn_type=1)
        refused("sample_softmax is 100", sample_softmax=100)

    def test_no_code_of_a_whole_model_runs(self):
        class Attack(TransformerXl):
            def __reduce__(self):
                return (os.mkdir, (path,))

        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "made")
            status, errors, _ = convert(Attack(), *FLAGS)
            self.assertEqual(status, 1)
            self.assertIn("neither a state_dict nor", errors)
            self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
