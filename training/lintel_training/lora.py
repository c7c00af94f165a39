# SPDX-License-Identifier: Apache-2.0
"""LoRA (Hu et al. 2022): a frozen model learns small additions to its linear maps.

    y = W x + b + scaling * B (A x),   A [r, in], B [out, r]
"""

import contextlib
import math

import torch
import torch.nn.functional as F
from torch import nn

# Linear maps that the server adapts; what a kind of attention has of its own is not among them.
MODULES = ("query_projection", "key_projection", "value_projection", "out_projection", "linear1",
           "linear2", "predictor")
DEFAULT_MODULES = MODULES[:-1]
MAX_RANK = 1024


class LoraLinear(nn.Linear):
    """A linear map whose own weight stays as it is. Tensors are named as PEFT names them."""

    def __init__(self, base, rank, scaling):
        """base: nn.Linear, whose tensors this one takes over. The addition begins as 0."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        self.scaling = scaling
        nn.init.zeros_(self.lora_B.weight)

    def lora(self, x):
        """The adapter's part of the output: [..., in] -> [..., out]."""
        return self.scaling * self.lora_B(self.lora_A(x))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) + self.lora(x)


def parse_modules(text):
    """The names in "query_projection,value_projection"; ValueError naming one that cannot be adapted."""
    names = tuple(text.split(","))
    for name in names:
        if name not in MODULES:
            raise ValueError(f"--lora-modules: {name!r} is none of {', '.join(MODULES)}")
    return names


def check_rank(rank):
    if not 1 <= rank <= MAX_RANK:
        raise ValueError(f"rank {rank} of an adapter, must be from 1 to {MAX_RANK}")


def adapt(model, rank, scaling, modules=DEFAULT_MODULES, seed=0):
    """Freezes a model and gives each linear map of these names, or paths, an addition of this rank.

    A begins N(0, 1/in), a function of the seed; B begins 0, so that the model computes what it did.
    Maps that are stored and not read are left out. Returns the paths of those that are adapted.
    """
    check_rank(rank)
    found = [(path, module) for path, module in model.named_modules()
             if isinstance(module, nn.Linear) and module.weight.requires_grad
             and (path in modules or path.rpartition(".")[2] in modules)]
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for path, module in found:
        adapted = LoraLinear(module, rank, scaling)
        with torch.no_grad():
            a = adapted.lora_A.weight
            a.copy_(torch.randn(a.shape, generator=generator) / math.sqrt(module.in_features))
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, adapted.to(module.weight.device))
    return [path for path, _ in found]


@contextlib.contextmanager
def without_adapter(model):
    """The model as it was before adapt(), for as long as the block runs."""
    adapted = [m for m in model.modules() if isinstance(m, LoraLinear)]
    before = [m.scaling for m in adapted]
    for m in adapted:
        m.scaling = 0.0
    try:
        yield
    finally:
        for m, scaling in zip(adapted, before):
            m.scaling = scaling
