# SPDX-License-Identifier: Apache-2.0
"""Every version of the project is that of CMakeLists.txt; released ones are in the changelog."""

import json
import os
import re
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


VERSION = re.search(r"^project\(lintel VERSION (\d+\.\d+\.\d+)", read("CMakeLists.txt"), re.MULTILINE)[1]


class VersionTest(unittest.TestCase):
    def test_the_clients_have_it(self):
        self.assertIn(f'__version__ = "{VERSION}"', read("client", "python", "lintel", "_version.py"))
        self.assertEqual(json.loads(read("client", "node", "package.json"))["version"], VERSION)
        lock = json.loads(read("client", "node", "package-lock.json"))
        self.assertEqual(lock["version"], VERSION)
        self.assertEqual(lock["packages"][""]["version"], VERSION)

    def test_images_are_named_by_it(self):
        self.assertIn(f"ARG VERSION={VERSION}\n", read("docker", "Dockerfile"))
        named = 0
        for folder, _, files in os.walk(os.path.join(ROOT, "docker")):
            for name in files:
                tags = re.findall(r"\blintel:(\d+\.\d+\.\d+)", read(folder, name))
                self.assertEqual(set(tags) | {VERSION}, {VERSION}, name)
                named += len(tags)
        tags = re.findall(r"\blintel[:_](\d+\.\d+\.\d+)", read("docs", "operations.md"))
        self.assertTrue(tags)
        self.assertEqual(set(tags) | {VERSION}, {VERSION})
        self.assertGreater(named + len(tags), 3)

    def test_the_changelog_begins_with_it(self):
        released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", read("CHANGELOG.md"),
                              re.MULTILINE)
        self.assertEqual(released[0][0], VERSION)
        self.assertEqual([day for _, day in released], sorted((day for _, day in released), reverse=True))
        links = re.findall(r"^\[(\d+\.\d+\.\d+)\]: ", read("CHANGELOG.md"), re.MULTILINE)
        self.assertEqual(links, [version for version, _ in released])
        self.assertIn(f"lintel_{VERSION}_", read("CHANGELOG.md"))

    def test_security_names_it_as_supported(self):
        minor = ".".join(VERSION.split(".")[:2])
        self.assertRegex(read("SECURITY.md"), rf"\| {re.escape(minor)} \| yes \|")


if __name__ == "__main__":
    unittest.main()
