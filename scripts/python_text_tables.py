#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes server/chat/template/python_text_tables.inc: what Python's str knows of code points.

Python 3.11 (Unicode 14) is the reference: jinja2 under it made the vectors of tests/golden/chat.
Usage: python3.11 scripts/python_text_tables.py > server/chat/template/python_text_tables.inc
"""
import sys
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def ranges(matches):
    """[first, last] of the code points that match."""
    found = []
    for code in CODE_POINTS:
        if not matches(chr(code)):
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def write_rows(kind, name, comment, rows):
    print(f"\n// {comment}\nconstexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        item = " {" + ",".join(str(n) for n in row) + "},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")


def mapping_ranges(change):
    """[first, last, step, delta] of single code points that become single others."""
    found = []
    for code in CODE_POINTS:
        mapped = change(chr(code))
        if len(mapped) != 1 or ord(mapped) == code:
            continue
        delta = ord(mapped) - code
        if found and found[-1][3] == delta:
            first, last, step, _ = found[-1]
            if code - last in (1, 2) and (first == last or code - last == step):
                found[-1][1], found[-1][2] = code, code - last
                continue
        found.append([code, code, 1, delta])
    return found


def expansions(change):
    """A code point that becomes several: up to three."""
    rows = []
    for code in CODE_POINTS:
        mapped = change(chr(code))
        if len(mapped) > 1:
            rows.append([code] + [ord(c) for c in mapped] + [0] * (3 - len(mapped)))
    return rows


def is_cased(c):
    # title() continues a word after such a letter.
    return (c + "a").title()[-1] == "a"


def is_ignored(c):
    # A capital sigma ends a word in its final form after "A" and such characters, not after them alone.
    return ("A" + c + "\u03a3").lower()[-1] == "\u03c2" and ("." + c + "\u03a3").lower()[-1] != "\u03c2"


def main():
    assert sys.version_info[:2] == (3, 11), "Python 3.11 is the reference"
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Written by scripts/python_text_tables.py.")
    for name, comment, matches in (
        ("kUnprintable", "str.isprintable is false", lambda c: not c.isprintable()),
        ("kAlphabetic", "str.isalpha", str.isalpha),
        ("kDigits", "str.isdigit", str.isdigit),
        ("kNumeric", "str.isnumeric", str.isnumeric),
        ("kUppercase", "str.isupper", str.isupper),
        ("kLowercase", "str.islower", str.islower),
        ("kCased", "Cased", is_cased),
        ("kCaseIgnorable", "Case_Ignorable", is_ignored),
    ):
        write_rows("CodeRange", name, comment, ranges(matches))
    for name, change in (("Upper", str.upper), ("Lower", str.lower), ("Title", str.title)):
        write_rows("CaseRange", f"k{name}Mappings", f"str.{name.lower()}: first, last, step, difference",
                   mapping_ranges(change))
        write_rows("CaseExpansion", f"k{name}Expansions", "The same of those that become several",
                   expansions(change))


if __name__ == "__main__":
    main()
