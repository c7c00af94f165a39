# SPDX-License-Identifier: Apache-2.0
"""The task of a run: its data, its unit of loss and its validation and test figures."""

import hashlib
import os

from . import data
from .attention import module_of
from .evaluate import bytes_of_windows, image_bits, text_nats, text_windows
from .losses import LN2
from .sample import sample_text
from .selection import Selection


def _file_facts(path):
    with open(path, "rb") as file:
        return {"file": os.path.basename(path), "sha256": hashlib.sha256(file.read()).hexdigest()}


class ImageTask:
    """MNIST-like images. Validation: the last `valid_count` of the training file; test: its own."""

    unit = "bits/dim"
    files = {}  # name: bytes, in addition to the model in its directory
    scale = 1 / LN2  # from nats

    def __init__(self, config, recipe, device, train_path, test_path, test_limit=None, labels=None):
        """labels: {"train", "t10k"} to IDX files of labels, where the recipe chooses by them."""
        m = config.modality
        images = data.read_images(train_path)
        if images.shape[1] != config.length:
            raise ValueError(f"{train_path}: images of {images.shape[1]} pixels, "
                             f"the model has {config.length}")
        if not 0 < recipe.valid_count < len(images):
            raise ValueError(f"valid_count: {recipe.valid_count} of {len(images)} images")
        # Chosen behind the split, so that what validates one choice trains no other.
        selection, labels = Selection(recipe.labels, recipe.image_filter), labels or {}
        chosen = selection.choose(images, labels.get("train"), m.height, m.width)
        train = images[:-recipe.valid_count][chosen[:-recipe.valid_count]][:recipe.limit_train]
        self.batches = data.ImageBatches(train, m.height, m.width, recipe.batch_size, recipe.seed,
                                         device, recipe.shift_augment)
        self.valid = images[-recipe.valid_count:][chosen[-recipe.valid_count:]].to(device)
        if not len(self.valid):
            raise ValueError(f"valid_count: none of {recipe.valid_count} images is chosen")
        self.test = None
        if test_path:
            test = data.read_images(test_path)
            chosen = selection.choose(test, labels.get("t10k"), m.height, m.width)
            self.test = test[chosen][:test_limit].to(device)
        self.eval_batch = min(module_of(a.type).Attention.eval_batch for a in config.attention)
        chosen = selection.facts()
        self.facts = {"train": dict(_file_facts(train_path), images=len(train), **chosen),
                      "validation": {"images": len(self.valid),
                                     "taken from": "the end of the training file", **chosen}}
        if test_path:
            self.facts["test"] = dict(_file_facts(test_path), images=len(self.test), **chosen)
        # Sequences that a whole evaluation at the end goes through (test twice: both dtypes).
        self.final_items = len(self.valid) + (2 * len(self.test) if test_path else 0)
        self.valid_items = len(self.valid)

    def validate(self, model, limit=None):
        return image_bits(model, self.valid[:limit], self.eval_batch).mean().item()

    def test_score(self, model):
        if self.test is None:
            return None
        return image_bits(model, self.test, self.eval_batch).mean().item()


class TextTask:
    """Bytes of a file: its first 90 % for training, the last 10 % for validation."""

    unit = "nats/byte"
    scale = 1.0
    files = {}

    def __init__(self, config, recipe, device, path):
        train, valid = data.split_text(data.read_text(path))
        train = train[:recipe.limit_train]
        self.batches = data.TextBatches(train, recipe.context, recipe.batch_size, recipe.seed,
                                        device, random_offsets=config.max_length == 0)
        self.context, self.valid = recipe.context, valid.to(device)
        self.facts = {"train": dict(_file_facts(path), bytes=len(train)),
                      "validation": {"bytes": len(valid), "taken from": "the end of the file"}}
        # Windows. The end goes three times through them: validation, and test_score in both dtypes.
        self.valid_items = len(text_windows(len(valid), recipe.context))
        self.final_items = 3 * self.valid_items

    def validate(self, model, limit=None):
        """limit: windows."""
        n = None if limit is None else bytes_of_windows(limit, self.context)
        return text_nats(model, self.valid[:n], self.context)

    def test_score(self, model):
        """There is no third part: the figure is of the validation part."""
        return self.validate(model)

    def sample_text(self, model, length):
        """A text that follows a line break."""
        return sample_text(model, b"\n", length)
