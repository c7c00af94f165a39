# SPDX-License-Identifier: Apache-2.0
"""Text as tokens of a vocabulary that is trained from it."""

import hashlib
import os

from . import bpe, data
from .checks import ConfigError
from .evaluate import bytes_of_windows, text_nats, text_windows, token_nats
from .sample import sample_tokens
from .vocabulary import TOKENIZER, TOKENIZER_CONFIG, encoded

# The file that transformers needs to load tokenizer.json by itself.
_CLASS = b'{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}\n'


class TokenTask:
    """A file: its first 90 % for the tokenizer and training, the last 10 % for validation."""

    unit = "nats/byte"

    def __init__(self, config, recipe, device, path):
        with open(path, "rb") as file:
            raw = file.read()
        parts = data.split_text(raw)
        train = parts[0][:recipe.limit_train]
        try:
            self.tokenizer = bpe.train(train.decode(errors="replace"), config.vocab_size)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error
        train_text = encoded(self.tokenizer, train)
        self.batches = data.token_batches(train_text.ids, recipe, device)
        self.context = recipe.context
        self.valid = encoded(self.tokenizer, parts[1])
        self.scale = len(train_text.ids) / int(train_text.sizes.sum())  # from nats a token
        self.facts = {
            "train": {"file": os.path.basename(path), "sha256": hashlib.sha256(raw).hexdigest(),
                      "bytes": len(train), "tokens": len(train_text.ids)},
            "validation": {"bytes": len(parts[1]), "tokens": len(self.valid.ids),
                           "taken from": "the end of the file"}}
        # Beside the model in its directory.
        self.files = {TOKENIZER: self.tokenizer.to_json().encode(), TOKENIZER_CONFIG: _CLASS}
        self.valid_items = len(text_windows(len(self.valid.ids), recipe.context))
        self.final_items = 3 * self.valid_items

    def validate(self, model, limit=None):
        """limit: windows."""
        if limit is None:
            return token_nats(model, self.valid, self.context)
        n = bytes_of_windows(limit, self.context)
        return text_nats(model, self.valid.ids[:n], self.context) * self.scale

    def test_score(self, model):
        """There is no third part: the figure is of the validation part."""
        return self.validate(model)

    def sample_text(self, model, length):
        """About `length` bytes that follow a line break."""
        return sample_tokens(model, self.tokenizer, "\n", round(length * self.scale))
