# SPDX-License-Identifier: Apache-2.0
"""A server that is away for a while, or for good, of asyncio: see away_test."""

import signal
import time
import unittest

import lintel

from away_test import COUNT, QUICK, Away
from serving import PATIENCE, run_async


class AwayAsyncioTest(Away, unittest.TestCase):
    def test_a_stream_continues_as_soon_as_its_server_is_back(self):
        async def main():
            async with lintel.AsyncClient(self.address, timeout=PATIENCE) as client:
                async with client.session() as session:
                    positions = []
                    async for token in session.generate([3, 1, 4], max_new_tokens=COUNT):
                        positions.append(token.position)
                        if len(positions) == 10:
                            self.kill()
                        elif self.waits and len(positions) > 10 and not hasattr(self, "at"):
                            self.at = time.monotonic()
            return positions
        positions = run_async(main())
        self.check_gap(self.at)
        self.assertEqual(positions, list(range(3, 3 + COUNT)))

    def test_a_session_is_deleted_by_close_once_its_server_is_back(self):
        async def main():
            async with lintel.AsyncClient(self.address, timeout=PATIENCE) as client:
                session = await client.session()
                await session.generate([3, 1, 4], max_new_tokens=10).samples()
                self.kill()
                await session.close()
                self.check_gap(time.monotonic())
                with self.assertRaises(lintel.NotFound):
                    await client.get_session(session.id)
        run_async(main())

    def test_close_raises_nothing_where_no_server_answers(self):
        async def main():
            async with lintel.AsyncClient(self.address, retry=QUICK) as client:
                async with client.session() as session:
                    async with session.generate([3], max_new_tokens=5) as generation:
                        self.assertEqual(len([token async for token in generation]), 5)
                        self.server.process.send_signal(signal.SIGKILL)
                        self.server.process.wait()
        with self.assertLogs("lintel", "WARNING") as logged:
            run_async(main())
        self.assertIn(f"no server answers at {self.address}", logged.output[0])


if __name__ == "__main__":
    unittest.main()
