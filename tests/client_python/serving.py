# SPDX-License-Identifier: Apache-2.0
"""The real server, and the C++ command line beside it, for tests of the client.

Needs LINTEL_SERVER, LINTEL_CLI and LINTEL_WRITE_TINY_MODELS, three binaries.
"""

import asyncio
import atexit
import json
import os
import re
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

import lintel

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MNIST = os.path.join(REPOSITORY, "weights", "mnist-linear-small")
PATIENCE = 120.0  # seconds for what must happen soon, on a machine that is busy with other things


def eventually(condition, what="the condition"):
    """Waits until condition() is true, and returns what it gave."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come about in {PATIENCE:g} s")
        time.sleep(0.01)
    return value


# One for all tests: gRPC logs errors where calls of a loop that is closed come to their end.
_loop = asyncio.new_event_loop()
atexit.register(_loop.close)


def run_async(coroutine):
    return _loop.run_until_complete(asyncio.wait_for(coroutine, 4 * PATIENCE))


class Server:
    """lintel-server on a port of its own, with metrics."""

    def __init__(self, models, flags=(), listen="127.0.0.1:0"):
        command = [os.environ["LINTEL_SERVER"], "--listen", listen, "--metrics-listen",
                   "127.0.0.1:0", *flags]
        if "--http-listen" not in flags:
            command += ["--http-listen", "off"]
        for model in models:
            command += ["--model", model]
        self._log = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self._reader = threading.Thread(target=lambda: self._log.extend(self.process.stderr))
        self._reader.start()
        ready = self.process.stdout.readline()
        if not ready.startswith("lintel-server ready on "):
            self.stop()
            raise AssertionError("lintel-server did not start:\n" + "".join(self._log))
        self.address = ready.split()[-1]

    @property
    def log(self):
        return "".join(self._log)

    def metric(self, name):
        """The sum of a metric over its labels."""
        found = eventually(lambda: re.search(r"metrics on (http://\S+)", self.log), "metrics")
        with urllib.request.urlopen(found[1], timeout=PATIENCE) as response:
            lines = response.read().decode().splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines
                  if re.match(re.escape(name) + r"[ {]", line)]
        if not values:
            raise AssertionError(f"the server has no metric {name}")
        return sum(values)

    def cli(self, *arguments, stdin=None):
        """Runs lintel COMMAND ARGUMENTS... and returns what it printed."""
        done = subprocess.run([os.environ["LINTEL_CLI"], *arguments, "--address", self.address],
                              input=stdin, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise AssertionError(f"lintel {arguments} failed: {done.stderr}")
        return done.stdout

    def cli_lines(self, *arguments, stdin=None):
        return [json.loads(line) for line in self.cli(*arguments, stdin=stdin).splitlines()]

    def stop(self):
        self.process.terminate()
        status = self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return status


class ServedTest(unittest.TestCase):
    """A server for all tests of a class: `server`, and `client` for each test."""

    models = ()  # of "image", "bytes", "text" (bytes, trained on texts of 32), "tokens"
    mnist = False
    packaged = False  # the models that lintel-server serves by itself, and HTTP
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        subprocess.run([os.environ["LINTEL_WRITE_TINY_MODELS"], cls.directory], check=True)
        paths = [os.path.join(cls.directory, name) for name in cls.models]
        if cls.packaged:
            cls.server = Server([], ["--http-listen", "127.0.0.1:0", *cls.flags])
        else:
            cls.server = Server(paths + ([MNIST] if cls.mnist else []), cls.flags)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"lintel-server ended with {status}:\n{cls.server.log}"

    def setUp(self):
        self.client = self.enterContext(lintel.Client(self.server.address, timeout=PATIENCE))
