# SPDX-License-Identifier: Apache-2.0
"""AsyncClient: the tokens of Client, many at a time, and ended by tasks that end."""

import asyncio
import gc
import unittest

import lintel
import numpy as np

from serving import PATIENCE, ServedTest, eventually, run_async

LONG = 1_000_000  # tokens: more than any test reads, and more than the server sends unread


class AsyncioTest(ServedTest):
    models = ("tokens", "image")

    def run_async(self, body):
        async def main():
            async with lintel.AsyncClient(self.server.address, timeout=PATIENCE) as client:
                return await body(client)
        return run_async(main())

    def check_freed(self):
        eventually(lambda: self.server.metric("lintel_requests_running") == 0, "a free slot")

    def test_sixteen_streams_at_a_time_give_what_each_gives_alone(self):
        async def one(client, seed):
            generation = client.generate([3, 1, 4], model="tokens", max_new_tokens=200, seed=seed,
                                         max_tokens_per_message=1, log2_probs=True)
            tokens = [token async for token in generation]
            return tokens, generation.result

        async def body(client):
            return await asyncio.gather(*(one(client, seed) for seed in range(16)))

        for seed, (tokens, result) in enumerate(self.run_async(body)):
            alone = self.client.generate([3, 1, 4], model="tokens", max_new_tokens=200, seed=seed,
                                         log2_probs=True)
            self.assertEqual(tokens, list(alone))
            self.assertEqual((result.seed, result.position), (seed, 203))

    def test_the_methods_are_those_of_client(self):
        def public(kind):
            return {name for name in vars(kind) if not name.startswith("_")}
        self.assertEqual(public(lintel.AsyncClient), public(lintel.Client))
        self.assertEqual(public(lintel.AsyncSession), public(lintel.Session))
        self.assertEqual(public(lintel.AsyncGeneration), public(lintel.Generation))

    def test_all_kinds_of_call(self):
        async def body(client):
            self.assertEqual([m.name for m in await client.models()], ["image", "tokens"])
            self.assertTrue(await client.serving())
            image = np.full((6, 5), 7, dtype=np.uint8)
            mask = np.zeros((6, 5), dtype=bool)
            mask[0, 0] = mask[2:4, 1:3] = True
            completed = await client.complete_image(image, mask, model="image", seed=1,
                                                    num_samples=3)
            np.testing.assert_array_equal(completed, self.client.complete_image(
                image, mask, model="image", seed=1, num_samples=3))
            (score,) = await client.score([image], model="image")
            (expected,) = self.client.score([image], model="image")
            np.testing.assert_array_equal(score.bits, expected.bits)
            with self.assertRaises(lintel.NotFound):
                await client.get_session("none")
            with self.assertRaises(lintel.InvalidArgument):
                await client.generate([1], model="tokens", top_p=7).samples()
        self.run_async(body)

    def test_sessions_end_with_their_block(self):
        async def body(client):
            whole = (await client.generate([3, 1], model="tokens", max_new_tokens=8, seed=2)
                     .samples())[0]
            async with client.session(model="tokens") as session:
                tokens = [t.token async for t in
                          session.generate([3, 1], max_new_tokens=5, seed=2)]
                tokens += [t.token async for t in session.generate(max_new_tokens=3, seed=2)]
                self.assertEqual(tokens, whole.tokens.tolist())
                for _ in range(5):
                    async for _ in session.generate(max_new_tokens=LONG):
                        break
                    (sample,) = await session.generate(max_new_tokens=2).samples()
                    self.assertEqual((await session.info()).position, sample.first_position + 2)
                session.generate(max_new_tokens=LONG)
            self.assertEqual(await client.list_sessions(), [])
            kept = await client.session(model="tokens")
            self.assertEqual((await client.list_sessions())[0].id, kept.id)
            await client.attach_session(kept.id).close()
            with self.assertRaises(lintel.NotFound):
                await client.delete_session(kept.id)
        self.run_async(body)

    def test_a_task_that_is_cancelled_ends_its_call(self):
        async def body(client):
            started = asyncio.Event()

            async def read():
                async for _ in client.generate([1], model="tokens", max_new_tokens=LONG):
                    started.set()
            task = asyncio.create_task(read())
            await started.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(self.check_freed)
        self.run_async(body)

    def test_leaving_the_loop_ends_the_call_at_once(self):
        async def body(client):
            gc.disable()  # objects are freed here by their last reference
            try:
                generation = client.generate([1], model="tokens", max_new_tokens=LONG)
                async for _ in generation:
                    break
                await asyncio.to_thread(self.check_freed)
                with self.assertRaises(lintel.Cancelled):
                    await generation.samples()
                async with client.generate([1], model="tokens", max_new_tokens=LONG) as generation:
                    tokens = aiter(generation)
                    await anext(tokens)
                await asyncio.to_thread(self.check_freed)
            finally:
                gc.enable()
        self.run_async(body)

    def test_closing_a_stream_or_the_client_ends_its_reader(self):
        async def body(client):
            generation = client.generate([1], model="tokens", max_new_tokens=LONG)
            reader = asyncio.create_task(generation.samples())
            await asyncio.sleep(0)
            generation.close()
            with self.assertRaises(lintel.Cancelled):
                await reader
            generation = client.generate([1], model="tokens", max_new_tokens=LONG)
            await client.close()
            with self.assertRaises(lintel.Cancelled):
                await generation.samples()
            with self.assertRaises(lintel.Cancelled):
                await client.models()
            with self.assertRaises(lintel.Cancelled):
                client.generate([1])
        self.run_async(body)
        self.check_freed()


if __name__ == "__main__":
    unittest.main()
