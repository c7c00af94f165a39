# SPDX-License-Identifier: Apache-2.0
"""Trains a small network that names digits, to judge completed images with (`lintel-bench occlusion`).

    python3 -m lintel_training.classifier --data mnist/ --out weights/mnist-classifier

Fully connected, 784-256-128-10 with relu, pixels divided by 255; writes model.safetensors
(hidden.I.weight [out, in], hidden.I.bias, output.weight, output.bias; bfloat16) and its card,
README.md. Images and labels are the IDX files of MNIST.
"""

import argparse
import hashlib
import os
import time

import torch
from torch import nn
from torch.nn import functional

from . import safetensors_io
from .data import find_images, find_labels, read_images, read_labels, shift_images
from .outputs import require_directory

SIDE = 28
CLASSES = 10
SIZES = (SIDE * SIDE, 256, 128)


class Classifier(nn.Module):
    """Logits [B, 10] of pixels, uint8 [B, 784]."""

    def __init__(self, sizes=SIZES):
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.output = nn.Linear(sizes[-1], CLASSES)

    def forward(self, pixels, dropout=0.0):
        x = pixels.float() / 255
        for layer in self.hidden:
            x = functional.dropout(torch.relu(layer(x)), dropout)
        return self.output(x)


@torch.no_grad()
def accuracy(model, images, labels):
    return (model(images).argmax(1) == labels).float().mean().item()


def train(model, images, labels, epochs, batch_size=100, learning_rate=2e-3, seed=0):
    """AdamW with the one-cycle schedule; images are moved by up to two pixels."""
    generator = torch.Generator().manual_seed(seed)
    steps = len(images) // batch_size
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, epochs * steps)
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        total = 0.0
        for i in range(steps):
            rows = order[i * batch_size:(i + 1) * batch_size]
            shifts = torch.randint(-2, 3, (batch_size, 2), generator=generator)
            batch = shift_images(images[rows], shifts, SIDE, SIDE)
            loss = functional.cross_entropy(model(batch, dropout=0.1), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.4f}", flush=True)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def card(args, files, sizes, test_accuracy, seconds):
    """The text of README.md. `sizes`: images for training and for the test."""
    names = {kind: f"`{os.path.basename(path)}` (SHA-256 {digest(path)}...)"
             for kind, path in files.items()}
    shape = "-".join(str(n) for n in (*SIZES, CLASSES))
    return "\n".join([
        "# mnist-classifier", "",
        f"Names digits: fully connected {shape}, relu, pixels divided by 255, weights in bfloat16. It "
        "judges completed images in `lintel-bench occlusion` and is never served.", "",
        f"**Test accuracy {100 * test_accuracy:.2f} %** on {sizes[1]:,} test images, with the weights "
        "of the file here.", "",
        f"- train: {sizes[0]:,} images, {names['train images']}, {names['train labels']}",
        f"- test: {sizes[1]:,} images, {names['test images']}, {names['test labels']}", "",
        f"{args.epochs} epochs of AdamW (one cycle to 0.002, batches of 100), images moved by up to "
        f"two pixels, dropout 0.1, seed {args.seed}; {seconds:.0f} s on "
        f"{torch.get_num_threads()} thread(s). To repeat, in `training/`:", "",
        "```sh", "python3 -m lintel_training.classifier --data mnist/ --out "
        f"../weights/mnist-classifier --epochs {args.epochs}", "```", ""])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory of the MNIST files")
    parser.add_argument("--out", required=True, help="folder of model.safetensors and its card")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--limit", type=int, help="use so many images of each file only")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    require_directory(parser, "--out", args.out, "model.safetensors")

    files, data = {}, {}
    for part, kind in (("train", "train"), ("test", "t10k")):
        files[f"{part} images"] = find_images(args.data, kind)
        files[f"{part} labels"] = find_labels(args.data, kind)
        images = read_images(files[f"{part} images"], args.limit)
        labels = read_labels(files[f"{part} labels"], args.limit)
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} {kind} images and {len(labels)} labels")
        data[part] = (images, labels)

    torch.manual_seed(args.seed)
    model = Classifier()
    begin = time.monotonic()
    train(model, *data["train"], args.epochs, seed=args.seed)
    seconds = time.monotonic() - begin

    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    test_accuracy = accuracy(model, *data["test"])
    print(f"test accuracy {test_accuracy:.4f}")
    safetensors_io.save(tensors, os.path.join(args.out, "model.safetensors"))
    sizes = (len(data["train"][0]), len(data["test"][0]))
    with open(os.path.join(args.out, "README.md"), "w", encoding="utf-8") as file:
        file.write(card(args, files, sizes, test_accuracy, seconds))


if __name__ == "__main__":
    main()
