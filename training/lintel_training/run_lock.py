# SPDX-License-Identifier: Apache-2.0
"""One process at a time in a run directory."""

import fcntl
import os

NAME = "lock"


class RunLock:
    """Held until release(), or the end of the process, however that comes."""

    def __init__(self, directory):
        """BlockingIOError naming the directory where another process trains in it."""
        path = os.path.join(directory, NAME)
        self._file = open(path, "w", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise BlockingIOError(f"{directory}: another process is training here") from None

    def release(self):
        self._file.close()
