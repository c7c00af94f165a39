# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a model directory, and texts in its tokens."""

import os

import torch

from . import bpe

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


def read_tokenizer(directory):
    """The tokenizer of a model directory; None where there is none."""
    path = os.path.join(directory, TOKENIZER)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        try:
            return bpe.Tokenizer.from_json(file.read())
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error


class EncodedText:
    """The tokens of a text, int64 [count], and how many bytes each has."""

    def __init__(self, ids, sizes):
        self.ids, self.sizes = ids, sizes

    @property
    def scored_bytes(self):
        """The first token is given."""
        return int(self.sizes[1:].sum())


def encoded(tokenizer, text):
    """An EncodedText of bytes of UTF-8."""
    ids = tokenizer.encode(text.decode(errors="replace"))
    return EncodedText(torch.tensor(ids, dtype=torch.int64),
                       torch.tensor([len(tokenizer.tokens[i]) for i in ids], dtype=torch.int64))


def as_bytes(data):
    """An EncodedText for a model whose tokens are bytes: uint8 [count]."""
    return EncodedText(data.long(), torch.ones(len(data), dtype=torch.int64))
