# SPDX-License-Identifier: Apache-2.0
"""Converts a checkpoint, for tests."""

import contextlib
import io
import os
import tempfile

import torch

import context  # noqa: F401
import convert_checkpoint
from lintel_training.export import load_model


def convert(checkpoint, *flags):
    """(exit status, standard error, the converted model or None)."""
    with tempfile.TemporaryDirectory() as directory:
        path, out = os.path.join(directory, "model.pth"), os.path.join(directory, "out")
        torch.save(checkpoint, path)
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            status = convert_checkpoint.main([path, "--out", out, *flags])
        return status, errors.getvalue(), load_model(out) if status == 0 else None
