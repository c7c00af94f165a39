# SPDX-License-Identifier: Apache-2.0
"""Attention over patterns, blocks and segments against its definition, position by position."""

import math
import unittest

import torch

import small
from lintel_training.config import ConfigError

N = 33


def inner_of(attention, **changes):
    return small.model(attention, **changes).transformer.layers[0].attention.inner_attention


def strided(l, part):
    def local(h, t, s):
        return t - s < l

    def far(h, t, s):
        return (t - s) % l == 0
    return _part(local, far, part)


def fixed(l, c, groups, part):
    def local(h, t, s):
        return s // l == t // l

    def far(h, t, s):
        g = h % groups
        return l - (g + 1) * c <= s % l < l - g * c
    return _part(local, far, part)


def _part(local, far, part):
    return {"both": lambda h, t, s: local(h, t, s) or far(h, t, s) or s == t,
            "local": local, "far": lambda h, t, s: far(h, t, s) or s == t,
            "by_head": lambda h, t, s: (far if h % 2 else local)(h, t, s) or s == t}[part]


class PatternTest(unittest.TestCase):
    def check(self, attention, seen, **changes):
        inner = inner_of(attention, **changes)
        position = torch.arange(N)
        with self.subTest(**attention):
            mask = inner.visible(position.unsqueeze(1), position.unsqueeze(0)).expand(2, N, N)
            for h in range(2):
                for t in range(N):
                    for s in range(t + 1):
                        self.assertEqual(mask[h, t, s].item(), bool(seen(h, t, s)), (h, t, s))

    def test_sparse_transformer(self):
        for part in ("both", "local", "far", "by_head"):
            for l in (1, 5, 100):
                self.check({"type": "sparse_transformer", "pattern": "strided", "stride": l,
                            "part": part}, strided(l, part))
            for l, c, groups in ((1, 1, 1), (6, 2, 2), (6, 3, 2), (5, 5, 1), (50, 3, 4)):
                self.check({"type": "sparse_transformer", "pattern": "fixed", "stride": l,
                            "columns": c, "column_groups": groups, "part": part},
                           fixed(l, c, groups, part))

    def test_longformer(self):
        for window, dilation, n_global in ((1, 1, 0), (4, 1, 3), (3, [1, 5], 1), (50, 2, 40)):
            d = dilation if isinstance(dilation, list) else [dilation] * 2
            self.check({"type": "longformer", "window": window, "dilation": dilation,
                        "global_tokens": n_global},
                       lambda h, t, s: any(s == t - j * d[h] for j in range(window))
                       or s < n_global or t < n_global)

    def test_bigbird(self):
        for size, window, n_global, n_random in ((4, 2, 1, 0), (3, 1, 0, 2), (1, 3, 2, 4), (50, 1, 0, 1)):
            attention = {"type": "bigbird", "block_size": size, "window_blocks": window,
                         "global_blocks": n_global, "random_blocks": n_random}
            table = inner_of(attention).random_blocks.long() if n_random else None

            def seen(h, t, s):
                i, j = t // size, s // size
                return (i - j < window or j < n_global or i < n_global
                        or n_random and j in table[h, i].tolist())
            self.check(attention, seen)

    def test_random_blocks_are_drawn_without_repetition_from_those_that_are_not_seen(self):
        table = inner_of({"type": "bigbird", "block_size": 4, "random_blocks": 3}).random_blocks
        self.assertEqual(list(table.shape), [2, 10, 3])
        for h in range(2):
            for i, row in enumerate(table[h].tolist()):
                drawn = [j for j in row if j >= 0]
                unseen = range(1, i - 1)
                self.assertEqual(len(drawn), min(3, len(unseen)), (h, i))
                self.assertEqual(len(set(drawn)), len(drawn))
                self.assertTrue(all(j in unseen for j in drawn), (i, row))

    def test_softmax_over_everything_is_softmax(self):
        q, k, v = (torch.randn(2, 2, N, 8, generator=torch.Generator().manual_seed(s))
                   for s in range(3))
        expected = inner_of({"type": "softmax"})(q, k, v)
        identity = inner_of({"type": "linformer", "mode": "blocks", "rank": 4, "block_size": 4})
        with torch.no_grad():
            for p in identity.parameters():
                p.copy_(torch.eye(4))
        for inner in (inner_of({"type": "longformer", "window": 100}), identity,
                      inner_of({"type": "bigbird", "block_size": 5, "window_blocks": 7})):
            self.assertLess((inner(q, k, v) - expected).abs().max().item(), 1e-5)

    def test_keys_that_do_not_go_together_are_named(self):
        fixed = {"type": "sparse_transformer", "pattern": "fixed", "stride": 6}
        linformer = {"type": "linformer", "rank": 2}
        unbounded = {"max_length": 0, "position_encoding": "sinusoidal"}
        for attention, text, changes in (
                (dict(fixed, columns=7), "columns is 7", {}),
                (dict(fixed, columns=4, column_groups=2), "column_groups is 2", {}),
                (dict(fixed, pattern="strided", columns=2), "columns", {}),
                (dict(linformer, mode="blocks"), "block_size is missing", {}),
                (dict(linformer, mode="prefix", block_size=4), "block_size is 4", {}),
                (dict(linformer, mode="prefix"), "max_length", unbounded),
                ({"type": "bigbird", "block_size": 4, "random_blocks": 1}, "max_length", unbounded),
                ({"type": "longformer", "window": 3, "dilation": [1, 2, 3]}, "dilation has 3", {}),
                ({"type": "linear", "feature_map": "favor"}, "features is missing", {}),
                ({"type": "linear", "feature_map": "dpfp"}, "nu is missing", {}),
                ({"type": "linear", "nu": 2}, "nu is 2", {}),
                ({"type": "linear", "feature_map": "exp", "features": 4}, "features is 4", {}),
                ({"type": "linear", "feature_map": "taylor1", "eps": 0}, "eps is 0", {}),
                ({"type": "linear", "feature_map": "taylor2"}, "at most 65536",
                 {"d_head": 512})):
            with self.subTest(**attention), self.assertRaisesRegex(ConfigError, text):
                small.config(attention, **changes)


class TransformerXlTest(unittest.TestCase):
    def test_segments_see_their_memory_and_score_distances(self):
        q, k, v = (torch.randn(1, 2, N, 8, generator=torch.Generator().manual_seed(s))
                   for s in range(3))
        for length, memory, clamp in ((1, 0, None), (1, 6, None), (5, 7, 3), (8, 0, None),
                                      (100, 200, 9)):
            inner = inner_of({"type": "transformer_xl", "segment_length": length,
                              "memory_length": memory, "clamp_length": clamp})
            with torch.no_grad():
                got, r = inner(q, k, v), inner.relative(N)
                for h in range(2):
                    for t in range(N):
                        seen = range(max(0, t // length * length - memory), t + 1)
                        scores = torch.stack([
                            (q[0, h, t] + inner.r_w_bias[h]) @ k[0, h, s]
                            + (q[0, h, t] + inner.r_r_bias[h]) @ r[h, t - s] for s in seen])
                        weights = torch.softmax(scores / 8 ** 0.5, 0)
                        expected = weights @ v[0, h, seen.start:t + 1]
                        difference = (got[0, h, t] - expected).abs().max().item()
                        self.assertLess(difference, 1e-5, (length, memory, clamp, h, t))

    def test_relative_rows_are_projected_sinusoids_up_to_the_clamp(self):
        for clamp in (None, 1, 4):
            inner = inner_of({"type": "transformer_xl", "segment_length": 3, "memory_length": 9,
                              "clamp_length": clamp})
            with torch.no_grad():
                found = inner.relative(12)
                for d in range(12):
                    at = d if clamp is None else min(d, clamp)
                    angles = [at * 10000 ** (-2 * i / 12) for i in range(6)]
                    row = torch.tensor([math.sin(x) for x in angles] + [math.cos(x) for x in angles])
                    expected = (inner.r_net.weight @ row).view(2, 8)
                    self.assertLess((found[:, d] - expected).abs().max().item(), 1e-5, (clamp, d))


if __name__ == "__main__":
    unittest.main()
