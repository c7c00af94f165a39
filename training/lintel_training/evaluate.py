# SPDX-License-Identifier: Apache-2.0
"""Likelihood of a data set under a model directory, as JSON.

    python3 -m lintel_training.evaluate --model DIR --images t10k-images-idx3-ubyte.gz
    python3 -m lintel_training.evaluate --model DIR --text tinyshakespeare.txt --context 512

The network runs in float32 with the weights as stored; the likelihood is evaluated in float64 from
its float32 outputs, since it subtracts two nearby sigmoids.

Images: bits/dim is the mean of -log2 p over pixels 1..P-1; the first pixel is given.
Text: the last 10 % of the file, in windows of `context` predicted bytes, or tokens, that advance by half a
window; a window scores its second half only (the first one both), so each but the first few is
predicted from at least context/2 of them. Positions start at 0 in every window.
"""

import argparse
import contextlib
import json
import sys
import time

import torch

from .data import read_images, read_text, split_text
from .export import load_model
from .losses import LN2, nll
from .vocabulary import encoded, read_tokenizer


@contextlib.contextmanager
def exact_float32():
    """Float32 matrix products in full, not TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def image_bits(model, images, batch_size=64):
    """Bits/dim of each image: uint8 [count, P] -> float64 [count]."""
    device = model.predictor.weight.device
    was_training = model.training
    model.eval()
    results = []
    with exact_float32():
        for batch in images.split(batch_size):
            tokens = batch.to(device).long()
            outputs = model(tokens[:, :-1])
            nats = nll(model.config, outputs.double(), tokens[:, 1:])
            results.append(nats.mean(1) / LN2)
    model.train(was_training)
    return torch.cat(results).cpu()


def _half(context):
    return max(1, context // 2)


def bytes_of_windows(count, context):
    """The bytes of text that fill `count` windows exactly, one after the other."""
    return context + (count - 1) * _half(context) + 1


def text_windows(size, context):
    """[(start, first scored target, end)] over data[1:size]; inputs start..end-1, targets ..end."""
    last = size - 1  # the last index that is predicted
    windows, done, start = [], 0, 0
    while done < last:
        end = min(start + context, last)
        windows.append((start, done + 1, end))
        done, start = end, start + _half(context)
    return windows


@torch.no_grad()
def text_nats(model, data, context, batch_size=16):
    """Mean nats/byte over data[1:], uint8 [count], with overlapping windows (see above)."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total = 0.0
    by_length = {}
    for window in text_windows(len(data), context):  # equal lengths can share a batch
        by_length.setdefault(window[2] - window[0], []).append(window)
    with exact_float32():
        for group in by_length.values():
            for i in range(0, len(group), batch_size):
                part = group[i:i + batch_size]
                tokens = torch.stack([data[s:e + 1] for s, _, e in part]).to(device).long()
                nats = nll(model.config, model(tokens[:, :-1]).double(), tokens[:, 1:])
                for row, (s, first, e) in zip(nats, part):
                    total += row[first - s - 1:].sum()
    model.train(was_training)
    return float(total) / (len(data) - 1)


def token_nats(model, text, context, batch_size=16):
    """Mean nats/byte of an EncodedText, in windows of `context` tokens; its first token is given."""
    per_token = text_nats(model, text.ids, context, batch_size)
    return per_token * (len(text.ids) - 1) / text.scored_bytes


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--adapter", help="directory of a LoRA adapter of it")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", help="IDX file, gzipped or not")
    source.add_argument("--text", help="text file; its last 10 %% are scored")
    parser.add_argument("--limit", type=int, help="first images, or bytes of the text's last 10 %%")
    parser.add_argument("--context", type=int, default=512, help="bytes or tokens in a text window")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--json", action="store_true", help="add the bits/dim of each image")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)

    model = load_model(args.model, args.device, args.adapter)
    began = time.monotonic()
    report = {"model": args.model, "data": args.images or args.text}
    if args.images:
        bits = image_bits(model, read_images(args.images, args.limit), args.batch_size)
        report.update(images=len(bits), bits_per_dim=bits.mean().item())
        if args.json:
            report["per_image"] = bits.tolist()
    else:
        data = split_text(read_text(args.text))[1][:args.limit]
        tokenizer = read_tokenizer(args.model)
        if tokenizer is None:
            size, nats = len(data) - 1, text_nats(model, data, args.context, args.batch_size)
        else:
            text = encoded(tokenizer, bytes(data.tolist()))
            size, nats = text.scored_bytes, token_nats(model, text, args.context, args.batch_size)
        report.update(bytes=size, context=args.context, nats_per_byte=nats,
                      bits_per_byte=nats / LN2)
    report["seconds"] = round(time.monotonic() - began, 2)
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
