#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes model/tokenizer/unicode_tables.inc: the classes of code points that tokenizers split by, and what NFC needs.

The classes are those of the Rust library tokenizers 0.22.2, whose regular expressions (Oniguruma) have Unicode 16;
tests/golden/tokenizers/unicode_classes.json lists them, found there one code point at a time. NFC is Unicode 9's, as
that library has it: what Python 3.11's unicodedata has, which is Unicode 14's, without U+11938 and without the
combining classes of marks that came later. Apart from these the two agree over all code points and pairs.
"""

import argparse
import json
import pathlib
import sys
import unicodedata

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CLASSES = REPOSITORY / "tests/golden/tokenizers/unicode_classes.json"
OUTPUT = REPOSITORY / "model/tokenizer/unicode_tables.inc"
UNICODE = "14.0.0"
UNKNOWN_TO_THE_LIBRARY = {0x11938}
# First and last of the marks of Unicode 10 to 14 that have a combining class there. The library leaves them in place.
MARKS_UNKNOWN_TO_THE_LIBRARY = [
    (0x7FD, 0x7FD), (0x898, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C), (0xEBA, 0xEBA),
    (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA), (0xA82C, 0xA82C), (0x10D24, 0x10D27), (0x10EAB, 0x10EAC),
    (0x10F46, 0x10F50), (0x10F82, 0x10F85), (0x11070, 0x11070), (0x1133B, 0x1133B), (0x1145E, 0x1145E),
    (0x11839, 0x1183A), (0x1193D, 0x1193E), (0x11943, 0x11943), (0x119E0, 0x119E0), (0x11A34, 0x11A34),
    (0x11A47, 0x11A47), (0x11A99, 0x11A99), (0x11D42, 0x11D42), (0x11D44, 0x11D45), (0x11D97, 0x11D97),
    (0x16FF0, 0x16FF1), (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF),
]
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)
# The second and third part of a syllable: they join what stands before them.
HANGUL_PARTS = [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]
COLUMNS = 100


def code_points() -> list[int]:
    """All but surrogates, and but for syllables, which are computed."""
    return [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c not in HANGUL_SYLLABLES]


def decompositions() -> list[tuple[int, int, int]]:
    """(code point, first, second) of each canonical decomposition, one step; second is 0 where there is none."""
    found = []
    for code in code_points():
        text = unicodedata.decomposition(chr(code))
        if not text or text.startswith("<") or code in UNKNOWN_TO_THE_LIBRARY:
            continue
        parts = [int(part, 16) for part in text.split()]
        found.append((code, parts[0], parts[1] if len(parts) == 2 else 0))
    return found


def compositions(pairs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(first, second, code point) of each pair that NFC joins."""
    return sorted((first, second, code) for code, first, second in pairs
                  if second and unicodedata.normalize("NFC", chr(code)) == chr(code))


def combining_classes() -> list[tuple[int, int]]:
    """(code point, class) of each mark that NFC may move."""
    unknown = {c for first, last in MARKS_UNKNOWN_TO_THE_LIBRARY for c in range(first, last + 1)}
    classes = [(c, unicodedata.combining(chr(c))) for c in code_points()]
    return [(c, value) for c, value in classes if value and c not in unknown]


def ranges(values: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(first, last, value) of neighbours with one value."""
    found: list[list[int]] = []
    for code, value in sorted(values):
        if found and found[-1][1] == code - 1 and found[-1][2] == value:
            found[-1][1] = code
        else:
            found.append([code, code, value])
    return [(first, last, value) for first, last, value in found]


def table(kind: str, name: str, rows: list[tuple[int, int, int]], comment: str) -> str:
    lines = [f"// {comment}", f"constexpr {kind} {name}[] = {{"]
    line = "   "
    for row in rows:
        cell = " {" + ",".join(str(part) for part in row) + "},"
        if len(line) + len(cell) > COLUMNS:
            lines.append(line)
            line = "   "
        line += cell
    return "\n".join([*lines, line, "};", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file differs")
    arguments = parser.parse_args()
    if unicodedata.unidata_version != UNICODE:
        sys.exit(f"unicode_tables.py: this Python has Unicode {unicodedata.unidata_version}, {UNICODE} is needed")
    listed = json.loads(CLASSES.read_text(encoding="utf-8"))["ranges"]
    bits = {"L": 1, "N": 2, "M": 4, "s": 8}
    classes = sorted((first, last, bits[name]) for name in bits for first, last in listed[name])
    pairs = decompositions()
    joined = compositions(pairs)
    combining = combining_classes()
    unstable = {c for c, _ in combining} | {second for _, second, _ in joined} | set(HANGUL_PARTS)
    unstable |= {c for c, _, _ in pairs if unicodedata.normalize("NFC", chr(c)) != chr(c)}
    text = "\n".join([
        "// SPDX-License-Identifier: Apache-2.0",
        "// Written by scripts/unicode_tables.py, which says where the tables are from.",
        "",
        table("CodePointRange", "kClassRanges", classes,
              "First, last, class: 1 letter, 2 number, 4 mark, 8 white space."),
        table("CodePointRange", "kCombiningRanges", ranges(combining), "First, last, combining class."),
        table("CodePointRange", "kUnstableRanges", ranges([(c, 1) for c in unstable]),
              "First, last, 1: what NFC changes, moves or joins to what stands before."),
        table("Decomposition", "kDecompositions", pairs, "Code point, its two parts; 0: there is no second."),
        table("Composition", "kCompositions", joined, "Two parts, the code point that NFC makes of them."),
    ])
    if arguments.check:
        return 0 if OUTPUT.read_text(encoding="utf-8") == text else 1
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
