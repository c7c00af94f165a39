#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds words of a private language in texts, code and commit subjects. docs/style.md says what to write instead."""

import argparse
import pathlib
import re
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
WORDS = re.compile(
    r"\b(told|tells|whoever|whatever|whichever|somebody|nobody|anybody|everybody|anew|begun|bears? on|"
    r"go(?:es|ing)? on|went on|gives? back|given back|gave back)\b", re.IGNORECASE)
TITLE = re.compile(r"""(?:TEST_CASE(?:_METHOD)?\(\s*(?:\w+,\s*)?"|\bit\(')((?:what|who|whose|nobody)\b[^"']*)""", re.IGNORECASE)
SUFFIXES = {".md", ".h", ".cpp", ".inc", ".proto", ".py", ".js", ".mjs", ".ts", ".html", ".sh", ".txt", ".cmake",
            ".yaml", ".yml", ".toml", ".json"}
# The words themselves, texts of others, data.
SKIPPED = re.compile(r"^(docs/style\.md|scripts/language\.py|weights/|tests/golden/.*\.json|tests/fuzz/corpus/|"
                     r".*package-lock\.json|tests/data/)")
SUBJECT = 72


def git(*arguments: str) -> list[str]:
    """The lines that git prints."""
    result = subprocess.run(["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return result.stdout.splitlines()


def in_files(paths: list[str]) -> list[str]:
    """Findings in the tracked files under paths, a line each."""
    found = []
    for name in git("ls-files", "--", *paths):
        if pathlib.Path(name).suffix not in SUFFIXES or SKIPPED.match(name):
            continue
        text = (REPOSITORY / name).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            for match in WORDS.finditer(line):
                found.append(f"{name}:{number}: {match[0]!r}: {line.strip()[:120]}")
        for match in TITLE.finditer(text):
            number = text.count("\n", 0, match.start(1)) + 1
            found.append(f"{name}:{number}: a title begins with its subject: {match[1][:100]}")
    return found


def in_commits() -> list[str]:
    """Findings in the subjects of commits since this check exists."""
    first = git("log", "--diff-filter=A", "--format=%H", "--", "scripts/language.py")
    if not first:
        return []
    found = []
    for line in git("log", "--no-merges", "--format=%h %s", f"{first[-1]}..HEAD"):
        commit, subject = line.split(" ", 1)
        if len(subject) > SUBJECT:
            found.append(f"{commit}: {len(subject)} characters, at most {SUBJECT}: {subject}")
        elif not re.match(r"[\w./ -]+: \S", subject):
            found.append(f"{commit}: not 'area: imperative subject': {subject}")
        elif WORDS.search(subject):
            found.append(f"{commit}: {WORDS.search(subject)[0]!r}: {subject}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Exit status: 0, or 1 when something was found.")
    parser.add_argument("paths", nargs="*", default=["."], metavar="PATH", help="files or folders (default: all)")
    parser.add_argument("--commits", action="store_true", help="the subjects of commits alone")
    arguments = parser.parse_args()
    found = in_commits() if arguments.commits else in_files(arguments.paths)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
