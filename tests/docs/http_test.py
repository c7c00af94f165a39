"""The curl commands of docs/http.md against the server that the page starts. Needs LINTEL_SERVER, a binary, and curl."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest

import pages

SERVER = os.environ["LINTEL_SERVER"]


class HttpPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.code = pages.split(pages.read("docs/http.md"))[1].splitlines()
        words = shlex.split(next(line for line in cls.code if line.startswith("lintel-server ")))
        words[words.index("127.0.0.1:8080")] = "127.0.0.1:0"
        cls.server = subprocess.Popen([SERVER, *words[1:], "--listen", "127.0.0.1:0"], cwd=pages.ROOT,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        log = ""
        for line in cls.server.stderr:
            log += line
            found = re.search(r"HTTP on http://(\S+)", line)
            if found:
                cls.address = found[1]
                break
        else:
            raise AssertionError(log)

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.communicate(timeout=120)

    def test_every_curl_command_is_answered(self):
        commands = [line for line in self.code if line.startswith("curl ")]
        self.assertGreaterEqual(len(commands), 4)
        for command in commands:
            with self.subTest(command):
                words = shlex.split(command.replace("127.0.0.1:8080", self.address))
                answer = subprocess.run([words[0], "--silent", "--show-error", "--fail", *words[1:]],
                                        capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(answer.returncode, 0, answer.stderr + answer.stdout)
                self.assertNotIn('"error"', answer.stdout)
                self.assertTrue(answer.stdout.startswith("{"), answer.stdout)

    def test_text_comes_back_as_text(self):
        command = next(line for line in self.code if line.startswith("curl ") and "The " in line)
        words = shlex.split(command.replace("127.0.0.1:8080", self.address))
        out = subprocess.run([words[0], "-sS", *words[1:]], capture_output=True, text=True, timeout=120, check=True).stdout
        self.assertIn('"text":"', out)
        self.assertIn("FINISH_REASON_LENGTH", out)


if __name__ == "__main__":
    if shutil.which("curl") is None:
        print("SKIPPED: no curl (scripts/setup.sh --clients installs it)", file=sys.stderr)
        sys.exit(77)
    unittest.main()
