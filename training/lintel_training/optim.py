# SPDX-License-Identifier: Apache-2.0
"""Optimiser, learning-rate schedule and the moving average of the weights."""

import copy
import math

import torch

# No weight decay: what is no matrix of a linear map.
_HEADS = ("predictor.", "head.", "lm_head.")
_NOT_DECAYED = ("value_embedding.", "pos_embedding.", "step_embedding.", ".norm")


def make_optimizer(model, recipe, fused):
    """AdamW with decay on weight matrices only; parameters without gradient are left out."""
    decayed, others, head = [], [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if hasattr(model, "is_decayed"):
            plain = not model.is_decayed(name, parameter)
        else:
            plain = name.endswith("bias") or any(part in name for part in _NOT_DECAYED)
        if name.startswith(_HEADS):
            head.append(parameter)
        else:
            (others if plain else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay, "rate": 1.0},
              {"params": others, "weight_decay": 0.0, "rate": 1.0},
              {"params": head, "weight_decay": 0.0, "rate": recipe.head_rate}]
    options = {"fused": True} if fused else {}
    return torch.optim.AdamW(groups, lr=recipe.learning_rate,
                             betas=(recipe.beta1, recipe.beta2), **options)


def learning_rate(recipe, step, total_steps):
    """Linear warm-up, then a cosine to final_learning_rate of the peak.

    While a time budget is being measured `total_steps` is None and only the warm-up is defined;
    a warm-up that would fill a fifth of the run is cut to that.
    """
    warmup = max(1, recipe.warmup_steps)
    if total_steps is not None:
        warmup = max(1, min(warmup, total_steps // 5))
    if step < warmup or total_steps is None:
        return recipe.learning_rate * min(1.0, (step + 1) / warmup)
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    low = recipe.final_learning_rate
    return recipe.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))


class Average:
    """Exponential moving average of a model's weights, itself a model (`.model`).

    The decay rises with the step, min(decay, (1 + step) / (10 + step)), so that the random
    initial weights are soon forgotten.
    """

    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        pairs = [(mine, theirs) for mine, theirs in zip(self.model.parameters(), model.parameters())
                 if theirs.requires_grad]
        self._mine = [mine for mine, _ in pairs]
        self._theirs = [theirs for _, theirs in pairs]

    @torch.no_grad()
    def update(self, step):
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_mul_(self._mine, decay)
        torch._foreach_add_(self._mine, self._theirs, alpha=1 - decay)
