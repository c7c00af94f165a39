# SPDX-License-Identifier: Apache-2.0
"""A lintel-server of this build (LINTEL_SERVER), to hold the files of docker/ against."""

import contextlib
import os
import re
import subprocess
import tempfile
import urllib.error
import urllib.request

import manifests

MODEL = os.path.join(manifests.ROOT, "weights", "mnist-linear-small")


class Server:
    """A running server and its addresses."""

    def __init__(self, address, metrics):
        self.address = address
        self.metrics = metrics  # "http://HOST:PORT"

    def get(self, path):
        """Status and text of an HTTP page of the metrics port."""
        try:
            with urllib.request.urlopen(self.metrics + path, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextlib.contextmanager
def serving(arguments):
    """Serves with these flags, and free ports on loopback; must end with status 0."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [os.environ["LINTEL_SERVER"], *arguments, "--listen", "127.0.0.1:0",
             "--http-listen", "off", "--metrics-listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            ready = process.stdout.readline()
            log.seek(0)
            text = log.read()
            assert ready, f"lintel-server {' '.join(arguments)}: {text}"
            yield Server(ready.strip().rpartition(" ")[2],
                         re.search(r"metrics on (http://[^/]+)/metrics", text)[1])
        finally:
            process.terminate()
            status = process.wait()
            process.stdout.close()
    assert status == 0, f"lintel-server ended with {status}"


def make_certificate(directory):
    """Paths of a self-signed certificate for localhost and of its key."""
    certificate = os.path.join(directory, "tls.crt")
    key = os.path.join(directory, "tls.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True)
    return certificate, key


def make_tokens(directory, lintel):
    """Path of a token file, made by the command line `lintel`."""
    path = os.path.join(directory, "tokens")
    subprocess.run([lintel, "token", "new", "alice", "--append", path], check=True,
                   capture_output=True)
    return path


def seconds(duration):
    """The seconds of "45s" or "2m", as lintel-server and compose files write them."""
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]
