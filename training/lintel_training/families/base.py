# SPDX-License-Identifier: Apache-2.0
"""Parts common to the models of Hugging Face directories. Their `state_dict` has the tensors' names there."""

import torch
from torch import nn

from ..model import mismatches
from . import delta_rule


def precise(x):
    """x as float32, where autocast made it narrower."""
    return x if x.dtype == torch.float64 else x.float()


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps), times the weight, or one plus it."""

    def __init__(self, width, eps, adds_one=True):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if adds_one else torch.ones(width))
        self.eps, self.adds_one = eps, adds_one

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * (self.weight + 1.0 if self.adds_one else self.weight)


class FamilyModel(nn.Module):
    """int64 tokens [B, T] -> logits [B, T, V].

    A subclass has `run(tokens, state, rule)`, where a state is a list of tensors whose first
    dimension is B (`zero_state`), and rule computes the recurrence (delta_rule.py).
    """

    # True: a state has a constant size, so that training can carry it from window to window.
    has_constant_state = True

    def __init__(self, config, dropout=0.0):
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(dropout)
        self.carried = None  # state after the last window of training

    def zero_state(self, batch):
        raise NotImplementedError

    def run(self, tokens, state, rule):
        """(logits, state after the last token)."""
        raise NotImplementedError

    def forward(self, tokens, starts=None):
        """starts: None for texts that begin here; else bool [B], false where a row continues the one
        of the last such call. Gradients end at the border.
        """
        state = self.zero_state(len(tokens))
        if starts is not None and self.carried is not None:
            state = [torch.where(starts.view(-1, *[1] * (old.dim() - 1)), new, old)
                     for new, old in zip(state, self.carried)]
        outputs, state = self.run(tokens, state, delta_rule.rule_for(tokens.shape[1]))
        if starts is not None:
            self.carried = [tensor.detach() for tensor in state]
        return outputs

    def session(self, batch):
        """A batch of sequences that are fed token by token."""
        return Session(self, batch)

    def is_decayed(self, name, parameter):
        """Returns whether weight decay applies: to matrices of linear maps, but not to low-rank pairs."""
        return name.endswith(".weight") and parameter.dim() == 2 and "emb" not in name and \
            not name.startswith(("head.", "lm_head."))

    def load_tensors(self, tensors):
        """Loads the tensors of a directory; ValueError names each one that does not fit."""
        problems = mismatches(self.state_dict(), tensors)
        if problems:
            raise ValueError("\n".join(problems))
        self.load_state_dict(tensors)


class Session:
    """A batch of sequences being decoded."""

    def __init__(self, model, batch):
        self._model, self._state = model, model.zero_state(batch)

    @torch.no_grad()
    def step(self, tokens):
        """Feeds one token to each sequence: int64 [B] -> logits [B, V]."""
        outputs, self._state = self._model.run(tokens.unsqueeze(1), self._state, delta_rule.recurrent)
        return outputs.squeeze(1)

    @torch.no_grad()
    def feed(self, tokens):
        """Feeds several to each sequence: int64 [B, T] -> logits [B, T, V]."""
        outputs, self._state = self._model.run(tokens, self._state, delta_rule.rule_for(tokens.shape[1]))
        return outputs
