# SPDX-License-Identifier: Apache-2.0
"""TLS and tokens."""

import os
import subprocess
import tempfile
import unittest

import lintel

from serving import PATIENCE, Server, run_async


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class SecurityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        path = cls.path
        openssl("req", "-x509", *NEW_KEY, "-days", "2", "-subj", "/CN=Test", "-keyout",
                path("ca.key"), "-out", path("ca.pem"))
        for name in ("server", "client"):
            openssl("req", *NEW_KEY, "-subj", "/CN=" + name, "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", path(name + ".key"),
                    "-out", path(name + ".csr"))
            openssl("x509", "-req", "-in", path(name + ".csr"), "-CA", path("ca.pem"), "-CAkey",
                    path("ca.key"), "-CAcreateserial", "-copy_extensions", "copy", "-days", "2",
                    "-out", path(name + ".pem"))
        subprocess.run([os.environ["LINTEL_WRITE_TINY_MODELS"], path("models")], check=True)
        cls.token = subprocess.run(
            [os.environ["LINTEL_CLI"], "token", "new", "alice", "--append", path("tokens")],
            check=True, capture_output=True, text=True).stdout.strip()
        cls.server = Server([path("models/tokens")], [
            "--tls-cert", path("server.pem"), "--tls-key", path("server.key"), "--tls-client-ca",
            path("ca.pem"), "--auth-tokens", path("tokens")])

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    @classmethod
    def path(cls, name):
        return os.path.join(cls.directory, name)

    def options(self, **changes):
        return dict(dict(tls_ca=self.path("ca.pem"), tls_cert=self.path("client.pem"),
                         tls_key=self.path("client.key"), token=self.token, timeout=PATIENCE,
                         retry=None), **changes)

    def test_mutual_tls_and_a_token_let_in(self):
        with lintel.Client(self.server.address, **self.options()) as client:
            tokens = [t.token for t in client.generate([1, 2], max_new_tokens=5, seed=1)]
            with client.session() as session:
                self.assertEqual([s.id for s in client.list_sessions()], [session.id])

        async def same():
            async with lintel.AsyncClient(self.server.address, **self.options()) as client:
                return [t.token async for t in client.generate([1, 2], max_new_tokens=5, seed=1)]
        self.assertEqual(run_async(same()), tokens)

    def test_without_them_no_client_is_served(self):
        with lintel.Client(self.server.address, **self.options(token=None)) as client:
            self.assertTrue(client.serving())  # health needs none
            with self.assertRaises(lintel.Unauthenticated):
                client.models()
        with lintel.Client(self.server.address, **self.options(token="wrong")) as client:
            with self.assertRaises(lintel.Unauthenticated):
                client.generate([1]).samples()
        for changes in (dict(tls_cert=None, tls_key=None),
                        dict(tls_cert=None, tls_key=None, tls_ca=None)):
            with lintel.Client(self.server.address, **self.options(**changes)) as client:
                with self.assertRaises(lintel.Unavailable) as raised:
                    client.serving()
            # Without a CA the channel is plain text, which the server's reason does not tell.
            hinted = "does the server speak TLS?" in str(raised.exception)
            self.assertEqual(hinted, "tls_ca" in changes, str(raised.exception))

        async def in_plain_text():
            options = self.options(tls_cert=None, tls_key=None, tls_ca=None)
            async with lintel.AsyncClient(self.server.address, **options) as client:
                await client.generate([1]).samples()
        with self.assertRaisesRegex(lintel.Unavailable, "tls_ca"):
            run_async(in_plain_text())
        with lintel.Client("127.0.0.1:1", retry=None) as client:
            with self.assertRaises(lintel.Unavailable) as raised:
                client.generate([1]).samples()
        self.assertNotIn("TLS", str(raised.exception))

    def test_a_token_may_come_with_the_newline_of_its_file(self):
        with open(self.path("alice.token"), "w") as file:
            subprocess.run(
                [os.environ["LINTEL_CLI"], "token", "new", "alice", "--append", self.path("more")],
                check=True, stdout=file)
        with open(self.path("alice.token")) as file:
            text = file.read()
        self.assertTrue(text.endswith("\n"))
        for token in (text, self.token + "\n", f" {self.token}\r\n"):
            for kind in (lintel.Client, lintel.AsyncClient):
                sent = dict(kind("localhost:1", token=token)._calls.connection.metadata("id"))
                self.assertEqual(sent["authorization"], "Bearer " + token.strip())
        with lintel.Client(self.server.address, **self.options(token=self.token + "\n")) as client:
            self.assertEqual(len(client.models()), 1)

    def test_options_that_make_no_sense_are_refused_at_once(self):
        for kind in (lintel.Client, lintel.AsyncClient):
            with self.assertRaisesRegex(ValueError, "belong together"):
                kind("localhost:1", tls_cert=self.path("client.pem"))
            with self.assertRaisesRegex(ValueError, "plain text") as raised:
                kind("192.0.2.1:1", token="secret")
            self.assertNotIn("secret", str(raised.exception))
            for token in ("", "\n", "a b", "a\nb", "é"):
                with self.assertRaisesRegex(ValueError, "token"):
                    kind("localhost:1", token=token)
            with self.assertRaises(OSError):
                kind("localhost:1", tls_ca="/no/such/file")

    def test_a_token_stays_on_this_machine_without_tls(self):
        from lintel._channel import is_local
        for address in ("localhost:1", "127.9.9.9:1", "[::1]:1", "unix:/x"):
            self.assertTrue(is_local(address), address)
        for address in ("example.org:1", "10.0.0.1:1", "[::2]:1", "127.0.0.1.example.org:1", "1"):
            self.assertFalse(is_local(address), address)


if __name__ == "__main__":
    unittest.main()
