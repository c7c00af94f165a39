# SPDX-License-Identifier: Apache-2.0
"""Checks of a command's outputs before it works: a run of hours must not fail at its last line."""

import os


def require_file(parser, flag, path):
    """Ends the program, as for a flag that makes no sense, where a file cannot be written. One that is
    there keeps what is in it; one that is not there is not there afterwards.
    """
    existed = os.path.exists(path)
    try:
        with open(path, "ab"):
            pass
        if not existed:
            os.remove(path)
    except OSError as error:
        parser.error(f"{flag} {path}: cannot be written: {error.strerror}")


def require_directory(parser, flag, path, name):
    """Makes the directory; the same where it, or the file `name` in it, cannot be written."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        parser.error(f"{flag} {path}: cannot be made: {error.strerror}")
    require_file(parser, flag, os.path.join(path, name))
