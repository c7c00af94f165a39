# SPDX-License-Identifier: Apache-2.0
"""Incremental decoding: the same model as a recurrent network (paper, section 3.4).

The state of linear attention is S, Z of constant size; others keep what they have seen. Plain and
readable, for samples during training and as a check of the parallel form.
"""

import torch

from .attention import module_of


def session_of(model, batch, length):
    """A batch of sequences of any model; `length` bounds the tokens that can be fed."""
    return model.session(batch) if hasattr(model, "session") else Session(model, batch, length)


class Session:
    """A batch of sequences being decoded; `length` bounds the tokens that can be fed."""

    def __init__(self, model, batch, length):
        self.model, self.position = model, 0
        config = model.config
        device = model.predictor.weight.device
        self.layers = [model.transformer.layers[u].attention for u in config.weights_of_layers]
        self.states = [
            module_of(attention.type).State(layer.inner_attention, batch, config.n_heads, length,
                                            config.d_head, device)
            for layer, attention in zip(self.layers, config.attention)]

    @torch.no_grad()
    def step(self, tokens):
        """Feeds one token to each sequence: int64 [B] -> head outputs [B, O]."""
        t = self.position
        offsets = torch.full((len(tokens),), t, dtype=torch.int64, device=tokens.device)

        def attention_of(projections, state):
            def attention(y):
                inputs = [p.squeeze(2) for p in projections.project(y)]
                return projections.merge(state.step(*inputs, t).unsqueeze(2))
            return attention

        attentions = [attention_of(*pair) for pair in zip(self.layers, self.states)]
        self.position += 1
        return self.model(tokens.unsqueeze(1), offsets, attentions).squeeze(1)
