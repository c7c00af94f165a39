"""Whole runs: every preset, text, exact resumption, time budgets, and the model card."""

import contextlib
import glob
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch

import small
from context import TRAINING
from lintel_training import checkpoint, evaluate, model_card, train
from lintel_training.config import CategoricalHead, MixtureHead
from lintel_training.curve import draw_curve
from lintel_training.export import load_model
from lintel_training.optim import learning_rate
from lintel_training.pace import Pace
from lintel_training.presets import PRESETS, Recipe
from lintel_training.run_log import read_log
from lintel_training.sample import TEXT_SAMPLE_BYTES


@contextlib.contextmanager
def _quiet():
    with contextlib.redirect_stdout(io.StringIO()) as out, \
            contextlib.redirect_stderr(io.StringIO()):
        yield out


class RunTest(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory()
        self.addCleanup(self._directory.cleanup)
        self.root = self._directory.name
        # Images of 5 x 4 in presets of 28 x 28.
        for name, preset in PRESETS.items():
            if preset.config["modality"]["type"] == "image":
                changes = {"max_length": 19, "modality": dict(preset.config["modality"], height=5,
                                                              width=4)}
                before = {k: preset.config[k] for k in changes}
                preset.config.update(changes)
                self.addCleanup(preset.config.update, before)
        small.write_images(self.path("mnist"))

    def path(self, *names):
        return os.path.join(self.root, *names)

    def train(self, out, *flags, preset="mnist-linear"):
        with _quiet():
            small.run("--preset", preset, "--data", self.path("mnist"), "--out", self.path(out),
                      "--valid-count", "4", "--sample-count", "1", *flags)

    def result(self, out):
        with open(self.path(out, "result.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_every_image_preset_trains_and_exports(self):
        for preset in PRESETS:
            if not preset.startswith("mnist"):
                continue
            self.train(preset, "--steps", "3", "--shift-augment", "0.5", preset=preset)
            result = self.result(preset)
            self.assertEqual(result["steps"], 3)
            with _quiet() as out:
                evaluate.main(["--model", self.path(preset, "model"), "--images",
                               self.path("mnist", "t10k-images-idx3-ubyte.gz"), "--json"])
            report = json.loads(out.getvalue())
            self.assertAlmostEqual(report["bits_per_dim"], result["test_bf16"], places=5)
            self.assertEqual(len(report["per_image"]), 24)

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

    def config(self, *flags):
        args = train.make_parser().parse_args(["--out", "-", "--preset", *flags])
        return train.make_config(args)

    def test_the_head_is_what_the_flags_ask_for(self):
        mixture = "--head", "mixture_of_logistics"
        for flags, mixtures in ((["mnist-linear"], 10), (["mnist-linear", "--mixtures", "3"], 3),
                                (["mnist-linear-small", *mixture], 10),
                                (["mnist-linear-small", *mixture, "--mixtures", "4"], 4)):
            self.assertEqual(self.config(*flags).head, MixtureHead(mixtures), flags)
        for flags in (["mnist-linear", "--head", "categorical"], ["mnist-linear-small"]):
            self.assertEqual(self.config(*flags).head, CategoricalHead(), flags)

    def test_a_flag_that_does_not_fit_the_architecture_is_named(self):
        for flags, text in ((["--mixtures", "4"], "--mixtures: the head is categorical"),
                            (["--chunk-size", "4"], "--chunk-size: .* linear attention"),
                            (["--head", "mixture_of_logistics", "--mixtures", "0"], "mixtures")):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as caught:
                train.main(["--preset", "mnist-linear-small", "--data", self.path("mnist"),
                            "--out", self.path("never"), *flags])
            self.assertEqual(caught.exception.code, 2)
            self.assertRegex(errors.getvalue(), text)

    def losses(self, out):
        return {line["step"]: line["loss"] for line in read_log(self.path(out)) if "loss" in line}

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
            with open(self.path("text.txt"), "wb") as file:
                file.write(text)
            self.train("text", *flags, "--data", self.path("text.txt"), "--context", "8",
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
        text = self.path("text.txt")
        with open(text, "wb") as file:
            file.write(b"abcd" * 100)
        flags = ["--steps", "4", "--data", text, "--context", "8"]
        self.train("text", *flags, "--stop-after", "2", preset="text-linear")
        state = checkpoint.load(self.path("text"))
        config = json.loads(state["config"])
        self.assertEqual(config.pop("trained_length"), 8)
        state["config"] = json.dumps(config)  # as runs of before wrote it
        checkpoint.save(state, self.path("text"))
        self.train("text", *flags, preset="text-linear")
        with open(self.path("text", "model", "config.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["trained_length"], 8)

    def test_a_terminated_process_saves_and_exits_with_0(self):
        text = self.path("text.txt")
        with open(text, "wb") as file:
            file.write(b"to be or not to be " * 200)
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

        with _quiet():
            trainer = self.trainer("run", "--sample-count", "0")
            trainer.task.test_score = score
            self.assertFalse(trainer.run())
            self.assertFalse(os.path.exists(self.path("run", "result.json")))
            self.assertTrue(self.trainer("run", "--sample-count", "0").run())
        self.assertEqual(self.result("run")["steps"], 9)

    def test_a_killed_process_leaves_a_run_that_goes_on(self):
        self.train("straight", "--steps", "6")
        with _quiet():
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
        with _quiet():
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
        with _quiet():
            trainer = self.trainer("run", "--steps", "4", "--sample-count", "1")
        self.assertEqual([g["fused"] for g in trainer.optimizer.param_groups], [False] * 3)
        trainer.close()

    def test_a_damaged_checkpoint_is_named(self):
        self.train("run", "--steps", "4", "--stop-after", "2")
        with open(self.path("run", "checkpoint.pt"), "r+b") as file:
            file.truncate(100)
        with self.assertRaisesRegex(ValueError, "run/checkpoint.pt: no checkpoint, or damaged"):
            self.train("run", "--steps", "4")

    def test_a_loss_that_is_not_finite_is_null_in_the_log_and_left_out_of_the_curve(self):
        with _quiet():
            trainer = self.trainer("run")
            for loss in (1.0, float("nan"), float("inf"), 2.0):
                trainer.log.write(step=1, loss=loss, unit="bits/dim")
            trainer.close()
        with open(self.path("run", "log.jsonl"), encoding="utf-8") as file:
            self.assertNotRegex(file.read(), "NaN|Infinity")
        self.assertEqual([line["loss"] for line in read_log(self.path("run"))],
                         [1.0, None, None, 2.0])
        draw_curve(self.path("run"))

    def test_the_speed_counts_training_alone(self):
        seconds = [10.0]  # of training; evaluation takes a hundred more each time
        with _quiet():
            trainer = self.trainer("run", "--sample-count", "0")
            score = trainer.task.test_score

            def slow_score(model):
                seconds[0] += 100
                return score(model)

            trainer.task.test_score = slow_score
            trainer._seconds = lambda: seconds[0]
            trainer.run()
        result = self.result("run")
        self.assertEqual(result["training_seconds"], 10.0)
        self.assertEqual(result["items_per_second"], 1.8)  # 9 updates of 2 images

    def test_a_time_budget_fixes_the_number_of_steps(self):
        began = time.monotonic()
        self.train("budget", "--time-budget", "7", "--validations", "1")
        self.assertLess(time.monotonic() - began, 8)
        state = checkpoint.load(self.path("budget"))
        self.assertEqual(state["total_steps"], state["step"])
        self.assertGreater(state["step"], Pace.TIMED)

    def test_the_time_budget_counts_every_sequence_of_the_end(self):
        text = self.path("text.txt")
        with open(text, "wb") as file:
            file.write(b"abcd" * 500)
        for name, flags in (("images", []),
                            ("text", ["--preset", "text-linear", "--data", text]),
                            ("odd text", ["--preset", "text-linear", "--data", text,
                                          "--context", "13"])):
            with self.subTest(name), _quiet():
                trainer = self.trainer(name.replace(" ", "-"), "--context", "32", "--validations",
                                       "0", "--steps", "1", "--sample-count", "0", *flags)
                seen = []
                trainer.average.model.register_forward_hook(
                    lambda model, given, outputs, seen=seen: seen.append(len(given[0])))
                task = trainer.task
                for limit in (1, 4):
                    task.validate(trainer.average.model, limit)
                    self.assertEqual(sum(seen), limit)
                    seen.clear()
                trainer._validate()
                self.assertEqual(sum(seen), task.valid_items)
                seen.clear()
                trainer.run()
                self.assertEqual(sum(seen), task.final_items)

    def test_an_update_with_a_gradient_that_is_not_finite_is_skipped(self):
        with _quiet():
            trainer = self.trainer("skips")
            self.addCleanup(trainer.close)
            trainer._update()
            before = [p.clone() for p in trainer.parameters]
            finite = trainer.loss
            trainer.loss = lambda *batch: finite(*batch) * float("nan")
            trainer._update()
            trainer.loss = finite
        for p, q in zip(before, trainer.parameters):
            self.assertTrue(torch.equal(p, q))
        self.assertEqual(trainer.skipped.item(), 1)
        trainer._update()
        self.assertFalse(torch.equal(before[0], trainer.parameters[0]))

    def trainer(self, out, *flags):
        args = train.make_parser().parse_args(
            ["--preset", "mnist-linear", "--data", self.path("mnist"), "--out", self.path(out),
             "--steps", "9", "--valid-count", "4", *small.TINY, *flags])
        return train.make_trainer(args)

    def test_text_is_learned_and_sampled(self):
        text = self.path("text.txt")
        with open(text, "wb") as file:
            file.write(b"abcd" * 500)
        with _quiet():
            small.run("--preset", "text-linear", "--data", text, "--out", self.path("text"),
                      "--context", "32", "--steps", "120", "--batch-size", "8", "--dropout", "0",
                      "--learning-rate", "0.02", "--d-model", "16")
        # Guessing among the four letters costs log 4 = 1.39 nats.
        self.assertLess(self.result("text")["validation"], 1.1)
        model = load_model(self.path("text", "model"))
        self.assertEqual(model.config.max_length, 0)
        model_card.main(["--run", self.path("text"), "--out", self.path("card")])
        with open(self.path("card", "README.md"), encoding="utf-8") as file:
            card = file.read()
        for part in ("nats/byte", f"first {TEXT_SAMPLE_BYTES} bytes", "text.txt"):
            self.assertIn(part, card)

    def test_the_model_card_states_figures_and_how_to_repeat(self):
        self.train("run", "--steps", "3", "--dropout", "0.3")
        model_card.main(["--run", self.path("run"), "--out", self.path("card"), "--copy-model"])
        with open(self.path("card", "README.md"), encoding="utf-8") as file:
            text = file.read()
        for part in (f"{self.result('run')['test_bf16']:.4f}", "--dropout 0.3", "--d-model 8",
                     "--limit-test 24",
                     "SHA-256", "seed 0"):
            self.assertIn(part, text)
        load_model(self.path("card"))


class CardTest(unittest.TestCase):
    def check_files(self, args, model, directory):
        """The files beside a card are of the model, or its adapter, that the flags train."""
        config = os.path.join(os.path.dirname(TRAINING), "weights", model, "config.json")
        with open(config, encoding="utf-8") as file:
            self.assertEqual(train.make_config(args).to_dict(), json.load(file))
        adapter = os.path.join(directory, "adapter_config.json")
        self.assertEqual(args.lora_rank is not None, os.path.exists(adapter))
        if args.lora_rank is not None:
            self.assertEqual(os.path.basename(args.init_from), model)
            with open(adapter, encoding="utf-8") as file:
                given = json.load(file)
            self.assertEqual((given["r"], given["lora_alpha"], given["base_model_name_or_path"]),
                             (args.lora_rank, args.lora_alpha, model))
            load_model(os.path.dirname(config), adapter=directory)

    def test_the_commands_of_all_cards_train_what_they_stand_beside(self):
        weights = os.path.join(os.path.dirname(TRAINING), "weights")
        found = 0
        pages = glob.glob(os.path.join(weights, "*", "README.md"))
        adapters = glob.glob(os.path.join(weights, "*", "adapters", "*", "README.md"))
        for page in sorted(pages + adapters):
            name = os.path.relpath(os.path.dirname(page), weights)
            with open(page, encoding="utf-8") as file:
                text = file.read()
            for block in re.findall(r"```sh\n(python3 -m lintel_training\.train .*?)```", text, re.S):
                found += 1
                with self.subTest(name):
                    lines = block.replace("\\\n", " ").strip().splitlines()
                    self.assertEqual(len(lines), 1, "one command")
                    args = train.make_parser().parse_args(shlex.split(lines[0])[3:])
                    self.check_files(args, name.split(os.sep)[0], os.path.join(weights, name))
                    count = re.search(r"- test: ([0-9,]+) images", text)
                    if count:
                        self.assertEqual(args.limit_test, int(count[1].replace(",", "")))
                    if args.init_from:
                        self.assertTrue(os.path.isdir(os.path.join(TRAINING, args.init_from)))
        self.assertGreaterEqual(found, 6)


class ScheduleTest(unittest.TestCase):
    def test_warm_up_then_cosine(self):
        recipe = Recipe(learning_rate=1.0, warmup_steps=10, final_learning_rate=0.1)
        rates = [learning_rate(recipe, s, 100) for s in range(100)]
        self.assertAlmostEqual(rates[0], 0.1)
        self.assertAlmostEqual(rates[9], 1.0)
        self.assertEqual(rates[10:], sorted(rates[10:], reverse=True))
        self.assertAlmostEqual(rates[-1], 0.1, places=2)

    def test_pace_leaves_out_the_slow_first_steps(self):
        now = [0.0]
        pace = Pace(1000, 0.0, sync=lambda: None, clock=lambda: now[0])
        total = None
        for step in range(1, 100):
            now[0] += 20.0 if step == 1 else 0.5  # the first compiles
            total = pace.total_steps(step, reserve_seconds=lambda: (70.0, 30.0))
            if total is not None:
                break
        left = 1000 - now[0] - 100
        self.assertEqual(total, (step + int(left * Pace.MARGIN / 0.5), 30.0))


class TextWindowsTest(unittest.TestCase):
    def test_every_byte_is_scored_once(self):
        model = small.model({"type": "linear"}, embedding="value", position_encoding="none",
                            max_length=0)
        model.predictor.weight.data.zero_()  # each byte then costs the same, whatever its context
        model.predictor.bias.data.zero_()
        for n in (2, 9, 10, 11, 37):
            value = evaluate.text_nats(model, torch.zeros(n, dtype=torch.uint8), 8)
            self.assertAlmostEqual(value, torch.tensor(17.0).log().item(), places=5)


if __name__ == "__main__":
    unittest.main()
