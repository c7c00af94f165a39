# SPDX-License-Identifier: Apache-2.0
"""Converts checkpoints and adapters, for tests."""

import contextlib
import io
import os
import tempfile

import torch

import context  # noqa: F401
import convert_checkpoint
from lintel_training.export import load_model


def run(command, *arguments):
    """(exit status, standard error) of a main()."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        status = command.main([*arguments])
    return status, errors.getvalue()


def convert(checkpoint, *flags):
    """(exit status, standard error, the converted model or None). checkpoint: bytes are the file."""
    with tempfile.TemporaryDirectory() as directory:
        path, out = os.path.join(directory, "model.pth"), os.path.join(directory, "out")
        if isinstance(checkpoint, bytes):
            with open(path, "wb") as file:
                file.write(checkpoint)
        else:
            torch.save(checkpoint, path)
        status, errors = run(convert_checkpoint, path, "--out", out, *flags)
        return status, errors, load_model(out) if status == 0 else None
