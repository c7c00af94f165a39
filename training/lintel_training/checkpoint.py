"""Checkpoints of a run: one file, replaced atomically, of plain tensors, numbers and strings."""

import os

import torch

NAME = "checkpoint.pt"


def rng_state():
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state):
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


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
    return torch.load(path, map_location="cpu", weights_only=restricted)
