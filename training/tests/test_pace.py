# SPDX-License-Identifier: Apache-2.0
"""The time of a run: schedules, time budgets, and the reported speed."""

import time
import unittest

import context  # noqa: F401
from lintel_training import checkpoint
from lintel_training.optim import learning_rate
from lintel_training.pace import Pace
from lintel_training.presets import Recipe
from running import RunCase, quiet


class BudgetTest(RunCase):
    def test_the_speed_counts_training_alone(self):
        seconds = [10.0]  # of training; evaluation takes a hundred more each time
        with quiet():
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
        text = self.write("text.txt", b"abcd" * 500)
        for name, flags in (("images", []),
                            ("text", ["--preset", "text-linear", "--data", text]),
                            ("odd text", ["--preset", "text-linear", "--data", text,
                                          "--context", "13"])):
            with self.subTest(name), quiet():
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


if __name__ == "__main__":
    unittest.main()
