# SPDX-License-Identifier: Apache-2.0
"""How long the parts of a run take that are not training, from a short trial of each."""

import time

import torch

from .attention import module_of
from .recurrent import Session
from .sample import TEXT_SAMPLE_BYTES

# Start-up of matplotlib, hashing of files, and what else is not measured.
OTHER_SECONDS = 4.0


def reserve_seconds(trainer):
    """Estimates (until the last update, after it) for validations, evaluation, files, samples."""
    options, task = trainer.options, trainer.task
    per_item = 1.1 * _validation_seconds(trainer)
    began = time.monotonic()
    trainer.save()
    saving = 1.5 * (time.monotonic() - began)
    sampling = 1.3 * _sampling_seconds(trainer) if options.sample_count else 0.0

    during = options.validations * (per_item * task.valid_items + saving)
    if options.sample_every:  # how many there will be is not known yet
        during += 2 * sampling
    return during, per_item * task.final_items + 2 * saving + sampling + OTHER_SECONDS


def _validation_seconds(trainer):
    """For one image or window of text."""
    task = trainer.task
    probe = 2 * getattr(task, "eval_batch", 32) if trainer.on_cuda else 4
    for _ in range(2):  # the first pass also loads or compiles kernels
        began = time.monotonic()
        task.validate(trainer.average.model, probe)
        trainer.sync()
        seconds = time.monotonic() - began
    return seconds / min(probe, task.valid_items)


def _sampling_seconds(trainer, steps=12):
    """For one picture or text."""
    config, options = trainer.config, trainer.options
    image = config.modality.type == "image"
    length = config.length if image else TEXT_SAMPLE_BYTES
    batch = options.sample_count if image else 1
    session = Session(trainer.average.model, batch, length)
    tokens = torch.zeros(batch, dtype=torch.int64, device=options.device)
    session.step(tokens)  # not timed: it loads kernels
    trainer.sync()
    began = time.monotonic()
    for _ in range(steps):
        session.step(tokens)
    trainer.sync()
    is_constant = all(module_of(a.type).Attention.samples_cheaply for a in config.attention)
    growth = 1.0 if is_constant else 4.0  # the others slow down as they go
    return (time.monotonic() - began) / steps * length * growth
