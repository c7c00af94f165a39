# SPDX-License-Identifier: Apache-2.0
"""A server that is away for a while, or for good. Without asyncio, whose thread would look at the sockets of the
others, too.
"""

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock

import lintel
from lintel import RetryPolicy
from lintel.retry import Attempts

from serving import PATIENCE, Server

COUNT = 3000
SOON = 4.0  # seconds from a server that is ready to the next token of a stream
QUICK = RetryPolicy(max_attempts=3, initial_backoff=0.001, max_backoff=0.002)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Away:
    """lintel-server on one port, killed and started again there."""

    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())
        subprocess.run([os.environ["LINTEL_WRITE_TINY_MODELS"], self.directory], check=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.start()
        self.addCleanup(lambda: self.server.stop())

        # A client that waits once more has found no server on the port.
        self.waits = 0
        self.refused = threading.Event()
        delay_after = Attempts.delay_after

        def seen(attempts, error):
            delay = delay_after(attempts, error)
            self.waits += 1
            if self.waits == 2:
                self.refused.set()
            return delay
        self.enterContext(unittest.mock.patch.object(Attempts, "delay_after", seen))

    def start(self):
        self.server = Server([f"{self.directory}/tokens"],
                             ["--session-store", f"{self.directory}/store"], self.address)
        self.ready_at = time.monotonic()

    def kill(self):
        """kill -9; the server is back once its client has been refused."""
        self.waits = 0
        self.refused.clear()
        self.server.process.send_signal(signal.SIGKILL)
        self.server.stop()

        def restart():
            self.assertTrue(self.refused.wait(PATIENCE))
            self.start()
        self.restart = threading.Thread(target=restart)
        self.restart.start()

    def check_gap(self, at):
        self.restart.join()
        self.assertLess(at - self.ready_at, SOON, "seconds from the server's start to a token")


class AwayTest(Away, unittest.TestCase):
    def test_a_stream_continues_as_soon_as_its_server_is_back(self):
        with lintel.Client(self.address, timeout=PATIENCE) as client, client.session() as session:
            positions = []
            for token in session.generate([3, 1, 4], max_new_tokens=COUNT):
                positions.append(token.position)
                if len(positions) == 10:
                    self.kill()
                elif self.waits and len(positions) > 10 and not hasattr(self, "at"):
                    self.at = time.monotonic()
            self.check_gap(self.at)
        self.assertEqual(positions, list(range(3, 3 + COUNT)))

    def test_a_session_is_deleted_by_close_once_its_server_is_back(self):
        with lintel.Client(self.address, timeout=PATIENCE) as client:
            session = client.session()
            generation = session.generate([3, 1, 4], max_new_tokens=10)
            self.assertEqual(len(list(generation)), 10)
            self.kill()
            session.close()
            self.check_gap(time.monotonic())
            with self.assertRaises(lintel.NotFound):
                client.get_session(session.id)

    def test_close_after_the_last_token_raises_nothing_where_no_server_answers(self):
        with self.assertLogs("lintel", "WARNING") as logged:
            with lintel.Client(self.address, retry=QUICK) as client:
                with client.session() as session:
                    with session.generate([3], max_new_tokens=5) as generation:
                        self.assertEqual(len(list(generation)), 5)
                        self.server.process.send_signal(signal.SIGKILL)
                        self.server.process.wait()
        self.assertIn(session.id, logged.output[0])
        self.assertIn(f"no server answers at {self.address}", logged.output[0])


if __name__ == "__main__":
    unittest.main()
