# SPDX-License-Identifier: Apache-2.0
"""The project's pages: every .md file, its headings, links and commands."""

import functools
import os
import re

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
NOT_OURS = {".git", "build", "node_modules", "__pycache__"}


def pages():
    """The paths of all pages, from the root."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_OURS]
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in files
                  if name.endswith(".md")]
    return sorted(found)


def read(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return file.read()


def left_out(path):
    """Returns whether the copy that the image's tests run in has been made without this path."""
    with open(os.path.join(ROOT, ".dockerignore"), encoding="utf-8") as file:
        ignored = file.read().split()
    top = path.split(os.sep)[0]
    return top in ignored and not os.path.exists(os.path.join(ROOT, top))


def split(text):
    """A page as its prose and the code of its fenced blocks, which start in any column."""
    prose, code, fence = [], [], None
    for line in text.splitlines():
        mark = re.match(r"\s*(```+)", line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None and line.strip() == fence:
            fence = None
        else:
            (prose if fence is None else code).append(line)
    return "\n".join(prose), "\n".join(code)


def spans(prose):
    """Texts between backticks, line ends as spaces."""
    return [span.replace("\n", " ") for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


@functools.lru_cache(maxsize=None)
def anchors(page):
    """Anchors that a link to this page may have behind its #, as GitHub makes them of the headings."""
    found, seen = set(), {}
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", split(read(page))[0], re.MULTILINE):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def links(page):
    """The targets of a page's links and pictures that are no addresses."""
    prose = re.sub(r"(?<!`)`[^`]+`(?!`)", "`code`", split(read(page))[0])
    targets = re.findall(r"\]\(<?([^()\s>]+)>?(?: \"[^\"]*\")?\)", prose)
    targets += re.findall(r"^\[[^\]]+\]: +(\S+)", prose, re.MULTILINE)
    targets += re.findall(r"<(?:a|img)[^>]* (?:href|src)=\"([^\"]+)\"", prose)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]
