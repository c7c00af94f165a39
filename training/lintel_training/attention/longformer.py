# SPDX-License-Identifier: Apache-2.0
"""Longformer (Beltagy et al. 2020): a window, dilated by head, and global tokens at the start."""

import torch

from .patterns import PatternAttention, PatternState


class Attention(PatternAttention):
    def visible(self, t, s):
        a = self.attention
        dilation = torch.tensor(a.dilation, device=t.device).view(-1, 1, 1)  # [1 or H, 1, 1]
        behind = t - s
        window = (behind % dilation == 0) & (behind < a.window * dilation)
        return window | (s < a.global_tokens) | (t < a.global_tokens)


State = PatternState
