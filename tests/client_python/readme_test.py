# SPDX-License-Identifier: Apache-2.0
"""The snippets of the READMEs and of docs/sessions.md run, with a server where they say it is."""

import os
import re
import subprocess
import sys
import unittest

from serving import PATIENCE, REPOSITORY, ServedTest


class ReadmeTest(ServedTest):
    packaged = True

    def check(self, readme):
        with open(os.path.join(REPOSITORY, readme), encoding="utf-8") as file:
            blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.DOTALL | re.MULTILINE)
        self.assertTrue(blocks, f"{readme} has no Python")
        for block in blocks:
            with self.subTest(block):
                self.assertIn("127.0.0.1:50051", block)
                program = block.replace("127.0.0.1:50051", self.server.address)
                done = subprocess.run([sys.executable, "-W", "error", "-c", program],
                                      capture_output=True, text=True, timeout=PATIENCE)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout)
        self.assertEqual(self.client.list_sessions(), [])

    def test_the_repositorys(self):
        self.check("README.md")

    def test_the_packages(self):
        self.check("client/python/README.md")

    def test_the_page_of_sessions(self):
        self.check("docs/sessions.md")


if __name__ == "__main__":
    unittest.main()
