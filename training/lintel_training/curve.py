# SPDX-License-Identifier: Apache-2.0
"""Draws curve.png, the loss over the steps of a run, from its log.

    python3 -m lintel_training.curve RUN_DIRECTORY
"""

import math
import os
import sys

from .run_log import read_log


def _finite(value):
    return value is not None and math.isfinite(value)


def draw_curve(directory):
    """Writes curve.png; returns its path, or None where matplotlib is not installed."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    lines = read_log(directory)
    train = [(x["step"], x["loss"]) for x in lines if _finite(x.get("loss"))]
    valid = [(x["step"], x["validation"]) for x in lines if _finite(x.get("validation"))]
    if not train:
        return None
    unit = next((x["unit"] for x in lines if "unit" in x), "loss")

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    axes.plot(*zip(*train), linewidth=0.8, color="#7a9cc6", label="training")
    if valid:
        axes.plot(*zip(*valid), marker="o", markersize=3, color="#b03a2e",
                  label="validation, averaged weights")
    settled = sorted(y for _, y in train[len(train) // 10:])
    low = min([settled[0]] + [y for _, y in valid])
    high = settled[int(0.98 * (len(settled) - 1))]
    if high > low:  # the first steps would squeeze the rest into a line
        axes.set_ylim(low - 0.05 * (high - low), high + 0.15 * (high - low))
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    path = os.path.join(directory, "curve.png")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    print(draw_curve(sys.argv[1]) or "no curve: matplotlib or the log is missing")
