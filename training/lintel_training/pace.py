# SPDX-License-Identifier: Apache-2.0
"""Fixes the length of a run from a time budget."""

import time


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
