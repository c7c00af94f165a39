# SPDX-License-Identifier: Apache-2.0
"""BigBird (Zaheer et al. 2020): blocks of a window, global ones at the start, random ones of a table."""

import torch

from .patterns import PatternAttention, PatternState


class Attention(PatternAttention):
    def __init__(self, attention, config):
        super().__init__(attention, config)
        if attention.random_blocks:
            blocks = -(-config.max_length // attention.block_size)
            self.register_buffer("random_blocks", torch.zeros(
                config.n_heads, blocks, attention.random_blocks))

    @staticmethod
    def contradiction(attention, config):
        if attention.random_blocks and not config.max_length:
            return f"random_blocks is {attention.random_blocks}, which needs a max_length above 0"
        return None

    def initialise(self, normal):
        """For each head and block, blocks that it would not see, none twice; -1 where there are too few."""
        if not self.attention.random_blocks:
            return
        heads, blocks, count = self.random_blocks.shape
        noise = torch.empty(heads, blocks, blocks)
        normal(noise, 1.0)
        own, other = torch.arange(blocks).unsqueeze(1), torch.arange(blocks)
        unseen = (other >= self.attention.global_blocks) & (
            other <= own - self.attention.window_blocks)
        order = noise.masked_fill(~unseen, float("inf")).argsort(-1)
        order = torch.nn.functional.pad(order, (0, count), value=-1)[..., :count]
        enough = torch.arange(count) < unseen.sum(-1, keepdim=True)
        self.random_blocks.copy_(torch.where(enough, order, torch.tensor(-1)))

    def visible(self, t, s):
        a = self.attention
        i, j = (torch.div(x, a.block_size, rounding_mode="floor") for x in (t, s))
        seen = (i - j < a.window_blocks) | (j < a.global_blocks) | (i < a.global_blocks)
        if not a.random_blocks:
            return seen
        table = self.random_blocks
        rows = table[:, i.squeeze(-1).clamp(max=table.shape[1] - 1)]  # [H, n, random_blocks]
        return seen | (rows.unsqueeze(2) == j.unsqueeze(-1)).any(-1)


State = PatternState
