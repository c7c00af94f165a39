# SPDX-License-Identifier: Apache-2.0
"""Calls go through a proxy where one is asked for, and on this machine through none."""

import os
import unittest
import unittest.mock

import lintel

from connect_proxy import ConnectProxy
from serving import PATIENCE, ServedTest, run_async

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
ELSEWHERE = "model.invalid:50051"  # a reserved name


class ProxyTest(ServedTest):
    models = ("tokens",)

    def setUp(self):
        super().setUp()
        self.proxy = ConnectProxy(self.server.address)
        self.addCleanup(self.proxy.close)

    def proxy_in_environment(self):
        self.enterContext(unittest.mock.patch.dict(
            os.environ, {name: f"http://{self.proxy.address}" for name in VARIABLES}))

    def call(self, address, **options):
        options = dict(dict(timeout=PATIENCE, retry=None), **options)
        with lintel.Client(address, **options) as client:
            self.assertTrue(client.serving())

    async def call_async(self, address, **options):
        async with lintel.AsyncClient(address, timeout=PATIENCE, retry=None, **options) as client:
            self.assertTrue(await client.serving())

    def test_the_environments_proxy_is_not_heeded(self):
        self.proxy_in_environment()
        self.call(self.server.address)
        run_async(self.call_async(self.server.address))
        with self.assertRaises(lintel.LintelError):
            self.call(ELSEWHERE, timeout=5)
        self.assertEqual(self.proxy.asked, [])

    def test_the_one_that_is_named_is_the_way_to_other_machines(self):
        self.call(ELSEWHERE, proxy=self.proxy.address)
        run_async(self.call_async(ELSEWHERE, proxy=self.proxy.address))
        self.assertEqual([line.rpartition(" ")[0] for line in self.proxy.asked],
                         [f"CONNECT {ELSEWHERE}"] * 2)

    def test_none_is_the_way_to_this_machine(self):
        self.call(self.server.address, proxy=self.proxy.address)
        run_async(self.call_async(self.server.address, proxy=self.proxy.address))
        self.assertEqual(self.proxy.asked, [])

    def test_a_token_goes_through_none_in_plain_text(self):
        for kind in (lintel.Client, lintel.AsyncClient):
            with self.assertRaisesRegex(ValueError, "through a proxy in plain text"):
                kind(ELSEWHERE, proxy=self.proxy.address, token="secret")

    def test_an_invalid_proxy_is_refused_without_its_password(self):
        for proxy in ("", "host", "host:", "host:port", "http://host:1", "user:pass@host", "a b:1"):
            for kind in (lintel.Client, lintel.AsyncClient):
                with self.assertRaisesRegex(ValueError, "proxy: expected") as raised:
                    kind(ELSEWHERE, proxy=proxy)
                self.assertNotIn("pass@", str(raised.exception))
        for proxy in ("host:1", "[::1]:1", "user:pass@host:1"):
            lintel.Client(ELSEWHERE, proxy=proxy).close()


if __name__ == "__main__":
    unittest.main()
