# SPDX-License-Identifier: Apache-2.0
"""Likelihood of a text against the position in the sequence, as JSON.

    python3 -m lintel_training.by_position --model DIR --text tinyshakespeare.txt --length 16384

The same bytes, the last of the file, are scored at each distance from the start of a sequence: once
between 64 and 128 bytes after it, once between 128 and 256, and so on up to --length. So the figures
differ by the position alone. A token counts where its first byte is.
"""

import argparse
import json
import sys

import torch
import torch.nn.functional as F

from .checks import ConfigError
from .data import read_text, split_text
from .evaluate import exact_float32
from .export import load_model
from .losses import nll
from .vocabulary import as_bytes, encoded, read_tokenizer

_FIRST = 64  # bytes from the start of a sequence to the first range
_TOKENS = 4096  # tokens in a batch of sequences


def ranges(length):
    """[(first, last + 1)] of positions, in bytes: each twice as far as the one before."""
    out, first = [], _FIRST
    while 2 * first <= length:
        out.append((first, 2 * first))
        first *= 2
    return out


def windows(starts, size, scored, first):
    """[(start, first scored, end)] in tokens, for each block of `first` bytes of those scored.

    starts: the offset of each token in bytes, ascending; size, scored: bytes of the text, and how many
    of its last ones are scored. A sequence starts `first` bytes before what it scores.
    """
    out = []
    for begin in range(size - scored, size, first):
        bounds = torch.tensor([begin - first, begin, min(begin + first, size)])
        start, score, end = torch.searchsorted(starts, bounds).tolist()
        if end > score:
            out.append((start, max(score, start + 1), end))
    return out


@torch.no_grad()
def nats_between(model, text, scored, first):
    """(nats/byte of the last `scored` bytes, the bytes) of an EncodedText, when a sequence starts between
    `first` and twice as many bytes before each.
    """
    device = next(model.parameters()).device
    starts = text.sizes.cumsum(0) - text.sizes
    todo = sorted(windows(starts, int(text.sizes.sum()), scored, first), key=lambda w: w[2] - w[0])
    nats, size = 0.0, 0
    while todo:
        longest = max(todo[-1][2] - todo[-1][0], 1)
        part, todo = todo[-max(1, _TOKENS // longest):], todo[:-max(1, _TOKENS // longest)]
        # Padding after the end of a shorter one changes nothing before it.
        tokens = torch.stack([F.pad(text.ids[s:e], (0, longest - (e - s))) for s, _, e in part]).to(device).long()
        found = nll(model.config, model(tokens[:, :-1]).double(), tokens[:, 1:])
        for row, (start, score, end) in zip(found, part):
            nats += float(row[score - start - 1:end - start - 1].sum())
            size += int(text.sizes[score:end].sum())
    return nats / size, size


def read(directory, data):
    """The tokens of bytes for the model of a directory; of a model of bytes, these."""
    tokenizer = read_tokenizer(directory)
    if tokenizer is not None:
        return encoded(tokenizer, bytes(data.tolist()))
    return as_bytes(data)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--text", required=True, help="text file; of its last 10 %% the end is scored")
    parser.add_argument("--length", type=int, default=16384, help="bytes in the longest sequence")
    parser.add_argument("--scored", type=int, default=16384, help="bytes that are scored")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    data = split_text(read_text(args.text))[1]
    if not ranges(args.length):
        parser.error(f"--length {args.length}: must be at least {2 * _FIRST}")
    before = ranges(args.length)[-1][0]
    if not 0 < args.scored <= len(data) - before:
        parser.error(f"--scored {args.scored}: must be from 1 to {len(data) - before}, as the text has {len(data)} "
                     f"bytes to score and a sequence starts {before} before")
    try:
        model = load_model(args.model, args.device)
        text = read(args.model, data)
    except (ConfigError, OSError, ValueError) as error:
        parser.error(str(error))
    report = {"model": args.model, "data": args.text, "positions": []}
    with exact_float32():
        for first, last in ranges(args.length):
            nats, size = nats_between(model, text, args.scored, first)
            report["positions"].append({"from": first, "to": last, "bytes": size, "nats_per_byte": nats})
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
