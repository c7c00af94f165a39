"""The commands of the pages on HTTP run, and answer in the shape that the page shows."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from pages import read

PAGES = ["docs/http_openai.md", "docs/http_kserve.md"]
ADDRESS = "http://127.0.0.1:8080"


def blocks(page):
    """Each command of a page, and the answer that follows it, if one does."""
    found = re.findall(r"```(\w+)\n(.*?)```", read(page), re.DOTALL)
    for (kind, text), following in zip(found, found[1:] + [("", "")]):
        if kind == "sh":
            yield text, json.loads(following[1]) if following[0] == "json" else None


def shape(value):
    """Names and kinds of values, without the values."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@unittest.skipUnless(shutil.which("curl"), "no curl")
class HttpTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        subprocess.run([os.environ["LINTEL_WRITE_TINY_MODELS"], cls.directory.name], check=True)
        log = os.path.join(cls.directory.name, "log")
        with open(log, "w") as errors:
            cls.server = subprocess.Popen(
                [os.environ["LINTEL_SERVER"], "--model", f"text={cls.directory.name}/bytes",
                 "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
                 "--session-store", f"{cls.directory.name}/store"],
                stdout=subprocess.PIPE, stderr=errors, text=True)
        cls.server.stdout.readline()  # it is ready
        with open(log) as errors:
            cls.address = re.search(r"HTTP on (http://\S+)", errors.read())[1]

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait()
        cls.server.stdout.close()
        cls.directory.cleanup()

    def test_every_command_answers_as_shown(self):
        run = 0
        for page in PAGES:
            for command, answer in blocks(page):
                with self.subTest(page=page, command=command):
                    self.assertIn(ADDRESS, command)
                    command = command.replace(ADDRESS, self.address).replace("curl ", "curl -sS --fail-with-body ", 1)
                    done = subprocess.run(["bash", "-ec", command], capture_output=True, timeout=60)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    text = done.stdout.decode()  # UTF-8, whatever the model says
                    run += 1
                    if answer is None:
                        self.assertTrue(text.startswith("data: {"))
                    else:
                        self.assertEqual(shape(json.loads(text)), shape(answer))
        self.assertEqual(run, 5)


if __name__ == "__main__":
    unittest.main()
