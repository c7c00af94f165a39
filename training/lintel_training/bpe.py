# SPDX-License-Identifier: Apache-2.0
"""Byte-level byte-pair encoding: trained from a text, written as tokenizer.json, and used.

    python3 -m lintel_training.bpe --text FILE --vocab-size 1024 --out tokenizer.json

Text is split as GPT-2 does (words with the space before them, numbers, other characters, white space),
and merges stay within a piece. Ids 0 to 255 are the bytes, and each further id is a merge. Every text
has ids, and ids of any text give its bytes back.
"""

import argparse
import collections
import json
import re
import sys
import unicodedata

from .outputs import require_file
from .safetensors_io import write_atomically

NUM_BYTES = 256
MAX_VOCABULARY = 2**20  # the server's limit
# White space as Unicode has it; Python's \s also takes the separators U+001C to U+001F.
_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def byte_letters():
    """The character that stands for each byte in tokenizer.json: printable Latin-1 for itself, the others
    from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(NUM_BYTES) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters.update({byte: chr(0x100 + i) for i, byte in enumerate(others)})
    return letters


def _class(initial):
    """The characters of a general category such as L, as ranges for a regular expression."""
    ranges = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] == initial:
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(re.escape(chr(a)) + "-" + re.escape(chr(b)) for a, b in ranges)


_pattern = None


def split(text):
    """The pieces of a text, which joined are the text."""
    global _pattern
    if _pattern is None:  # a third of a second
        letter, number = _class("L"), _class("N")
        _pattern = re.compile(
            f"'(?:s|t|re|ve|m|ll|d)| ?[{letter}]+| ?[{number}]+| ?[^{_SPACE}{letter}{number}]+"
            f"|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+")
    return _pattern.findall(text)


class Tokenizer:
    """merges: pairs of ids; the i-th makes id 256 + i."""

    def __init__(self, merges):
        self.merges = list(merges)
        self._ranks = {pair: i for i, pair in enumerate(self.merges)}
        # Bytes by their characters, as GPT-2 has them.
        letters = byte_letters()
        self._byte_of = sorted(range(NUM_BYTES), key=lambda byte: letters[byte])
        self._id_of = {byte: i for i, byte in enumerate(self._byte_of)}
        self.tokens = [bytes([byte]) for byte in self._byte_of]
        for left, right in self.merges:
            self.tokens.append(self.tokens[left] + self.tokens[right])
        self._known = {}  # piece: its ids

    def __len__(self):
        return len(self.tokens)

    def bytes_as_ids(self, data):
        """One id for each byte."""
        return [self._id_of[byte] for byte in data]

    def encode(self, text):
        """The ids of a text."""
        ids = []
        for piece in split(text):
            known = self._known.get(piece)
            if known is None:
                known = self._known[piece] = self._encode_piece(piece)
            ids += known
        return ids

    def _encode_piece(self, piece):
        ids = self.bytes_as_ids(piece.encode())
        while len(ids) > 1:
            rank, i = min((self._ranks.get(pair, len(self.merges)), i) for i, pair in enumerate(zip(ids, ids[1:])))
            if rank == len(self.merges):
                break
            ids[i:i + 2] = [NUM_BYTES + rank]
        return ids

    def decode(self, ids):
        """The bytes of a text, which may end within a character."""
        return b"".join(self.tokens[i] for i in ids)

    def to_json(self):
        """tokenizer.json of Hugging Face."""
        letters = byte_letters()
        names = ["".join(letters[byte] for byte in token) for token in self.tokens]
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        data = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": level, "post_processor": level, "decoder": level,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                "ignore_merges": False, "vocab": {name: i for i, name in enumerate(names)},
                "merges": [[names[left], names[right]] for left, right in self.merges],
            },
        }
        return json.dumps(data, ensure_ascii=False, indent=1) + "\n"

    @staticmethod
    def from_json(text):
        """The inverse of to_json(); ValueError for any other kind of tokenizer."""
        data = json.loads(text)
        model = data.get("model") if isinstance(data, dict) else None
        if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("byte_fallback"):
            raise ValueError("no byte-level BPE tokenizer")
        pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        names, letters = model["vocab"], byte_letters()
        for i, (byte,) in enumerate(Tokenizer([]).tokens):
            if names.get(letters[byte]) != i:
                raise ValueError(f"byte {byte} has id {names.get(letters[byte])}, expected {i}")
        for i, (left, right) in enumerate(pairs):
            if names.get(left + right) != NUM_BYTES + i:
                raise ValueError(f"merge {i} makes id {names.get(left + right)}, expected {NUM_BYTES + i}")
        return Tokenizer((names[left], names[right]) for left, right in pairs)


def train(text, vocab_size):
    """A Tokenizer of so many ids: each merge joins the pair that occurs most often in the text.

    Of pairs that occur equally often the one of lower ids comes first. ValueError when the text has too few pairs.
    """
    if not NUM_BYTES <= vocab_size <= MAX_VOCABULARY:
        raise ValueError(f"vocab_size: is {vocab_size}, must be from {NUM_BYTES} to {MAX_VOCABULARY}")
    plain = Tokenizer([])
    pieces = collections.Counter(split(text))
    words = [plain.bytes_as_ids(piece.encode()) for piece in pieces]
    counts = list(pieces.values())
    pairs, words_of = collections.Counter(), collections.defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += counts[i]
            words_of[pair].add(i)
    merges = []
    while NUM_BYTES + len(merges) < vocab_size:
        best = max(pairs, key=lambda pair: (pairs[pair], -pair[0], -pair[1]), default=None)
        if best is None or pairs[best] < 1:
            raise ValueError(f"vocab_size: {vocab_size}, but the text has pairs for {NUM_BYTES + len(merges)} only")
        new = NUM_BYTES + len(merges)
        merges.append(best)
        for i in words_of.pop(best):
            word = words[i]
            for pair in zip(word, word[1:]):
                pairs[pair] -= counts[i]
            joined = words[i] = _joined(word, best, new)
            for pair in zip(joined, joined[1:]):
                pairs[pair] += counts[i]
                words_of[pair].add(i)
        del pairs[best]
    return Tokenizer(merges)


def _joined(word, pair, new):
    """A word whose occurrences of a pair, from the left, are one id."""
    out, i = [], 0
    while i < len(word):
        if tuple(word[i:i + 2]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="file to train on")
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--out", required=True, help="tokenizer.json to write")
    args = parser.parse_args(argv)
    require_file(parser, "--out", args.out)
    with open(args.text, "rb") as file:
        text = file.read().decode(errors="replace")
    try:
        tokenizer = train(text, args.vocab_size)
    except ValueError as error:
        parser.error(str(error))
    write_atomically(args.out, tokenizer.to_json().encode())
    size = len(text.encode())
    print(f"{args.out}: {len(tokenizer)} ids, {size / max(1, len(tokenizer.encode(text))):.2f} bytes a token")


if __name__ == "__main__":
    main()
