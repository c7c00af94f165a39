# SPDX-License-Identifier: Apache-2.0
"""The judge of completions: figures over images, by occlusion and way."""

import math
import unittest

import torch

import context  # noqa: F401
from lintel_training import judge


class Brightest(torch.nn.Module):
    """Names an image by its first pixel."""

    def forward(self, pixels):
        return torch.nn.functional.one_hot(pixels[:, 0].long(), 10).float()


def sample(digit, given, **way):
    return {"tokens": [digit] + [0] * 783, "log2_prob_given": given, **way}


def run(occlusion, *images):
    return {"occlusion": occlusion,
            "images": [{"index": i, "samples": samples} for i, samples in images]}


class JudgeTest(unittest.TestCase):
    def judge(self, *runs):
        return judge.judge(runs, torch.tensor([3, 7, 1]), Brightest())

    def test_an_image_counts_once_whatever_its_samples_and_files_count_together(self):
        table = self.judge(run("top:14", (0, [sample(3, -10.0), sample(4, -20.0)])),
                           run("top:14", (1, [sample(7, -5.0)])))
        (key,) = table
        self.assertEqual(key[0], "top:14")
        self.assertEqual(key[1][2], "plain")
        row = table[key]
        self.assertEqual(row["images"], 2)
        self.assertAlmostEqual(row["known"][0], 10.0)
        self.assertAlmostEqual(row["known"][1], math.sqrt(50 / 2))
        self.assertAlmostEqual(row["digits"][0], 0.75)
        self.assertIsNone(row["evidence"])

    def test_ways_are_told_apart_and_sorted(self):
        ways = [sample(3, -1.0, particles=128, log2_evidence=-4.0), sample(3, -2.0),
                sample(3, -3.0, particles=8, log2_evidence=-5.0), sample(3, -4.0, best_of=8)]
        table = self.judge(run("left:14", (0, ways)), run("box:1,1,2,2", (2, [sample(1, -1.0)])))
        lines = judge.markdown(table).split("\n")[2:]
        self.assertEqual([line.split(" | ")[1] for line in lines],
                         ["plain", "plain", "best of 8", "8 particles", "128 particles"])
        self.assertIn("| 5.0 ± nan |", lines[3])
        self.assertTrue(lines[0].startswith("| box:1,1,2,2 |"))

    def test_the_classifier_of_the_weights_names_digits(self):
        classifier = judge.load_classifier(judge.CLASSIFIER)
        self.assertEqual(classifier(torch.zeros(2, 784, dtype=torch.uint8)).shape, (2, 10))


if __name__ == "__main__":
    unittest.main()
