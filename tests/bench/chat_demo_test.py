# SPDX-License-Identifier: Apache-2.0
"""scripts/chat_demo.py on small numbers: what it prints is what happened. Needs LINTEL_SERVER, a binary."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/chat_demo.py"
FEW = ["--tokens", "1500", "--restarts", "1", "--conversations", "6", "--forks", "3", "--new-tokens", "8"]


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, "--server", os.environ["LINTEL_SERVER"], *FEW, *words], check=True,
                          capture_output=True, text=True)


class ChatDemoTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.result = json.loads(run("--json").stdout)

    def test_the_long_conversation_reads_little_in_memory_and_after_a_restart(self):
        long = self.result["long"]
        self.assertGreaterEqual(long["tokens"], 1500)
        self.assertLess(max(long["read_in_memory"]), 100)
        self.assertGreater(long["read_reading_all"], 1500)
        self.assertEqual(len(long["read_after_restart"]), 1)
        self.assertLess(long["read_after_restart"][0], 150)  # not the turn before, of 300 words

    def test_conversations_continue_and_forks_share_their_history(self):
        many = self.result["many"]
        self.assertEqual((len(many["own"]), len(many["forked"])), (3, 3))
        self.assertGreater(many["tokens_per_second"], 0)
        self.assertGreater(many["bytes_per_conversation"], 0)
        for each in many["own"] + many["forked"]:
            self.assertGreater(each["cached"], each["prompt"] // 2)

    def test_the_table_has_the_trained_text_and_no_progress(self):
        shown = run()
        self.assertEqual(shown.stderr, "")
        self.assertIn("text-rwkv7-small (trained)", shown.stdout)
        self.assertIn("| tokens/s |", shown.stdout)
        self.assertIn("The last answer:", shown.stdout)


if __name__ == "__main__":
    unittest.main()
