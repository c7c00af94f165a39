# SPDX-License-Identifier: Apache-2.0
"""Fixes the length of a run from a time budget, with what other parts of it take, from a short trial of each."""

import time

import torch

from .attention import module_of
from .recurrent import session_of
from .sample import TEXT_SAMPLE_BYTES

# Start-up of matplotlib, hashing of files, and what else is not measured.
OTHER_SECONDS = 4.0


class Pace:
    """Measures training throughput after the first steps and derives the number of steps.

    The first steps are not counted: they compile. Then up to 40 are timed, fewer where they are
    slow against the budget. `clock` returns seconds; `sync` waits for the device.
    """

    SKIPPED, TIMED = 12, 40
    MARGIN = 0.98  # of the time left is planned

    def __init__(self, budget_seconds, began, sync, clock=time.monotonic):
        self.budget, self.began, self.sync, self.clock = budget_seconds, began, sync, clock
        self.steps, self.since, self.skipped = 0, None, None

    def left(self):
        return self.budget - (self.clock() - self.began)

    def total_steps(self, step, reserve_seconds):
        """Call after each update: None, and once it is known (total, seconds after the last step).

        reserve_seconds(): what else will take time, as (until the last step, after it); asked once.
        """
        self.steps += 1
        if self.since is None:
            if self.steps >= self.SKIPPED or (self.steps >= 3 and self._is_slow(self.began)):
                self.sync()
                self.since, self.skipped = self.clock(), self.steps
            return None
        timed = self.steps - self.skipped
        if timed < self.TIMED and not (timed >= 3 and self._is_slow(self.since)):
            return None
        self.sync()
        seconds_per_step = (self.clock() - self.since) / timed
        during, after = reserve_seconds()
        left = (self.left() - during - after) * self.MARGIN
        return step + max(1, int(left / seconds_per_step)), after

    def _is_slow(self, since):
        return self.clock() - since > 0.1 * self.budget


def reserve_seconds(trainer):
    """Estimates (until the last update, after it) for validations, evaluation, files, samples."""
    options, task = trainer.options, trainer.task
    per_item = 1.1 * _validation_seconds(trainer)
    began = time.monotonic()
    trainer.save()
    saving = 1.5 * (time.monotonic() - began)
    sampling = 1.3 * _sampling_seconds(trainer) if options.sample_count else 0.0

    during = options.validations * (per_item * task.valid_items + saving)
    if options.sample_every:  # their number is not known yet
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
    session = session_of(trainer.average.model, batch, length)
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
