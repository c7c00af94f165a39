# SPDX-License-Identifier: Apache-2.0
"""Judges completed images: what the model makes of their known pixels, and which digits they are.

    lintel complete --images t10k-images-idx3-ubyte.gz --index 0-99 --occlude left:14 --particles 1,8,32 --json left.json
    python3 -m lintel_training.judge --labels t10k-labels-idx1-ubyte.gz left.json

Reads what `lintel complete --json` wrote, as many files as there are; images of the same occlusion and
way (best of N, N particles) are counted together. Writes a table in Markdown, a row for each occlusion and
way, every figure with its standard error over images:

- known: bits of the known pixels behind the first hidden one, each given the pixels before it, drawn
  ones included, as the completions have them: minus log2_prob_given. Lower: what was drawn goes better
  with what is known.
- evidence: minus log2_evidence: the estimate of the same for all ways to fill the hidden pixels together.
- digits: completions that a classifier (weights/mnist-classifier) names as the image they were made of.
"""

import argparse
import collections
import json
import math
import os

import torch

from . import safetensors_io
from .classifier import Classifier
from .data import read_labels

CLASSIFIER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "weights",
                          "mnist-classifier")


def load_classifier(directory):
    model = Classifier()
    tensors = safetensors_io.load(os.path.join(directory, "model.safetensors"))
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.eval()


def way_of(sample):
    """The way in which a sample was made, as the table names it, behind a number to sort by."""
    if sample.get("particles", 1) > 1:
        return 2, sample["particles"], f"{sample['particles']} particles"
    if sample.get("best_of", 1) > 1:
        return 1, sample["best_of"], f"best of {sample['best_of']}"
    return 0, 1, "plain"


def mean_and_error(values):
    """The mean of floats, and its error, NaN of fewer than two."""
    values = torch.tensor(values, dtype=torch.float64)
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return values.mean().item(), error


@torch.no_grad()
def judge(runs, labels, classifier):
    """{(occlusion, way): {images, known, evidence, digits}} of the objects in results.json; each figure a
    pair (mean over images, its error), evidence None where there is none. An image's samples count as
    their mean.
    """
    gathered = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in runs:
        for image in run["images"]:
            for sample in image["samples"]:
                gathered[run["occlusion"], way_of(sample)][image["index"]].append(sample)
    table = {}
    for key, images in gathered.items():
        known, evidence, digits = [], [], []
        for index, samples in images.items():
            pixels = torch.tensor([sample["tokens"] for sample in samples], dtype=torch.uint8)
            named = classifier(pixels).argmax(1)
            digits.append((named == labels[index]).double().mean().item())
            known.append(-sum(s["log2_prob_given"] for s in samples) / len(samples))
            if "log2_evidence" in samples[0]:
                evidence.append(-sum(s["log2_evidence"] for s in samples) / len(samples))
        table[key] = {
            "images": len(images),
            "known": mean_and_error(known),
            "evidence": mean_and_error(evidence) if evidence else None,
            "digits": mean_and_error(digits),
        }
    return table


def markdown(table):
    lines = ["| occlusion | way | images | known, bits | evidence, bits | digits named right |",
             "|---|---|---|---|---|---|"]

    def figure(pair, scale=1, unit=""):
        return "" if pair is None else f"{scale * pair[0]:.1f}{unit} ± {scale * pair[1]:.1f}"

    for occlusion, way in sorted(table, key=lambda key: (str(key[0]), key[1])):
        row = table[occlusion, way]
        lines.append(f"| {occlusion} | {way[2]} | {row['images']} | {figure(row['known'])} | "
                     f"{figure(row['evidence'])} | {figure(row['digits'], 100, ' %')} |")
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="files of lintel complete --json")
    parser.add_argument("--labels", required=True, help="of all images, IDX")
    parser.add_argument("--classifier", default=CLASSIFIER, help="directory of the network")
    args = parser.parse_args(argv)
    runs = []
    for path in args.results:
        with open(path, encoding="utf-8") as file:
            runs.append(json.load(file))
    print(markdown(judge(runs, read_labels(args.labels), load_classifier(args.classifier))))


if __name__ == "__main__":
    main()
