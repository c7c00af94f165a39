# SPDX-License-Identifier: Apache-2.0
"""The snippets of docs/python.md run as they stand, against a model that says what a script has.

The package openai is used where it is installed (Debian 13: python3-openai), else a stand-in that sends the same
requests.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

from chat_test import make_model
from serving import PATIENCE, REPOSITORY, Server, eventually

STAND_IN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_in")
# The output of the snippet of each section.
PRINTED = {
    "With openai": r"Good morrow, friend\. 3\n",
    "Streaming": r"Two and three\.5",
    "Tools": r"It is sunny in Bern\.\n",
    "Structured output": r"134000\n",
    "Responses": r"Good morrow, friend\.\nGood night, then\.\n5",
    "With lintel": r"Good morrow, friend\. ChatFinishReason\.STOP 3\nGood night, then\.\n",
    "Streaming with lintel": r"Two and three\.5Usage\(prompt_tokens=\d+, .*\)\nGood morrow, friend\.",
    "Functions as tools": r"It is sunny in Bern\.\n",
    "Dataclasses as answers": r"Bern 134001\n",
    "Conversations that the server keeps": (
        r"Good night, then\.Two and three\. 5 completed\nGood morrow, friend\.\d+ user\nGood night, then\.\n"),
    "Errors": r"sampling\.temperature -1 is not from 0 to 1000\n",
    "Sessions": r"[\s\S]+ \d+\n[\s\S]*",
}


def blocks():
    """Section, language and text of each block of the page."""
    with open(os.path.join(REPOSITORY, "docs", "python.md"), encoding="utf-8") as file:
        parts = re.findall(r"^#+ ([^\n]*)$|^```(\w*)\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    section = ""
    for heading, language, text in parts:
        section = heading or section
        if not heading:
            yield section, language, text


class PythonPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.server = Server([make_model(directory)], ["--http-listen", "127.0.0.1:0"])

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"lintel-server ended with {status}:\n{cls.server.log}"

    def test_each_snippet_prints_what_its_section_says(self):
        http = eventually(lambda: re.search(r"HTTP on http://(\S+)", self.server.log), "HTTP")[1]
        path = [os.environ["PYTHONPATH"]]
        if importlib.util.find_spec("openai") is None:
            print("the package openai is not installed: a stand-in sends its requests", file=sys.stderr)
            path.append(STAND_IN)
        ran = []
        for section, language, text in blocks():
            if language != "python":
                self.assertEqual(text, "lintel-server --model qwen35=Qwen3.5-4B\n")
                continue
            with self.subTest(section):
                ran.append(section)
                program = text.replace("127.0.0.1:50051", self.server.address).replace("127.0.0.1:8080", http)
                done = subprocess.run([sys.executable, "-W", "error::ResourceWarning", "-c", program], text=True,
                                      capture_output=True, timeout=PATIENCE,
                                      env={**os.environ, "PYTHONPATH": os.pathsep.join(path)})
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, f"^{PRINTED[section]}$")
        self.assertEqual(ran, list(PRINTED))


if __name__ == "__main__":
    unittest.main()
