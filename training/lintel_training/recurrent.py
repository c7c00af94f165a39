"""Incremental decoding: the same model as a recurrent network (paper, section 3.4).

The state of linear attention is S, Z of constant size; softmax and LSH attention keep what they
have seen. Plain and readable, for samples during training and as a check of the parallel form.
"""

import torch

from .attention import module_of


class Session:
    """A batch of sequences being decoded; `length` bounds the tokens that can be fed."""

    def __init__(self, model, batch, length):
        self.model, self.position = model, 0
        config = model.config
        device = model.predictor.weight.device
        self.states = []
        for layer, attention in zip(model.transformer.layers, config.attention):
            self.states.append(module_of(attention.type).State(
                layer.attention.inner_attention, batch, config.n_heads, length, config.d_head,
                device))

    @torch.no_grad()
    def step(self, tokens):
        """Feeds one token to each sequence: int64 [B] -> head outputs [B, O]."""
        model, t = self.model, self.position
        offsets = torch.full((len(tokens),), t, dtype=torch.int64, device=tokens.device)
        x = model.embed(tokens.unsqueeze(1), offsets)

        for layer, state in zip(model.transformer.layers, self.states):
            def attention(y, projections=layer.attention, state=state):
                inputs = [p.squeeze(2) for p in projections.project(y)]
                return projections.merge(state.step(*inputs, t).unsqueeze(2))
            x = layer.forward(x, attention)  # not the compiled form, if there is one
        if model.transformer.norm is not None:
            x = model.transformer.norm(x)
        self.position += 1
        return model.predictor(x).squeeze(1)
