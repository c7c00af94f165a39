# SPDX-License-Identifier: Apache-2.0
"""Errors for which gRPC alone knows why a call failed."""

import signal
import traceback
import unittest

import grpc
import lintel
from lintel.errors import plain_words

from away_test import QUICK, Away
from serving import run_async


class ServedTest(Away, unittest.TestCase):
    def test_a_fork_of_a_session_in_use_asks_for_a_position(self):
        with lintel.Client(self.address) as client, client.session() as session:
            with session.generate([3], max_new_tokens=1_000_000) as generation:
                next(iter(tokens := iter(generation)))
                with self.assertRaisesRegex(lintel.Aborted, "in use needs `position`"):
                    client.attach_session(session.id).fork()
                with client.attach_session(session.id).fork(position=1) as copy:
                    self.assertEqual(copy.info().position, 1)
                del tokens

        async def main():
            async with lintel.AsyncClient(self.address) as client, client.session() as session:
                async with session.generate([3], max_new_tokens=1_000_000) as generation:
                    tokens = aiter(generation)  # an iterator that is collected cancels its call
                    await anext(tokens)
                    with self.assertRaisesRegex(lintel.Aborted, "in use needs `position`"):
                        await client.attach_session(session.id).fork()
                    del tokens
        run_async(main())

    def test_a_lost_connection_is_reported_in_plain_words(self):
        def check(error):
            self.assertEqual(error.message, "the connection to the server was lost")
            self.assertIs(error.code, grpc.StatusCode.UNAVAILABLE)
            self.assertNotEqual(error.details, error.message)  # gRPC's own words
            self.assertFalse(error.unreached)

        def kill():
            self.server.process.send_signal(signal.SIGKILL)
            self.server.stop()

        with lintel.Client(self.address, retry=None) as client:
            with self.assertRaises(lintel.Unavailable) as raised:
                for _ in client.generate([3], max_new_tokens=100_000):
                    if self.server.process.returncode is None:
                        kill()
        check(raised.exception)
        self.start()

        async def main():
            async with lintel.AsyncClient(self.address, retry=None) as client:
                async for _ in client.generate([3], max_new_tokens=100_000):
                    if self.server.process.returncode is None:
                        kill()
        with self.assertRaises(lintel.Unavailable) as raised:
            run_async(main())
        check(raised.exception)


class PlainWordsTest(unittest.TestCase):
    def plain(self, code, text, *, encrypted=False, by_server=False):
        return plain_words(code, text, address="there:7", encrypted=encrypted, timeout=2.0,
                           by_server=by_server)

    def unavailable(self, text, **options):
        return self.plain(grpc.StatusCode.UNAVAILABLE, text, **options)

    def test_a_server_that_is_not_there_is_named_with_the_reason(self):
        for text, reason in (
            ("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
             "Failed to connect to remote host: Connection refused", "Connection refused"),
            ("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
             "Failed to connect to remote host: connect: Connection refused (111)",
             "Connection refused"),
            ("failed to connect to all addresses; last error: UNAVAILABLE: ipv6:%5B::1%5D:1: "
             "connect: Network is unreachable (101)", "Network is unreachable"),
            ("failed to connect to all addresses; last error: UNKNOWN: unix:/run/a: "
             "No such file or directory", "No such file or directory"),
            ("failed to connect to all addresses", "no connection"),
            ("DNS resolution failed for there:7: C-ares status is not ARES_SUCCESS qtype=AAAA",
             "this host name is not known"),
        ):
            plain = self.unavailable(text)
            self.assertEqual(plain.message, f"no server answers at there:7: {reason}")
            self.assertTrue(plain.unreached)
            self.assertEqual(plain.hint, "")

    def test_an_error_of_tls_is_reported(self):
        failed = "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:7: "
        self.assertIn("speak TLS?", self.unavailable(failed + "Socket closed").hint)
        bad = failed + "Ssl handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED"
        self.assertIn("cannot be trusted", self.unavailable(bad, encrypted=True).message)
        plain = failed + "Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER"
        self.assertIn("does not speak TLS", self.unavailable(plain, encrypted=True).message)

    def test_a_server_without_grpc_is_reported(self):
        self.assertEqual(
            self.plain(grpc.StatusCode.UNIMPLEMENTED, "Received http2 header with status: 404"),
            ("what answers at there:7 is no gRPC server: HTTP 404", "", False))
        self.assertIn("HTTP/1", self.unavailable(
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
            "Trying to connect an http1.x server").message)

    def test_a_lost_connection_has_one_text(self):
        for text in ("Socket closed", "recvmsg:Connection reset by peer", "Broken pipe",
                     "GOAWAY received", "keepalive watchdog timeout", "Transport closed",
                     "Received RST_STREAM with error code 2"):
            plain = self.unavailable(text)
            self.assertEqual(plain.message, "the connection to the server was lost")
            self.assertFalse(plain.unreached)

    def test_the_message_of_the_server_stays(self):
        for code, text in ((grpc.StatusCode.UNAVAILABLE, "model a is being loaded"),
                           (grpc.StatusCode.INTERNAL, "Socket closed"),
                           (grpc.StatusCode.CANCELLED, "the server ends")):
            self.assertEqual(self.plain(code, text), (text, "", False))
        self.assertEqual(self.unavailable("Socket closed", by_server=True).message, "Socket closed")

    def test_a_timeout_is_reported_with_its_length(self):
        plain = self.plain(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self.assertEqual(plain[:2], ("the call took too long", "the call had a timeout of 2 s"))

    def test_no_error_shows_grpc(self):
        async def read():
            async with lintel.AsyncClient("127.0.0.1:1", retry=QUICK) as client:
                await client.generate([1], max_new_tokens=2).samples()

        async def ask():
            async with lintel.AsyncClient("127.0.0.1:1", retry=QUICK) as client:
                await client.models()

        with lintel.Client("127.0.0.1:1", retry=QUICK) as client:
            for call in (client.models, client.session, lambda: client.score([[1, 2]]),
                         lambda: client.generate([1]).samples(), lambda: run_async(read()),
                         lambda: run_async(ask())):
                with self.assertRaises(lintel.Unavailable) as raised:
                    call()
                error = raised.exception
                self.assertIs(error.code, grpc.StatusCode.UNAVAILABLE)
                self.assertTrue(error.unreached)
                self.assertIn("failed to connect", error.details)
                self.assertRegex(str(error), r"^UNAVAILABLE: no server answers at 127\.0\.0\.1:1: "
                                             r"Connection refused \[request \w+\]$")
                shown = "".join(traceback.format_exception(error))
                for raw in ("RpcError", "last error", "ipv4:"):
                    self.assertNotIn(raw, shown)


if __name__ == "__main__":
    unittest.main()
