# SPDX-License-Identifier: Apache-2.0
"""Every flag that a page names is one: of the program in a command, and somewhere of ours in the prose.

Needs LINTEL_SERVER, LINTEL_CLI, LINTEL_CONVERT and LINTEL_BENCH.
"""

import os
import re
import shlex
import subprocess
import unittest

from pages import ROOT, pages, read, spans, split

PROGRAMS = {"lintel-server": "LINTEL_SERVER", "lintel": "LINTEL_CLI", "lintel-convert": "LINTEL_CONVERT",
            "lintel-bench": "LINTEL_BENCH"}
# Flags of other programs, where the prose speaks of them.
FOREIGN = {"--read-only", "--cap-drop"}


def flags_of(program):
    """The flags of each command of a program, by the command's words, as its completion has them."""
    shown = subprocess.run([os.environ[PROGRAMS[program]], "--completion", "bash"], check=True,
                           capture_output=True, text=True).stdout
    found = re.findall(r"^ *'([^']*)'\) commands='[^']*' flags='([^']*)'", shown, re.MULTILINE)
    return {tuple(path.split()): set(flags.split()) for path, flags in found}


def commands(page):
    """The command lines that begin with one of our programs, in blocks and between backticks."""
    prose, code = split(read(page))
    lines = re.sub(r"\\\n", " ", code).splitlines() + spans(prose)
    for line in (part for whole in lines for part in re.split(r"\s(?:\||&&)\s|;\s|\$\(", whole)):
        try:
            words = shlex.split(re.sub(r"(^|\s)#.*|\)$|\.\.\.", " ", line))
        except ValueError:  # no command of a shell
            continue
        while words and re.match(r"\w+=", words[0]):  # of the environment
            words = words[1:]
        if words and os.path.basename(words[0]) in PROGRAMS:
            yield [os.path.basename(words[0])] + words[1:]


class FlagsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.flags = {program: flags_of(program) for program in PROGRAMS}

    def test_every_flag_of_a_command_is_that_commands(self):
        seen = 0
        for page in pages():
            for program, *words in commands(page):
                path = ()
                for word in words:
                    flag = word.partition("=")[0]
                    with self.subTest(page=page, command=" ".join((program, *words))):
                        if path + (word,) in self.flags[program]:
                            path += (word,)
                        elif re.fullmatch(r"--[a-z][\w-]*", flag):
                            seen += 1
                            self.assertIn(flag, self.flags[program][path])
        self.assertGreater(seen, 100)

    def test_every_flag_of_the_prose_is_of_one_of_our_programs(self):
        known = set(FOREIGN)
        for program in self.flags.values():
            known.update(*program.values())
        for folder, endings in (("scripts", ".sh"), ("client/node", ".mjs")):
            for where, folders, files in os.walk(os.path.join(ROOT, folder)):
                folders[:] = [name for name in folders if name != "node_modules"]
                for name in files:
                    if name.endswith(endings):
                        known.update(re.findall(r"--[a-z][\w-]*", read(os.path.join(where, name))))
        seen = 0
        for page in pages():
            if page.startswith("training") or page == "CHANGELOG.md":  # Python's own, and what was
                continue
            for span in spans(split(read(page))[0]):
                if re.match(r"--[a-z]", span):
                    with self.subTest(page=page, span=span):
                        seen += 1
                        self.assertEqual(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", span)) - known, set())
        self.assertGreater(seen, 100)


if __name__ == "__main__":
    unittest.main()
