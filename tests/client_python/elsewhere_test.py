# SPDX-License-Identifier: Apache-2.0
"""A client of several servers: it continues at another one where the first is killed, ends or refuses."""

import os
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
import unittest.mock

import grpc
import lintel
from lintel import _servers
from lintel._channel import affinity_key

from repeat_test import COUNT, POLICY, DurableServer
from retry_test import GONE, refusal
from serving import PATIENCE, Server, run_async

POSITIONS = list(range(2, 2 + COUNT))


class TwoFakes(unittest.TestCase):
    def setUp(self):
        self.one, self.two = DurableServer(), DurableServer()
        self.addCleanup(self.one.kill)
        self.addCleanup(self.two.kill)
        self.address = f"{self.one.address},{self.two.address}"

    def read(self, on_token=lambda position: None, retry=POLICY):
        with lintel.Client(self.address, retry=retry, timeout=PATIENCE) as client:
            positions = []
            for token in client.generate([0, 7], session="it", max_new_tokens=COUNT):
                positions.append(token.position)
                on_token(token.position)
            return positions

    async def read_async(self, on_token=lambda position: None, retry=POLICY):
        async with lintel.AsyncClient(self.address, retry=retry, timeout=PATIENCE) as client:
            positions = []
            async for token in client.generate([0, 7], session="it", max_new_tokens=COUNT):
                positions.append(token.position)
                on_token(token.position)
            return positions

    def both(self, *arguments, **options):
        """Calls of a client of threads, and of one of asyncio."""
        yield lambda: self.read(*arguments, **options)
        yield lambda: run_async(self.read_async(*arguments, **options))

    def test_a_call_that_is_killed_continues_at_the_other_server(self):
        for kill_at in (1, 3, COUNT):
            for read in self.both(lambda p, at=kill_at: p == 1 + at and self.one.kill()):
                self.one.start()
                self.one.kill_at = kill_at
                self.two.calls.clear()
                self.assertEqual(read(), POSITIONS)
                (call,) = self.two.calls
                self.assertEqual(call.from_position, 2 + kill_at)
                self.assertEqual(call.call_id, self.one.calls[-1].call_id)

    def test_a_server_that_is_not_there_is_no_failure(self):
        self.one.kill()
        for read in self.both():
            self.assertEqual(read(), POSITIONS)

    def test_a_call_that_one_server_refuses_is_sent_to_the_other_at_once(self):
        slow = lintel.RetryPolicy(initial_backoff=1000, max_backoff=1000, repeat_for=PATIENCE)
        for refused in (GONE, refusal(grpc.StatusCode.CANCELLED), refusal(grpc.StatusCode.ABORTED, reason="SESSION_HELD")):
            for read in self.both(retry=slow):
                self.one.script = [refused]
                self.assertEqual(read(), POSITIONS)

    def test_a_session_is_read_elsewhere_where_the_server_that_ends_cancels_that(self):
        cancels = refusal(grpc.StatusCode.CANCELLED)

        async def get():
            async with lintel.AsyncClient(self.address, retry=POLICY) as client:
                return await client.attach_session("it").info()

        def get_in_thread():
            with lintel.Client(self.address, retry=POLICY) as client:
                return client.attach_session("it").info()

        for read in (get_in_thread, lambda: run_async(get())):
            self.one.get_script = [cancels]
            self.assertEqual(read().id, "it")
            self.assertEqual(self.one.get_script, [])

    def test_a_client_stays_where_it_went(self):
        with lintel.Client(self.address, retry=POLICY, timeout=PATIENCE) as client:
            self.one.script = [GONE]
            for _ in range(3):
                self.assertEqual(
                    len(client.generate([0, 7], session="it", max_new_tokens=COUNT).samples()), 1)
            self.assertEqual(len(self.one.calls), 1)
            self.assertEqual(len(self.two.calls), 3)

    def test_a_session_in_memory_alone_is_not_read_twice(self):
        self.one.durability = self.two.durability = 1  # NONE
        self.one.script = [GONE]
        with self.assertRaises(lintel.Unavailable):
            self.read()
        self.assertEqual(self.two.calls, [])


class Addresses(unittest.TestCase):
    def test_several_are_split_and_nonsense_is_refused(self):
        self.assertEqual(_servers.split("a:1, b:2"), ["a:1", "b:2"])
        self.assertEqual(_servers.split("ipv4:1.2.3.4:5,1.2.3.5:5"), ["ipv4:1.2.3.4:5,1.2.3.5:5"])
        for address, words in (("http://a:1", "without http://"),
                               ("https://a:1", "without https://; tls_ca or tls=True encrypts")):
            with self.assertRaises(ValueError) as caught:
                lintel.Client(address)
            self.assertEqual(str(caught.exception),
                             f"address '{address}': expected HOST:PORT of gRPC, {words}")
        for bad in ("a:1,", "a:1,a:1"):
            with self.assertRaises(ValueError):
                lintel.Client(bad)

    def test_a_token_is_for_none_of_them_in_plain_text_elsewhere(self):
        with self.assertRaises(ValueError):
            lintel.Client("127.0.0.1:1,10.0.0.1:1", token="secret")

    def test_a_name_stands_for_its_addresses_once_it_failed_and_for_itself_after_them(self):
        opened = []

        def open_channel(address, name):
            opened.append((address, name))
            return unittest.mock.MagicMock()

        servers = _servers.Servers(["name:1"], open_channel)
        self.assertTrue(servers.leave(servers.current, ["10.0.0.1:1", "10.0.0.2:1"]))
        self.assertEqual(servers.current.address, "10.0.0.1:1")
        self.assertEqual(opened[1], ("10.0.0.1:1", "name:1"))
        self.assertTrue(servers.leave(servers.current, []))
        self.assertEqual(servers.current.address, "10.0.0.2:1")
        self.assertFalse(servers.leave(servers.current, []))
        self.assertEqual(servers.current.address, "name:1")

    def test_the_resolver_is_asked_of_names_alone(self):
        self.assertEqual(_servers.addresses_of("127.0.0.1:1"), [])
        self.assertEqual(_servers.addresses_of("unix:/x"), [])
        self.assertEqual(_servers.addresses_of("localhost:///a"), [])  # gRPC's own way of naming, as xds:///
        self.assertIn("127.0.0.1:7", _servers.addresses_of("localhost:7"))

    def test_a_sessions_key_is_its_ids_hash(self):
        self.assertEqual(affinity_key("abc"), "ba7816bf8f01cfea")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RealServers(unittest.TestCase):
    """Two lintel-servers that have one store after the other."""

    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())
        subprocess.run([os.environ["LINTEL_WRITE_TINY_MODELS"], self.directory], check=True)
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.servers = [None, None]

    def tearDown(self):
        for server in filter(None, self.servers):
            server.stop()

    def serve(self, i):
        self.servers[i] = Server(
            [os.path.join(self.directory, "tokens")],
            ["--session-store", os.path.join(self.directory, "store"), "--replica-id", f"r{i}",
             "--drain-handover", "0s", "--outbox-tokens", "40", "--max-new-tokens", "100000"],
            listen=self.addresses[i])

    def change_over(self, how):
        """The first is killed or shut down; then there is the second."""
        self.servers[0].process.send_signal(how)
        self.servers[0].process.wait()
        self.serve(1)

    def stream(self, client, session, count, on_token=lambda position: None):
        tokens = []
        for token in client.generate([1, 2, 3], session=session, max_new_tokens=count, seed=7):
            tokens.append(token.token)
            self.assertEqual(token.position, 2 + len(tokens))
            on_token(token.position)
        return tokens

    def test_a_text_streams_on_while_its_server_is_killed_or_ends(self):
        count = 12000
        for how in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(how.name):
                self.serve(0)
                with lintel.Client(",".join(self.addresses), timeout=4 * PATIENCE,
                                   retry=lintel.RetryPolicy(repeat_for=PATIENCE)) as client:
                    with client.session() as session:
                        changes = []

                        def on_token(position):
                            if position == 100:
                                changes.append(threading.Thread(target=self.change_over,
                                                                args=(how,)))
                                changes[0].start()

                        tokens = self.stream(client, session.id, count, on_token)
                        changes[0].join()
                        self.assertEqual(
                            self.servers[1].metric("lintel_session_calls_resumed_total"), 1)
                    with client.session() as twin:
                        self.assertEqual(tokens, self.stream(client, twin.id, count))
                    self.assertEqual(len(tokens), count)
                self.servers[0].stop()
                self.servers[1].stop()
                self.servers = [None, None]


if __name__ == "__main__":
    unittest.main()
