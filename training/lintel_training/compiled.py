# SPDX-License-Identifier: Apache-2.0
"""torch.compile, for PyTorch 2 on a GPU. Shapes are static in every graph."""

import torch

from .losses import nll


def _compile(function, **options):
    # One graph serves a few batch sizes, and training and evaluation; the default limit on
    # compilations of one function would then silently fall back to uncompiled code.
    for name in ("recompile_limit", "cache_size_limit"):
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 64)
    return torch.compile(function, dynamic=False, **options)


def compile_layers(model):
    """Compiles each layer in place. Layers are alike, so one compilation serves all of them."""
    for layer in model.transformer.layers:
        layer._compiled_call_impl = _compile(layer._call_impl)  # the same as Module.compile()


def loss_function(model, what, cuda_graphs=False):
    """(inputs [B, N], targets [B, N], offsets [B] or None) -> mean nats, a scalar.

    what: "none"; "layers", a graph for a layer and one for the loss, which starts in seconds; or
    "model", one graph for everything, which fuses more and takes minutes to compile.
    """
    config = model.config

    def mean_nll(outputs, targets):
        return nll(config, outputs, targets).mean()

    def loss(inputs, targets, offsets):
        return mean_nll(model(inputs, offsets), targets)

    if what == "layers":
        compile_layers(model)
        mean_nll = _compile(mean_nll)
    elif what == "model":
        return _compile(loss, **({"mode": "reduce-overhead"} if cuda_graphs else {}))
    return loss
