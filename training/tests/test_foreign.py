# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of linear-transformer-experiments as its training script saves them, and worse."""

import argparse
import collections
import os
import tempfile
import unittest

import numpy as np
import torch

import small
import convert_checkpoint
import converting
from lintel_training import foreign
from lintel_training.export import load_model

FLAGS = ("--heads", "2", "--position-encoding", "learned")


class Stranger:
    """A class that no checkpoint of tensors holds."""

    def __init__(self):
        self.items = [1, {"a": 2.5}]


class Attack:
    """Runs code where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


class OwnTensor(torch.Tensor):
    """A tensor of a class of its own."""


def trained():
    """A model after two steps, and the optimiser that made them."""
    model = small.model({"type": "linear"})
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(8).unsqueeze(0)).sum().backward()
        optimizer.step()
    return model, optimizer


class ForeignTest(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())
        self.path = os.path.join(self.directory, "model.pth")

    def convert(self, *flags):
        """(exit status, standard error)."""
        return converting.run(convert_checkpoint, self.path, "--out",
                              os.path.join(self.directory, "out"), *FLAGS, *flags)

    def test_what_the_reference_saves_is_converted_without_trust(self):
        model, optimizer = trained()
        checkpoint = {
            "epoch": 3, "model_state": model.state_dict(),
            "optimizer_state": optimizer.state_dict(),
            "arguments": argparse.Namespace(lr=1e-4, dataset="mnist", layers=(1, 2)),
            "loss": np.float64(0.7), "history": np.arange(6).reshape(2, 3),
            "random": np.random.RandomState(1).get_state(), "seen": {1, 2}, "name": "run",
            "device": torch.device("cpu"), "shape": torch.Size([2]), "type": torch.float32,
            "counts": collections.Counter("abc"), "more": [Stranger(), b"bytes", 1j, None],
            "scheduler": collections.defaultdict(list, a=[1.5])}
        for is_zip in (True, False):
            with self.subTest(is_zip=is_zip):
                torch.save(checkpoint, self.path, _use_new_zipfile_serialization=is_zip)
                status, errors = self.convert()
                self.assertEqual((status, errors), (0, ""))
                data = foreign.load(self.path)
                self.assertEqual(data["epoch"], 3)
                for name, tensor in model.state_dict().items():
                    self.assertTrue(torch.equal(data["model_state"][name], tensor), name)

    def test_code_in_a_file_is_not_run(self):
        made = os.path.join(self.directory, "made")
        state = trained()[0].state_dict()
        for checkpoint in ({"model_state": state, "more": Attack(made)}, Attack(made)):
            for is_zip in (True, False):
                torch.save(checkpoint, self.path, _use_new_zipfile_serialization=is_zip)
                self.convert()
                self.assertFalse(os.path.exists(made))
        self.convert("--trust")  # it was worth the test
        self.assertTrue(os.path.exists(made))

    def test_what_is_no_plain_tensor_is_named_where_one_is_needed(self):
        state = trained()[0].state_dict()
        state["predictor.bias"] = state["predictor.bias"].as_subclass(OwnTensor)
        torch.save({"model_state": state}, self.path)
        status, errors = self.convert()
        self.assertEqual(status, 1)
        self.assertRegex(errors, "^predictor.bias: is a .*, which is no plain tensor; --trust")

    def test_a_state_dict_is_found_where_programs_nest_it(self):
        model = trained()[0]
        state = model.state_dict()
        wrapped = {f"_orig_mod.{name}": tensor for name, tensor in state.items()}
        for checkpoint in (
                {"state_dict": state, "epoch": 3}, {"model": state, "loss": torch.tensor(0.5)},
                {"model_state_dict": {f"module.{name}": t for name, t in state.items()}},
                {"state_dict": {f"model.{name}": t for name, t in state.items()}},  # of Lightning
                {"model": {"state_dict": {f"module.{name}": t for name, t in wrapped.items()}}},
                {"model": wrapped}, wrapped,
                {name.replace("transformer.", "transformer.module."): t for name, t in state.items()}):
            with self.subTest(list(checkpoint)[0]):
                torch.save(checkpoint, self.path)
                self.assertEqual(self.convert(), (0, ""))
                tensors = load_model(os.path.join(self.directory, "out")).state_dict()
                for name, tensor in state.items():
                    self.assertTrue(torch.equal(tensors[name], tensor), name)

    def test_a_bare_encoder_is_refused_with_names_found_and_names_expected(self):
        state = trained()[0].state_dict()
        encoder = {name.removeprefix("transformer."): tensor for name, tensor in state.items()
                   if name.startswith("transformer.")}
        for checkpoint in (encoder, {"state_dict": {f"module.{n}": t for n, t in encoder.items()}}):
            torch.save(checkpoint, self.path)
            status, errors = self.convert()
            self.assertEqual(status, 1)
            self.assertIn(f"no layer among {len(encoder)} tensors", errors)
            self.assertIn("an encoder alone, without the embedding and the predictor", errors)
            lines = errors.splitlines()
            self.assertEqual(len(lines), 7, errors)
            self.assertEqual(lines[1].split(), ["found", "expected"])
            for line, found, expected in zip(lines[2:], encoder, convert_checkpoint.EXPECTED):
                self.assertEqual((line.split()[0], line.split()[-1]), (found, expected))
            self.assertIn(f"(and {len(encoder) - 5} more)", lines[-1])

    def test_a_model_without_its_predictor_is_refused_with_what_was_found(self):
        state = trained()[0].state_dict()
        del state["predictor.weight"]
        torch.save({"state_dict": state}, self.path)
        status, errors = self.convert()
        self.assertEqual(status, 1)
        self.assertIn("predictor.weight: missing", errors)
        self.assertEqual(len(errors.splitlines()), 7, errors)

    def test_names_that_are_one_name_without_their_prefixes_are_refused(self):
        state = trained()[0].state_dict()
        bias = state["predictor.bias"]
        for checkpoint, text in (
                (dict(state, **{"module.predictor.bias": bias}),
                 "predictor.bias and module.predictor.bias: both are predictor.bias"),
                ({f"{of}.{name}": t for of in ("student", "teacher") for name, t in state.items()},
                 "2 models in one checkpoint, expected one; their tensors begin with student.transformer., "
                 "teacher.transformer.")):
            torch.save(checkpoint, self.path)
            status, errors = self.convert()
            self.assertEqual(status, 1)
            self.assertIn(text, errors)

    def test_a_file_without_tensors_is_refused_with_its_keys(self):
        torch.save({"epoch": 3, "best": 0.5, "state_dict": {"a": 1, "b": 2}}, self.path)
        status, errors = self.convert()
        self.assertEqual(status, 1)
        self.assertIn("holds no tensors, but a, b", errors)
        inside = {}
        inside["model"] = inside  # without an end
        torch.save(inside, self.path)
        status, errors = self.convert()
        self.assertEqual((status, len(errors.splitlines())), (1, 1))

    def test_a_whole_model_is_no_state(self):
        torch.save(Stranger(), self.path)
        status, errors = self.convert()
        self.assertEqual(status, 1)
        self.assertIn("neither a state_dict nor a dict with model_state", errors)


if __name__ == "__main__":
    unittest.main()
