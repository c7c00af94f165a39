# SPDX-License-Identifier: Apache-2.0
"""curl over TLS, as docs/http.md says it. Needs LINTEL_SERVER and LINTEL_WRITE_TINY_MODELS, binaries, curl and openssl."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from pages import read

LIST = "/lintel.v1.ModelService/List"
GENERATE = "/lintel.v1.GenerationService/Generate"
ENDED = b"FINISH_REASON_LENGTH"


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class Https(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.room = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.room.cleanup)
        subprocess.run([os.environ["LINTEL_WRITE_TINY_MODELS"], cls.room.name], check=True)
        for authority in ("ca", "foreign"):
            openssl("req", "-x509", *cls.new_key(authority), "-days", "2", "-subj", f"/CN={authority}",
                    "-out", cls.path(f"{authority}.pem"))
        for name in ("server", "client"):
            openssl("req", *cls.new_key(name), "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
                    "-out", cls.path("request"))
            openssl("x509", "-req", "-in", cls.path("request"), "-CA", cls.path("ca.pem"), "-CAkey", cls.path("ca.key"),
                    "-CAcreateserial", "-copy_extensions", "copy", "-days", "2", "-out", cls.path(f"{name}.pem"))

    @classmethod
    def path(cls, name):
        return os.path.join(cls.room.name, name)

    @classmethod
    def new_key(cls, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", cls.path(f"{name}.key")]

    def serve(self, *more):
        """Starts a server with a certificate; afterwards curl() asks it."""
        with open(self.path("log"), "w") as log:
            server = subprocess.Popen(
                [os.environ["LINTEL_SERVER"], "--model", self.path("bytes"), "--listen", "127.0.0.1:0",
                 "--http-listen", "127.0.0.1:0", "--tls-cert", self.path("server.pem"), "--tls-key", self.path("server.key"),
                 *more], stdout=subprocess.PIPE, stderr=log, text=True)
        self.addCleanup(server.wait, 60)
        self.addCleanup(server.terminate)
        self.addCleanup(server.stdout.close)
        server.stdout.readline()  # it is ready
        with open(self.path("log")) as log:
            self.port = re.search(r"HTTP on https://127\.0\.0\.1:(\d+)", log.read())[1]

    def curl(self, *words, path=LIST, scheme="https", body="{}"):
        return subprocess.run(
            ["curl", "--silent", "--show-error", "--fail", "--max-time", "60", "-d", body, *words,
             f"{scheme}://localhost:{self.port}{path}"], capture_output=True, check=False)

    def trusting(self, *words, authority="ca", **more):
        return self.curl("--cacert", self.path(f"{authority}.pem"), *words, **more)

    def test_the_page_says_how(self):
        page = read("docs/http.md")
        self.assertIn("`curl --cacert ca.pem https://...`", page)
        self.assertIn("`curl --cert client.pem --key client.key`", page)

    def test_a_client_that_trusts_the_authority_is_served(self):
        self.serve()
        listed = self.trusting("--write-out", "\n%{http_version}")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertRegex(listed.stdout, rb'"bytes".*\n1\.1$')
        streamed = self.trusting("-N", path=GENERATE, body='{"prompt":{"text":"The "},"maxNewTokens":200}')
        self.assertEqual(streamed.returncode, 0, streamed.stderr)
        self.assertIn(ENDED, streamed.stdout)
        for version in ("1.2", "1.3"):
            self.assertEqual(self.trusting(f"--tlsv{version}", "--tls-max", version).returncode, 0, version)

    def test_others_are_not(self):
        self.serve()
        self.assertEqual(self.curl().returncode, 60)  # the certificate is none that the machine trusts
        self.assertEqual(self.trusting(authority="foreign").returncode, 60)
        old = ["--tlsv1.0", "--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0"]
        self.assertEqual(self.trusting(*old).returncode, 35)
        self.assertNotEqual(self.curl(scheme="http").returncode, 0)

    def test_clients_show_certificates_where_they_are_asked_for(self):
        self.serve("--tls-client-ca", self.path("ca.pem"))
        own = ["--cert", self.path("client.pem"), "--key", self.path("client.key")]
        self.assertEqual(self.trusting(*own).returncode, 0)
        none = self.trusting()
        self.assertNotEqual(none.returncode, 0)
        self.assertRegex(none.stderr, b"alert|certificate required")
        foreign = ["--cert", self.path("foreign.pem"), "--key", self.path("foreign.key")]
        self.assertNotEqual(self.trusting(*foreign).returncode, 0)


if __name__ == "__main__":
    if shutil.which("curl") is None:
        print("SKIPPED: no curl (scripts/setup.sh --clients installs it)", file=sys.stderr)
        sys.exit(77)
    unittest.main()
