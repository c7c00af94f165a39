# SPDX-License-Identifier: Apache-2.0
"""Selects the images of a data set to train on: by their label, or by how they are drawn.

A selection looks at one image at a time, so that training, validation and test images are chosen alike.
"""

import torch

from .data import read_labels

# Pixels: 13 % of MNIST's training images are drawn thinner; the median is 1.96.
THIN = 1.5


def parse_labels(text):
    """The labels that "0-4,7" names."""
    labels = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        try:
            labels |= set(range(int(low), int(high or low) + 1))
        except ValueError:
            raise ValueError(f"--labels {text}: expected numbers and ranges, as in 0-4,7") from None
    if not labels:
        raise ValueError(f"--labels {text}: names none")
    return labels


def stroke_width(images, height, width):
    """Mean width of the strokes of each image, in pixels: uint8 [count, height * width] -> float [count].

    Twice the ink by the length of its edge; the edge by the sum of differences between neighbours,
    which counts a slanted one up to sqrt(2) times. An empty image has width 0.
    """
    ink = torch.nn.functional.pad(images.view(-1, height, width).float() / 255, (1, 1, 1, 1))
    edge = sum((x[:, 1:] - x[:, :-1]).abs().flatten(1).sum(1) for x in (ink, ink.transpose(1, 2)))
    return 2 * ink.flatten(1).sum(1) / edge.clamp_min(1e-6)


FILTERS = {"thin": lambda images, height, width: stroke_width(images, height, width) < THIN}


class Selection:
    """labels: as parse_labels() takes them, or None; name: of FILTERS, or None."""

    def __init__(self, labels=None, name=None):
        self._text, self._name = labels, name
        self._labels = None if labels is None else parse_labels(labels)

    def choose(self, images, label_path, height, width):
        """bool [count]: which of uint8 [count, pixels] are chosen. label_path: IDX file of their labels."""
        chosen = torch.ones(len(images), dtype=torch.bool)
        if self._labels is not None:
            if label_path is None:
                raise ValueError("--labels: needs --data, a directory with files of labels")
            labels = read_labels(label_path, len(images))
            if len(labels) != len(images):
                raise ValueError(f"{label_path}: {len(labels)} labels for {len(images)} images")
            chosen &= torch.tensor([label in self._labels for label in labels.tolist()])
        if self._name is not None:
            chosen &= FILTERS[self._name](images, height, width)
        return chosen

    def facts(self):
        """For the run's record; empty where all are chosen."""
        parts = [] if self._text is None else [f"labels {self._text}"]
        parts += [] if self._name is None else [self._name]
        return {"selected": ", ".join(parts)} if parts else {}
