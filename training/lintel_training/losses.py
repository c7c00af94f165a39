# SPDX-License-Identifier: Apache-2.0
"""Likelihoods of the two heads, per position, in nats. Computed in float32 (float64 outputs stay)."""

import math

import torch
import torch.nn.functional as F

LN2 = math.log(2.0)
LOG_SCALE_MIN = -7.0


def _precise(outputs):
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def mixture_nll(outputs, targets):
    """Discretised mixture of logistics: outputs [..., 3M], targets 0..255 [...] -> nats [...].

    The form of `discretized_mix_logistic_loss` (PixelCNN++): half-bin 1/255, edge bins take the
    tails, and where the bin's mass is below 1e-5 the density at its centre times its width.
    """
    logits, means, scales = _precise(outputs).chunk(3, -1)  # [..., M] each
    y = (targets.to(means.dtype) / 255.0 * 2.0 - 1.0).unsqueeze(-1)
    log_scale = scales.clamp(min=LOG_SCALE_MIN)
    inverse = torch.exp(-log_scale)
    centred = y - means
    plus = inverse * (centred + 1.0 / 255.0)
    minus = inverse * (centred - 1.0 / 255.0)
    middle = inverse * centred

    lowest = plus - F.softplus(plus)  # log sigmoid(plus)
    highest = -F.softplus(minus)  # log(1 - sigmoid(minus))
    mass = torch.sigmoid(plus) - torch.sigmoid(minus)
    narrow = middle - log_scale - 2.0 * F.softplus(middle) - math.log(127.5)
    # The clamp keeps the gradient of the branch that is not taken finite.
    inner = torch.where(mass > 1e-5, torch.log(mass.clamp(min=1e-5)), narrow)
    component = torch.where(y < -0.999, lowest, torch.where(y > 0.999, highest, inner))
    return -torch.logsumexp(component + F.log_softmax(logits, -1), -1)


def categorical_nll(outputs, targets):
    """Softmax over V symbols: outputs [..., V], targets [...] -> nats [...]."""
    flat = F.cross_entropy(_precise(outputs).flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


def nll(config, outputs, targets):
    """Negative log-likelihood of `targets` [B, N] in nats, [B, N], under the config's head."""
    if config.head.type == "mixture_of_logistics":
        return mixture_nll(outputs, targets)
    return categorical_nll(outputs, targets)
