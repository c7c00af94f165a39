# SPDX-License-Identifier: Apache-2.0
"""Targets of the pages' links exist."""

import os
import re
import unittest

from pages import ROOT, anchors, left_out, links, pages, read, spans, split

# Links to versions leave the repository for the site that hosts it.
SITE = re.compile(r"(\.\./){2,}(compare|releases)/")
PATH = re.compile(r"(?:bench|client|cmake|convert|describe|docker|docs|model|packaging|proto|scripts|server|tests|"
                  r"training|weights)/[\w./-]*")


class LinksTest(unittest.TestCase):
    def test_every_link_and_anchor_is_there(self):
        followed = 0
        for page in pages():
            for link in links(page):
                if SITE.match(link):
                    continue
                path, _, anchor = link.partition("#")
                target = page if not path else os.path.normpath(os.path.join(os.path.dirname(page), path))
                if left_out(target):
                    continue
                with self.subTest(page=page, link=link):
                    followed += 1
                    self.assertFalse(target.startswith(".."), "leaves the repository")
                    self.assertTrue(os.path.exists(os.path.join(ROOT, target)), "is not there")
                    if anchor:
                        self.assertIn(anchor, anchors(target), "has no such heading")
        self.assertGreater(followed, 150)  # the pattern finds them

    def test_every_path_that_a_page_names_is_there(self):
        named = 0
        for page in pages():
            # The changelog is about the past; models' cards about what was run.
            if page == "CHANGELOG.md" or page.startswith("weights" + os.sep):
                continue
            for span in spans(split(read(page))[0]):
                if not PATH.fullmatch(span) or "NAME" in span or left_out(os.path.normpath(span)):
                    continue
                with self.subTest(page=page, path=span):
                    named += 1
                    near = os.path.join(ROOT, os.path.dirname(page), span)
                    self.assertTrue(os.path.exists(os.path.join(ROOT, span)) or os.path.exists(near))
        self.assertGreater(named, 60)

    def test_every_class_and_function_of_the_architecture_is_in_the_code(self):
        words = set()
        for house in ("model", "server"):
            for folder, _, files in os.walk(os.path.join(ROOT, house)):
                for name in files:
                    if name.endswith((".h", ".cpp")):
                        words.update(re.findall(r"\w+", read(os.path.join(folder, name))))
        named = 0
        for span in spans(split(read("docs/architecture.md"))[0]):
            if re.fullmatch(r"[A-Z]\w*[a-z]\w*(::\w+)*|[a-z]+(_[a-z]+)+", span):
                named += 1
                self.assertEqual(set(span.split("::")) - words, set(), span)
        self.assertGreater(named, 60)


if __name__ == "__main__":
    unittest.main()
