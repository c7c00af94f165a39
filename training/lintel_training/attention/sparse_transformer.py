# SPDX-License-Identifier: Apache-2.0
"""Sparse Transformer (Child et al. 2019): a local part and a far one, strided or fixed."""

import torch

from .patterns import PatternAttention, PatternState


class Attention(PatternAttention):
    def __init__(self, attention, config):
        super().__init__(attention, config)
        self.n_heads = config.n_heads

    @staticmethod
    def contradiction(attention, config):
        a = attention
        if a.pattern == "strided" and (a.columns, a.column_groups) != (1, 1):
            return "columns, column_groups: are for pattern fixed only"
        if a.columns > a.stride:
            return f"columns is {a.columns}, must be at most stride, {a.stride}"
        if a.columns * a.column_groups > a.stride:
            return (f"column_groups is {a.column_groups}, columns * column_groups must be at most "
                    f"stride, {a.stride}")
        return None

    def visible(self, t, s):
        a = self.attention
        head = torch.arange(self.n_heads, device=t.device).view(-1, 1, 1)
        if a.pattern == "strided":
            local, far = t - s < a.stride, (t - s) % a.stride == 0
        else:
            local = _block(t, a.stride) == _block(s, a.stride)
            end = a.stride - head % a.column_groups * a.columns  # of the head's group of columns
            column = s % a.stride
            far = (column >= end - a.columns) & (column < end)
        if a.part == "local":
            return local
        if a.part == "by_head":
            far = torch.where(head % 2 == 0, local, far)
        elif a.part == "both":
            far = far | local
        return far | (s == t)


State = PatternState


def _block(position, length):
    return torch.div(position, length, rounding_mode="floor")
