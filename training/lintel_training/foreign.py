# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other programs: their tensors, and of all else that is in them only the place.

PyTorch's own restricted reader (weights_only) refuses a file for one thing it does not know, and that
of PyTorch 1.13 knows no floats: no optimiser's state, no arguments, no NumPy. This one builds tensors
and containers and puts a Stranger where anything else would be made, so that no code of the file or
its making runs.
"""

import collections
import io
import pickle
import types
import zipfile

import torch

# Functions that make a tensor, as PyTorch's own list has them.
_BUILDERS = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch._utils", "_rebuild_sparse_tensor"): torch._utils._rebuild_sparse_tensor,
    ("torch._utils", "_rebuild_tensor"): torch._utils._rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch", "Size"): torch.Size,
}
_BUILDERS.update({("torch", str(value).removeprefix("torch.")): value
                  for value in vars(torch).values() if isinstance(value, torch.dtype)})


class Stranger:
    """A substitute for something that is no tensor and no container. Takes what a pickle gives it and
    keeps nothing but its attributes.
    """

    name = ""  # of its class where it was saved
    attributes = None  # {name: value}, where the file has them

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def _take(self, *args, **kwargs):
        pass

    __setitem__ = append = extend = add = _take

    def __setstate__(self, state):
        if isinstance(state, dict):
            self.attributes = state

    def __call__(self, *args, **kwargs):
        return Stranger()

    def __hash__(self):
        return id(self)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in _BUILDERS:
            return _BUILDERS[module, name]
        if module == "torch" and name.endswith("Storage") and isinstance(
                getattr(torch, name, None), type):
            return getattr(torch, name)
        return type("Stranger", (Stranger,), {"name": f"{module}.{name}"})


def _load(file, **options):
    return _Unpickler(file, **options).load()


# The members that PyTorch's readers want of a module that pickles. torch.load() would do, but that of PyTorch 1.13
# takes the pickle_module it is given for Python's own.
_PICKLE = types.SimpleNamespace(Unpickler=_Unpickler, load=_load)


def load(path):
    """The contents of a file of torch.save, on the CPU. OSError for a file that cannot be opened; errors of
    damaged bytes have many names.
    """
    with open(path, "rb") as opened:
        file = io.BytesIO(opened.read())
    options = {"map_location": "cpu", "pickle_module": _PICKLE, "encoding": "utf-8"}
    if not zipfile.is_zipfile(file):  # as PyTorch wrote before 1.6
        file.seek(0)
        return torch.serialization._legacy_load(file, **options)
    file.seek(0)
    with torch.serialization._open_zipfile_reader(file) as archive:
        if "constants.pkl" in archive.get_all_records():
            raise ValueError("TorchScript is no checkpoint")
        return torch.serialization._load(archive, **options)


# Keys under which training programs save a state_dict, the likeliest first.
NESTED = ("model_state", "model_state_dict", "state_dict", "model", "module", "network", "net")
_MOST_NESTED = 8  # a dict may contain itself
# Segments of a tensor's name that wrappers of a module insert: DataParallel, torch.compile, FSDP.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def state_in(value):
    """The state_dict in what a file holds, {name: anything}, and the plain attributes of a module that was
    saved whole, {path: value}. (None, {}) where there is none.
    """
    for _ in range(_MOST_NESTED):
        whole = module_of(value)
        if whole is not None:
            return whole
        if not isinstance(value, dict):
            break
        inner = next((value[key] for key in NESTED
                      if isinstance(value.get(key), dict) or module_of(value.get(key)) is not None), None)
        if inner is None:
            return value, {}
        value = inner
    return None, {}


def unwrapped(name):
    """A tensor's name without the segments of wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def module_of(value):
    """The contents of a torch.nn.Module that was saved whole: its tensors by the names of its state_dict, and
    the plain values among its attributes, {"layers.0.pre_lnorm": True}. None for anything else.
    """
    attributes = value.attributes if isinstance(value, Stranger) else getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or not isinstance(attributes.get("_modules"), dict):
        return None
    tensors, plain = {}, {}
    for kind in ("_parameters", "_buffers"):
        held = attributes.get(kind)
        tensors.update({name: tensor for name, tensor in (held if isinstance(held, dict) else {}).items()
                        if isinstance(tensor, torch.Tensor)})
    plain.update({name: number for name, number in attributes.items()
                  if isinstance(number, (bool, int, float))})
    for name, part in attributes["_modules"].items():
        below = module_of(part)
        for mine, theirs in zip((tensors, plain), below or ()):
            mine.update({f"{name}.{inner}": held for inner, held in theirs.items()})
    return tensors, plain
