# SPDX-License-Identifier: Apache-2.0
"""Runs that are stopped, killed or damaged, and resume."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

import torch

import small
from context import TRAINING
from lintel_training import checkpoint
from lintel_training.run_log import read_log
from running import RunCase, quiet


class ResumeTest(RunCase):
    def losses(self, out):
        return {line["step"]: line["loss"] for line in read_log(self.path(out)) if "loss" in line}

    def test_a_resumed_run_has_the_same_weights_to_the_bit(self):
        flags = ["--steps", "23", "--dropout", "0.1", "--shift-augment", "0.5", "--accumulate", "2"]
        self.train("straight", *flags)
        self.train("stopped", *flags, "--stop-after", "7")
        self.assertFalse(os.path.exists(self.path("stopped", "result.json")))
        self.train("stopped", *flags, "--stop-after", "8")
        self.train("stopped", *flags)
        straight, stopped = (checkpoint.load(self.path(d)) for d in ("straight", "stopped"))
        for part in ("model", "average"):
            for name, tensor in straight[part].items():
                self.assertTrue(torch.equal(tensor, stopped[part][name]), f"{part} {name}")
        self.assertEqual(self.result("straight")["test_bf16"], self.result("stopped")["test_bf16"])

    def test_a_resumed_run_logs_the_mean_loss_of_all_updates_since_the_last_line(self):
        flags = ["--steps", "8", "--log-every", "4"]
        self.train("straight", *flags)
        self.train("stopped", *flags, "--stop-after", "3")
        self.train("stopped", *flags, "--stop-after", "4")
        self.train("stopped", *flags)
        self.assertEqual(sorted(self.losses("straight")), [4, 8])
        self.assertEqual(self.losses("stopped"), self.losses("straight"))

    def test_a_checkpoint_without_the_count_of_losses_resumes(self):
        self.train("run", "--steps", "4", "--log-every", "4", "--stop-after", "3")
        state = checkpoint.load(self.path("run"))
        del state["loss_count"]
        state["loss_sum"] = 1e9
        checkpoint.save(state, self.path("run"))
        self.train("run", "--steps", "4", "--log-every", "4")
        self.assertLess(self.losses("run")[4], 1e3)  # of the last update alone

    def test_a_resumed_run_refuses_another_recipe(self):
        self.train("run", "--steps", "4", "--stop-after", "2")
        with self.assertRaisesRegex(ValueError, "another learning_rate"):
            self.train("run", "--steps", "4", "--learning-rate", "0.5")

    def test_a_resumed_run_refuses_other_data(self):
        flags = ["--steps", "4", "--stop-after", "1"]
        self.train("run", *flags)
        os.rename(self.path("mnist"), self.path("moved"))
        small.write_images(self.path("mnist"), count=26)
        with self.assertRaisesRegex(ValueError, "other data .*train sha256: .*: 20 there, 22 here"):
            self.train("run", *flags)
        self.train("run", *flags, "--data", self.path("moved"))  # a place is not the data

        def train_on(text):
            self.train("text", *flags, "--data", self.write("text.txt", text), "--context", "8",
                       preset="text-linear")

        train_on(b"abcd" * 100)
        with self.assertRaisesRegex(ValueError, "other data .train sha256: "):
            train_on(b"abce" * 100)

    def test_a_checkpoint_that_names_no_data_resumes(self):
        self.train("run", "--steps", "4", "--stop-after", "2")
        state = checkpoint.load(self.path("run"))
        del state["data"]
        checkpoint.save(state, self.path("run"))
        self.train("run", "--steps", "4")
        self.assertEqual(self.result("run")["steps"], 4)

    def test_text_notes_how_long_it_was_trained_on(self):
        text = self.write("text.txt", b"abcd" * 100)
        flags = ["--steps", "4", "--data", text, "--context", "8"]
        self.train("text", *flags, "--stop-after", "2", preset="text-linear")
        state = checkpoint.load(self.path("text"))
        config = json.loads(state["config"])
        self.assertEqual(config.pop("trained_length"), 8)
        state["config"] = json.dumps(config)  # as runs of before wrote it
        checkpoint.save(state, self.path("text"))
        self.train("text", *flags, preset="text-linear")
        config = json.loads(self.text("text", "model", "config.json"))
        self.assertEqual(config["trained_length"], 8)

    def test_a_terminated_process_saves_and_exits_with_0(self):
        text = self.write("text.txt", b"to be or not to be " * 200)
        process = subprocess.Popen(
            [sys.executable, "-m", "lintel_training.train", "--preset", "text-linear", "--data",
             text, "--out", self.path("killed"), "--steps", "1000000", "--context", "32",
             "--validations", "0", "--threads", "1", *small.TINY],
            cwd=TRAINING, stderr=subprocess.DEVNULL)
        log = self.path("killed", "log.jsonl")
        deadline = time.monotonic() + 60
        while not (os.path.exists(log) and os.path.getsize(log)) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        self.assertGreater(checkpoint.load(self.path("killed"))["step"], 0)

    def test_a_run_that_is_stopped_while_it_is_evaluated_goes_on_there(self):
        def score(*_):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

        with quiet():
            trainer = self.trainer("run", "--sample-count", "0")
            trainer.task.test_score = score
            self.assertFalse(trainer.run())
            self.assertFalse(os.path.exists(self.path("run", "result.json")))
            self.assertTrue(self.trainer("run", "--sample-count", "0").run())
        self.assertEqual(self.result("run")["steps"], 9)

    def test_a_killed_process_leaves_a_run_that_goes_on(self):
        self.train("straight", "--steps", "6")
        with quiet():
            trainer = self.trainer("killed", "--sample-count", "0", "--steps", "6")
            for _ in range(4):
                trainer._update()
            trainer.save()
            trainer._update()
            trainer._record(1, 1.0)  # after the checkpoint: will be done again
            trainer.close()  # as the kernel does for a process that is killed
        self.train("killed", "--steps", "6")
        steps = [line["step"] for line in read_log(self.path("killed")) if "loss" in line]
        self.assertEqual(steps, [6])
        weights = [checkpoint.load(self.path(d))["model"] for d in ("straight", "killed")]
        for name, tensor in weights[0].items():
            self.assertTrue(torch.equal(tensor, weights[1][name]), name)

    def test_two_processes_do_not_train_in_one_directory(self):
        with quiet():
            trainer = self.trainer("run")
            trainer.log.write(step=0)
            with self.assertRaisesRegex(OSError, "run: another process is training here"):
                self.trainer("run")
            self.assertEqual(read_log(self.path("run")), [{"step": 0}])
            trainer.close()
            self.trainer("run").close()

    def test_what_a_run_started_from_may_go_once_it_has_a_checkpoint(self):
        self.train("first", "--steps", "2")
        flags = ["--steps", "4", "--init-from", self.path("first", "model")]
        self.train("second", *flags, "--stop-after", "2")
        os.rename(self.path("first"), self.path("moved"))
        self.train("second", *flags)
        self.assertEqual(self.result("second")["steps"], 4)

    def test_a_checkpoint_of_a_gpu_goes_on_on_a_cpu(self):
        self.train("run", "--steps", "4", "--stop-after", "2")
        state = checkpoint.load(self.path("run"))
        for group in state["optimizer"]["param_groups"]:
            group["fused"] = True
        state["rng"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)]
        checkpoint.save(state, self.path("run"))
        with quiet():
            trainer = self.trainer("run", "--steps", "4", "--sample-count", "1")
        self.assertEqual([g["fused"] for g in trainer.optimizer.param_groups], [False] * 3)
        trainer.close()

    def test_a_damaged_checkpoint_is_named(self):
        self.train("run", "--steps", "4", "--stop-after", "2")
        with open(self.path("run", "checkpoint.pt"), "r+b") as file:
            file.truncate(100)
        with self.assertRaisesRegex(ValueError, "run/checkpoint.pt: no checkpoint, or damaged"):
            self.train("run", "--steps", "4")


if __name__ == "__main__":
    unittest.main()
