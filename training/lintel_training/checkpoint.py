# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: one file, replaced atomically, of plain tensors, numbers and strings."""

import os

import torch

NAME = "checkpoint.pt"


def rng_state(device):
    """The state of the CPU's generator, and of that of `device` where this is a GPU."""
    state = {"cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state, device):
    """Sets the state, as far as it is of such a device: a run may move from the CPU to a GPU."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.startswith("cuda"):
        mine = state["cuda"]
        if isinstance(mine, list):  # a checkpoint of before: one for each GPU there was
            mine = mine[0]
        torch.cuda.set_rng_state(mine, device)


def save(state, directory):
    """Writes `state` so that a crash at any moment leaves a whole checkpoint, old or new."""
    path = os.path.join(directory, NAME)
    temporary = path + ".tmp"
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(directory):
    """The state, its tensors on the CPU; None where there is none."""
    path = os.path.join(directory, NAME)
    if not os.path.exists(path):
        return None
    # The restricted unpickler of PyTorch 1.13 knows no floats.
    restricted = int(torch.__version__.split(".")[0]) >= 2
    try:
        return torch.load(path, map_location="cpu", weights_only=restricted)
    except OSError:
        raise
    except Exception as error:  # errors of damaged bytes have many names
        raise ValueError(f"{path}: no checkpoint, or damaged; without it the run starts over "
                         f"({str(error).partition(chr(10))[0]})") from error
