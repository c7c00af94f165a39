# SPDX-License-Identifier: Apache-2.0
"""The lock and log.jsonl of a run, and a progress line when a person watches."""

import fcntl
import json
import math
import os
import sys

from .safetensors_io import write_atomically

NAME = "log.jsonl"
LOCK = "lock"


class RunLock:
    """One process at a time in a run directory. Held until release(), or the end of the process, however that comes."""

    def __init__(self, directory):
        """BlockingIOError naming the directory where another process trains in it."""
        path = os.path.join(directory, LOCK)
        self._file = open(path, "w", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise BlockingIOError(f"{directory}: another process is training here") from None

    def release(self):
        self._file.close()


class RunLog:
    """Appends one JSON object a line; REQUIRES: one process at a time per directory (RunLock)."""

    def __init__(self, directory, resumed_step=None):
        path = os.path.join(directory, NAME)
        kept = []
        if resumed_step is not None and os.path.exists(path):
            # Steps after the last checkpoint will be done again.
            kept = [line for line in read_log(directory) if line.get("step", 0) <= resumed_step]
        write_atomically(path, "".join(_line(entry) for entry in kept).encode())
        self._file = open(path, "a", encoding="utf-8")
        self._terminal = sys.stderr.isatty()

    def write(self, **entry):
        self._file.write(_line(entry))
        self._file.flush()

    def progress(self, text):
        if self._terminal:
            print("\r\033[K" + text, end="", file=sys.stderr, flush=True)

    def close(self):
        self._file.close()
        if self._terminal:
            print(file=sys.stderr)


def _line(entry):
    """Strict JSON: what is not finite is null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v
              for k, v in entry.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


def read_log(directory):
    """Lines of a run's log; a last line cut off by a crash is left out."""
    lines = []
    with open(os.path.join(directory, NAME), encoding="utf-8") as file:
        for text in file:
            try:
                lines.append(json.loads(text))
            except ValueError:
                pass
    return lines
