# SPDX-License-Identifier: Apache-2.0
"""Draws samples from a model: a grid of images, or a text.

    python3 -m lintel_training.sample --model DIR --out grid.png
"""

import argparse
import math
import struct
import sys
import zlib

import torch
import torch.nn.functional as F

from .export import load_model
from .outputs import require_file
from .recurrent import session_of
from .vocabulary import read_tokenizer

TEXT_SAMPLE_BYTES = 500  # of a sample drawn while training


def draw(config, outputs, generator, temperature=1.0):
    """One token for each row of head outputs: [B, O] -> int64 [B].

    Mixture: a component, then a logistic of scale elu(s) + 1.0001, back to 0..255.
    """
    def uniform(shape):
        u = torch.rand(shape, generator=generator, device=generator.device).to(outputs.device)
        return u.clamp(1e-5, 1 - 1e-5)

    def choose(logits):  # by the Gumbel trick
        return (logits / temperature - torch.log(-torch.log(uniform(logits.shape)))).argmax(-1)

    if config.head.type == "categorical":
        return choose(outputs)
    logits, means, scales = outputs.chunk(3, -1)
    component = choose(logits).unsqueeze(-1)
    mean = means.gather(-1, component).squeeze(-1)
    scale = F.elu(scales.gather(-1, component).squeeze(-1)) + 1.0001
    u = uniform(mean.shape)
    x = mean + scale * temperature * (torch.log(u) - torch.log(1 - u))
    return torch.round((x + 1) / 2 * 255).clamp(0, 255).long()


@torch.no_grad()
def sample(model, prompts, length, seed=0, temperature=1.0):
    """Continues prompts [B, at least 1] to `length` tokens: int64 [B, length]."""
    device = prompts.device
    generator = torch.Generator(device).manual_seed(seed)
    tokens = torch.zeros(prompts.shape[0], length, dtype=torch.int64, device=device)
    given = prompts.shape[1]
    tokens[:, :given] = prompts
    session = session_of(model, prompts.shape[0], length)
    for t in range(length - 1):
        outputs = session.step(tokens[:, t])
        if t + 1 >= given:
            tokens[:, t + 1] = draw(model.config, outputs, generator, temperature)
    return tokens


def sample_images(model, count, seed=0, temperature=1.0):
    """Images from the start token: uint8 [count, height, width]."""
    m = model.config.modality
    if m.type != "image" or m.channels != 1:
        raise ValueError("a grid can be drawn of single-channel images only")
    device = model.predictor.weight.device
    prompts = torch.full((count, 1), m.start_token, dtype=torch.int64, device=device)
    tokens = sample(model, prompts, model.config.length, seed, temperature)
    return tokens.view(count, m.height, m.width).to("cpu", torch.uint8)


def sample_text(model, prompt, length, seed=0, temperature=1.0):
    """A text of `length` bytes that begins with `prompt` (bytes, not empty)."""
    device = model.predictor.weight.device
    prompts = torch.tensor([list(prompt)], device=device)
    return bytes(sample(model, prompts, length, seed, temperature)[0].tolist())


def sample_tokens(model, tokenizer, prompt, length, seed=0, temperature=1.0):
    """A text, as bytes, of `length` tokens that begins with `prompt` (a text, not empty)."""
    prompts = torch.tensor([tokenizer.encode(prompt)], device=next(model.parameters()).device)
    ids = sample(model, prompts, max(length, prompts.shape[1]), seed, temperature)
    return tokenizer.decode(ids[0].tolist())


def image_grid(images, gap=2):
    """uint8 [count, height, width] -> one picture, about as wide as high: uint8 [rows, columns]."""
    count, height, width = images.shape
    across = math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    grid = torch.full((down * (height + gap) + gap, across * (width + gap) + gap), 96,
                      dtype=torch.uint8)
    for i in range(count):
        y = gap + i // across * (height + gap)
        x = gap + i % across * (width + gap)
        grid[y:y + height, x:x + width] = images[i]
    return grid


def write_png(path, picture):
    """Writes uint8 [rows, columns] as an 8-bit grey PNG; needs no imaging library."""
    rows, columns = picture.shape
    raw = b"".join(b"\0" + bytes(row.tolist()) for row in picture)  # filter type 0 per row

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
                   + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--adapter", help="directory of a LoRA adapter of it")
    parser.add_argument("--out", help="PNG to write (images); text goes to standard output")
    parser.add_argument("--count", type=int, default=64, help="images in the grid")
    parser.add_argument("--prompt", default="\n", help="what a text begins with")
    parser.add_argument("--length", type=int, default=TEXT_SAMPLE_BYTES, help="bytes or tokens of text")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    if args.out:
        require_file(parser, "--out", args.out)

    model = load_model(args.model, args.device, args.adapter)
    if model.config.modality.type == "image":
        if not args.out:
            parser.error("--out is needed for images")
        images = sample_images(model, args.count, args.seed, args.temperature)
        write_png(args.out, image_grid(images))
    elif (tokenizer := read_tokenizer(args.model)) is not None:
        text = sample_tokens(model, tokenizer, args.prompt, args.length, args.seed, args.temperature)
        sys.stdout.buffer.write(text + b"\n")
    else:
        text = sample_text(model, args.prompt.encode(), args.length, args.seed, args.temperature)
        sys.stdout.buffer.write(text + b"\n")


if __name__ == "__main__":
    main()
