# SPDX-License-Identifier: Apache-2.0
"""Images (IDX) and byte text as training batches.

Order is a pure function of (seed, epoch), so a run resumes with nothing but its step number. All
data lie on the device as one tensor, and batches are gathered there.
"""

import gzip
import math
import os
import struct
import zlib

import numpy as np
import torch

# A training window of text starts at position 0 with this probability, else anywhere below
# MAX_OFFSET, so that the model has met the positions of long sequences.
AT_START = 0.25
MAX_OFFSET = 65536


def read_idx(path):
    """The array of an IDX file of unsigned bytes, gzipped or not."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        zero, dtype, rank = struct.unpack_from(">HBB", data)
        if zero != 0 or dtype != 8:
            raise ValueError("not an IDX file of unsigned bytes")
        shape = struct.unpack_from(f">{rank}I", data, 4)
    except (ValueError, EOFError, OSError, zlib.error, struct.error) as error:
        raise ValueError(f"{path}: {error}") from error
    array = np.frombuffer(data, np.uint8, offset=4 + 4 * rank)
    if array.size != math.prod(shape):
        raise ValueError(f"{path}: {array.size} bytes for shape {list(shape)}")
    return array.reshape(shape)


def read_images(path, limit=None):
    """Images of an IDX file as one row of pixels each: uint8 [count, height * width]."""
    images = read_idx(path)[:limit]
    return torch.from_numpy(images.reshape(len(images), -1).copy())


def read_labels(path, limit=None):
    """Labels of an IDX file: int64 [count]."""
    labels = read_idx(path)
    if labels.ndim != 1:
        raise ValueError(f"{path}: {labels.ndim} dimensions, expected 1 (labels)")
    return torch.from_numpy(labels[:limit].astype(np.int64))


def _find(directory, kind, what, rank):
    names = sorted(n for n in os.listdir(directory)
                   if n.startswith(kind) and what in n and rank in n)
    if not names:
        raise FileNotFoundError(f"{directory}: no {kind}*{what}*{rank}* file")
    return os.path.join(directory, names[0])


def find_images(directory, kind):
    """The IDX file of `kind` ("train" or "t10k") images in an MNIST directory."""
    return _find(directory, kind, "images", "idx3")


def find_labels(directory, kind):
    """The IDX file of their labels."""
    return _find(directory, kind, "labels", "idx1")


def read_text(path):
    """Bytes of a file: uint8 [count]."""
    return torch.from_numpy(np.fromfile(path, np.uint8))


def split_text(data):
    """(training, validation): the first 90 % and the last 10 %."""
    border = len(data) * 9 // 10
    return data[:border], data[border:]


def _generator(seed, epoch):
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


class _Batches:
    """Shared walk through epochs; a subclass plans one epoch and gathers one batch of it."""

    def __init__(self, batch_size, seed):
        self.batch_size, self.seed = batch_size, seed
        self._epoch, self._plan = None, None

    def batch(self, index, augment=True):
        """Batch `index` of the whole run: (inputs [B, N], targets [B, N], offsets [B] or None)."""
        epoch, i = divmod(index, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._plan_epoch(_generator(self.seed, epoch))
        rows = slice(i * self.batch_size, (i + 1) * self.batch_size)
        return self._gather([part[rows] for part in self._plan], augment)


class ImageBatches(_Batches):
    """Random order without repetition; the last partial batch of an epoch is dropped.

    shift_augment: probability that an image is moved by -1, 0 or 1 pixels along each axis.
    """

    def __init__(self, images, height, width, batch_size, seed, device, shift_augment=0.0):
        super().__init__(batch_size, seed)
        self.images = images.to(device)  # uint8 [count, pixels]
        self.device, self.height, self.width = device, height, width
        self.shift_augment = shift_augment
        self.batches_per_epoch = len(images) // batch_size
        if self.batches_per_epoch == 0:
            raise ValueError(f"{len(images)} training images do not fill a batch of {batch_size}")

    def _plan_epoch(self, generator):
        n = len(self.images)
        order = torch.randperm(n, generator=generator)
        shifts = torch.randint(-1, 2, (n, 2), generator=generator)
        moved = torch.rand(n, 1, generator=generator) < self.shift_augment
        return [order.to(self.device), (shifts * moved).to(self.device)]

    def _gather(self, plan, augment):
        rows, shifts = plan
        images = self.images[rows]
        if augment and self.shift_augment > 0:
            images = shift_images(images, shifts, self.height, self.width)
        images = images.long()
        return images[:, :-1].contiguous(), images[:, 1:].contiguous(), None


def shift_images(images, shifts, height, width):
    """Moves each image by its (rows, columns), filling with 0: uint8 [B, P], int64 [B, 2]."""
    y = torch.arange(height, device=images.device) - shifts[:, :1]  # [B, height]
    x = torch.arange(width, device=images.device) - shifts[:, 1:]
    inside = (((y >= 0) & (y < height)).unsqueeze(2) & ((x >= 0) & (x < width)).unsqueeze(1))
    source = y.clamp(0, height - 1).unsqueeze(2) * width + x.clamp(0, width - 1).unsqueeze(1)
    return images.gather(1, source.flatten(1)) * inside.flatten(1)


# The probability that a row with a carried state begins a text at a window: it must know both.
RESTART = 1 / 16


def token_batches(ids, recipe, device):
    """Batches of a text of tokens, int64 [count]: windows that follow each other, or random ones."""
    kind = CarriedBatches if recipe.carry else TokenBatches
    return kind(ids, recipe.context, recipe.batch_size, recipe.seed, device)


class CarriedBatches(_Batches):
    """Each row reads its own part of the text, window by window, from a place that changes with the epoch.

    The third part of a batch says which rows begin a text there: all in the first batch of an epoch,
    then a few. The others continue from the batch before.
    """

    def __init__(self, ids, context, batch_size, seed, device):
        super().__init__(batch_size, seed)
        self.part = len(ids) // batch_size  # tokens of a row
        if self.part <= context:
            raise ValueError(f"{len(ids)} tokens of text do not fill {batch_size} windows of {context}")
        self.ids, self.context, self.device = ids.to(device), context, device
        self.batches_per_epoch = (self.part - 1) // context

    def _plan_epoch(self, generator):
        n = self.batches_per_epoch
        first = torch.randint(len(self.ids), (1,), generator=generator)
        starts = first + (torch.arange(n) * self.context).unsqueeze(1) + torch.arange(self.batch_size) * self.part
        begins = torch.rand(n, self.batch_size, generator=generator) < RESTART
        begins[0] = True
        return [starts.flatten().to(self.device), begins.flatten().to(self.device)]

    def _gather(self, plan, augment):
        starts, begins = plan
        window = torch.arange(self.context + 1, device=self.device)
        tokens = self.ids[(starts.unsqueeze(1) + window) % len(self.ids)]  # the end is followed by the start
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), begins


class TextBatches(_Batches):
    """Random windows of `context` bytes; an epoch has as many as fit side by side."""

    def __init__(self, data, context, batch_size, seed, device, random_offsets=True):
        super().__init__(batch_size, seed)
        if len(data) <= context:
            raise ValueError(f"{len(data)} bytes of text do not fill a window of {context}")
        self.data, self.context, self.device = data.to(device), context, device
        self.random_offsets = random_offsets
        self.batches_per_epoch = max(1, len(data) // context // batch_size)

    def _plan_epoch(self, generator):
        n = self.batches_per_epoch * self.batch_size
        starts = torch.randint(len(self.data) - self.context, (n,), generator=generator)
        offsets = torch.randint(MAX_OFFSET, (n,), generator=generator)
        offsets = offsets * (torch.rand(n, generator=generator) >= AT_START)
        if not self.random_offsets:
            offsets = torch.zeros_like(offsets)
        return [starts.to(self.device), offsets.to(self.device)]

    def _gather(self, plan, augment):
        starts, offsets = plan
        window = torch.arange(self.context + 1, device=self.device)
        tokens = self.data[starts.unsqueeze(1) + window].long()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), offsets


class TokenBatches(TextBatches):
    """Random windows of tokens that each begin a text."""

    def _gather(self, plan, augment):
        inputs, targets, _ = super()._gather(plan, augment)
        return inputs, targets, None
