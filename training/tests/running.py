# SPDX-License-Identifier: Apache-2.0
"""Code common to tests of whole runs: a directory, tiny images, and runs of tiny models in it."""

import contextlib
import io
import json
import os
import tempfile
import unittest

import small
from lintel_training import train
from lintel_training.presets import PRESETS


@contextlib.contextmanager
def quiet():
    with contextlib.redirect_stdout(io.StringIO()) as out, \
            contextlib.redirect_stderr(io.StringIO()):
        yield out


class RunCase(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory()
        self.addCleanup(self._directory.cleanup)
        self.root = self._directory.name
        # Images of 5 x 4 in presets of 28 x 28.
        for name, preset in PRESETS.items():
            if preset.config.get("modality", {}).get("type") == "image":
                changes = {"max_length": 19, "modality": dict(preset.config["modality"], height=5,
                                                              width=4)}
                before = {k: preset.config[k] for k in changes}
                preset.config.update(changes)
                self.addCleanup(preset.config.update, before)
        small.write_images(self.path("mnist"))

    def path(self, *names):
        return os.path.join(self.root, *names)

    def train(self, out, *flags, preset="mnist-linear"):
        with quiet():
            small.run("--preset", preset, "--data", self.path("mnist"), "--out", self.path(out),
                      "--valid-count", "4", "--sample-count", "1", *flags)

    def trainer(self, out, *flags):
        args = train.make_parser().parse_args(
            ["--preset", "mnist-linear", "--data", self.path("mnist"), "--out", self.path(out),
             "--steps", "9", "--valid-count", "4", *small.TINY, *flags])
        return train.make_trainer(args)

    def refusal(self, *flags):
        """The error of a run with flags that make no sense."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as caught:
            train.main(["--preset", "mnist-linear-small", "--data", self.path("mnist"), "--out",
                        self.path("never"), *flags])
        self.assertEqual(caught.exception.code, 2)
        return errors.getvalue()

    def write(self, name, data):
        """The path of a file with these bytes."""
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def text(self, *names):
        with open(self.path(*names), encoding="utf-8") as file:
            return file.read()

    def result(self, out):
        return json.loads(self.text(out, "result.json"))
