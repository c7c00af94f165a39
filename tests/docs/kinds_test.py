# SPDX-License-Identifier: Apache-2.0
"""The pages and the training package describe the kinds of attention as these are declared.

Needs LINTEL_CONVERT, whose --kinds prints the declarations. With --write, writes it into the pages instead.
"""

import json
import os
import re
import subprocess
import sys
import unittest

from pages import ROOT, read

TRAINING = "training/lintel_training/kinds.json"
END = "<!-- end -->"


def declared():
    return subprocess.run([os.environ["LINTEL_CONVERT"], "--kinds"], check=True, capture_output=True,
                          text=True).stdout


def table(head, rows):
    lines = [head, ["---"] * len(head)] + rows
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(text):
    return f"`{text}`"


def left_out(key):
    if "initial" not in key:
        return "required"
    return f"null: {key['null_means']}" if key["initial"] is None else code(json.dumps(key["initial"]))


def by_types(kinds, rows):
    """Rows that several kinds have, once, with all of these kinds in the first cell."""
    types = {}
    for kind, *cells in rows:
        types.setdefault(tuple(cells), []).append(kind)
    return [["all" if len(of) == len(kinds) else ", ".join(map(code, of)), *cells]
            for cells, of in types.items()]


def keys_table(kinds):
    rows = [[kind["type"], code(key["name"]), key["doc"], key["range"], left_out(key)]
            for kind in kinds for key in kind["keys"]]
    return table(["`type`", "key", "what", "values", "left out"], by_types(kinds, rows))


def state_table(kinds):
    return table(["type", "what it is", "state of a session", "cost of a token at position t"],
                 [[code(k["type"]), k["doc"], k["state"], k["cost"]] for k in kinds])


def tensors_table(kinds):
    """A table of what each kind has beside out_projection: its tensors with any keys, the sizes in letters."""
    rows = []
    for kind in kinds:
        sample = kind["samples"][0]
        for p in sample["projections"]:
            ends = "weight,bias" if p["has_bias"] else "weight"
            rows.append([kind["type"], code(f"{p['name']}.{{{ends}}}"),
                         "read" if p["is_read"] else "stored, not read"])
        tensors = {t["name"]: t for some in kind["samples"] for t in some["tensors"]}
        rows += [[kind["type"], code("inner_attention." + t["name"]),
                  t["shape_doc"] + (", learned" if t["is_learned"] else "")] for t in tensors.values()]
    return table(["`type`", "tensor", ""], by_types(kinds, rows))


# A page, what stands after "<!-- " in the line before the part, and what makes it.
PARTS = [("docs/attention.md", "kinds of attention", state_table),
         ("docs/model_format.md", "keys of attention", keys_table),
         ("docs/model_format.md", "tensors of attention", tensors_table)]


def part_of(page, name):
    match = re.search(rf"<!-- {name} -->\n(.*?){END}", read(page), re.DOTALL)
    assert match, f"{page} has no part {name}"
    return match


class KindsTest(unittest.TestCase):
    def test_pages_show_the_declared_kinds(self):
        kinds = json.loads(declared())["kinds"]
        for page, name, make in PARTS:
            with self.subTest(page=page, part=name):
                self.assertEqual(part_of(page, name)[1], make(kinds),
                                 "tests/docs/kinds_test.py --write updates it")

    def test_training_reads_the_declared_kinds(self):
        self.assertEqual(read(TRAINING), declared(), "tests/docs/kinds_test.py --write updates it")


def write():
    text = declared()
    with open(os.path.join(ROOT, TRAINING), "w", encoding="utf-8") as file:
        file.write(text)
    for page, name, make in PARTS:
        begin, end = part_of(page, name).span(1)
        changed = read(page)[:begin] + make(json.loads(text)["kinds"]) + read(page)[end:]
        with open(os.path.join(ROOT, page), "w", encoding="utf-8") as file:
            file.write(changed)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        unittest.main()
