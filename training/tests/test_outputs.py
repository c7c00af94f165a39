# SPDX-License-Identifier: Apache-2.0
"""Outputs that cannot be written are refused before the work."""

import contextlib
import io
import os
import tempfile
import unittest

import context  # noqa: F401
from lintel_training import classifier, model_card, sample


class OutputsTest(unittest.TestCase):
    def refused(self, main, *flags):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as raised:
            main(list(flags))
        self.assertEqual(raised.exception.code, 2)
        return errors.getvalue()

    def test_before_anything_is_read_or_drawn(self):
        with tempfile.TemporaryDirectory() as directory:
            file = os.path.join(directory, "file")
            with open(file, "w") as out:
                out.write("what was there")
            nowhere = os.path.join(directory, "no", "file.png")
            self.assertIn(f"--out {nowhere}: cannot be written: No such file",
                          self.refused(sample.main, "--model", "/nowhere", "--out", nowhere))
            inside = os.path.join(file, "model")
            for main, flags in ((classifier.main, ("--data", "/nowhere")),
                                (model_card.main, ("--run", "/nowhere"))):
                self.assertIn(f"--out {inside}: cannot be made: Not a directory",
                              self.refused(main, *flags, "--out", inside))
            # A file is tried without harm.
            with self.assertRaises(OSError):
                sample.main(["--model", "/nowhere", "--out", file])
            with open(file) as kept:
                self.assertEqual(kept.read(), "what was there")
            with self.assertRaises(OSError):
                sample.main(["--model", "/nowhere", "--out", os.path.join(directory, "new")])
            self.assertEqual(os.listdir(directory), ["file"])


if __name__ == "__main__":
    unittest.main()
