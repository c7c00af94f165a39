# SPDX-License-Identifier: Apache-2.0
"""Sessions: state that lives between calls, and ends with its block."""

import unittest

import lintel
import numpy as np

from serving import PATIENCE, ServedTest, run_async

LONG = 1_000_000  # tokens: more than any test reads, and more than the server sends unread


class SessionTest(ServedTest):
    models = ("tokens", "bytes")

    def session(self):
        return self.client.session(model="tokens")

    def test_a_session_continued_is_one_call_however_it_is_cut(self):
        options = dict(seed=9, log2_probs=True)
        whole = self.client.generate([3, 1, 4], model="tokens", max_new_tokens=12,
                                     **options).samples()[0]
        with self.session() as session:
            samples = [session.generate([3, 1, 4], max_new_tokens=5, **options).samples()[0]]
            for count in (1, 6):
                samples += session.generate(max_new_tokens=count, **options).samples()
            for name in ("tokens", "log2_probs"):
                np.testing.assert_array_equal(
                    np.concatenate([getattr(s, name) for s in samples]), getattr(whole, name))
            self.assertGreater(samples[2].result.reused_tokens, 0)
            info = session.info()
            self.assertEqual((info.id, info.model, info.position, info.busy, info.has_pending_value),
                             (session.id, "tokens", 15, False, True))
            self.assertGreater(info.state_bytes, 0)
            self.assertLessEqual(info.create_time, info.last_used_time)
            self.assertGreater(info.idle_timeout.total_seconds(), 0)

    def test_a_session_keeps_the_adapter_it_was_made_with(self):
        options = dict(seed=9, log2_probs=True)

        def alone(adapter):
            return self.client.generate([3, 1, 4], model="tokens", adapter=adapter, max_new_tokens=7,
                                        **options).samples()[0]

        (thin,) = self.client.model("tokens").adapters
        self.assertEqual((thin.name, thin.rank, thin.modules), ("thin", 2, 14))
        with self.client.session(model="tokens", adapter="thin") as session:
            self.assertEqual(session.info().adapter, "thin")
            parts = [session.generate([3, 1, 4], max_new_tokens=3, **options).samples()[0],
                     session.generate(max_new_tokens=4, adapter="thin", **options).samples()[0]]
            log2_probs = np.concatenate([part.log2_probs for part in parts])
        np.testing.assert_array_equal(log2_probs, alone("thin").log2_probs)
        self.assertFalse(np.array_equal(log2_probs, alone("").log2_probs))
        sequence = [3, 1, 4, *alone("thin").tokens]
        scores = {adapter: self.client.score([sequence], model="tokens", adapter=adapter)[0]
                  for adapter in ("", "thin")}
        np.testing.assert_array_equal(scores["thin"].log2_probs[2:], log2_probs)
        self.assertNotEqual(scores[""].bits_per_dim, scores["thin"].bits_per_dim)
        with self.assertRaises(lintel.NotFound) as refused:
            alone("nosuch")
        self.assertIn("it has thin", str(refused.exception))
        with self.session() as plain, self.assertRaises(lintel.InvalidArgument):
            plain.generate([1], adapter="thin", max_new_tokens=1).samples()

    def test_a_session_is_forked_taken_back_and_read(self):
        options = dict(seed=9, log2_probs=True)
        with self.session() as session:
            session.generate([3, 1, 4], max_new_tokens=5, **options).samples()
            with session.fork() as fork, session.fork(position=4) as earlier:
                whole = session.generate(max_new_tokens=6, **options).samples()[0]
                again = fork.generate(max_new_tokens=6, **options).samples()[0]
                np.testing.assert_array_equal(again.log2_probs, whole.log2_probs)
                self.assertEqual(earlier.info().position, 4)
            forks = session.forks(3)
            self.assertEqual(len({fork.id for fork in forks}), 3)
            for fork in forks:
                fork.close()
            before = session.info().digest
            self.assertEqual(session.rewind(8, expected_digest=before).position, 8)
            with self.assertRaises(lintel.FailedPrecondition):
                session.rewind(3, expected_digest=before)
            again = session.generate(max_new_tokens=6, **options).samples()[0]
            np.testing.assert_array_equal(again.log2_probs, whole.log2_probs)
            self.assertEqual(again.result.replayed_tokens, 8)
            self.assertEqual(session.info().digest, before)
            first, *_, last = session.history()
            self.assertEqual((first.first_position, first.source, list(first.tokens)),
                             (0, lintel.Source.PROMPT, [3, 1, 4]))
            np.testing.assert_array_equal(last.tokens[-6:], whole.tokens)
            self.assertEqual(session.history(1, 2)[0].tokens, [1])

    def test_a_session_comes_back_from_a_snapshot(self):
        options = dict(seed=9, log2_probs=True)
        with self.session() as session:
            session.generate([3, 1, 4], max_new_tokens=5, **options).samples()
            snapshot = session.snapshot()
            self.assertLess(len(session.snapshot(without_state=True)), len(snapshot))
            whole = session.generate(max_new_tokens=6, **options).samples()[0]
            with self.client.restore_session(snapshot, verify=True) as again:
                sample = again.generate(max_new_tokens=6, **options).samples()[0]
                np.testing.assert_array_equal(sample.log2_probs, whole.log2_probs)
        with self.assertRaises(lintel.LintelError):
            self.client.restore_session(snapshot[:-1])
        self.assertEqual(self.client.list_sessions(), [])

    def test_sessions_and_calls_begin_with_a_named_state(self):
        with self.session() as session:
            session.generate([3, 1, 4], max_new_tokens=0).samples()
            state = session.save_state("saved")
            self.assertEqual((state.name, state.position), ("saved", 3))
            self.assertEqual([s.name for s in self.client.states()], ["saved"])
            expected = session.generate(max_new_tokens=6, seed=9).samples()[0].tokens
        once = self.client.generate(initial_state="saved", max_new_tokens=6, seed=9).samples()[0]
        np.testing.assert_array_equal(once.tokens, expected)
        with self.client.session(initial_state="saved", checkpoint_every=4, checkpoints=2) as session:
            self.assertEqual(session.info().position, 3)
        self.client.delete_state("saved")
        self.assertEqual(self.client.states(), [])

    def test_copies_from_asyncio(self):
        async def run():
            async with lintel.AsyncClient(self.server.address, timeout=PATIENCE) as client:
                async with client.session(model="tokens") as session:
                    await session.generate([3, 1, 4], max_new_tokens=5, seed=9).samples()
                    fork = await session.fork(position=4)
                    self.assertEqual((await fork.info()).position, 4)
                    self.assertEqual((await session.rewind(6)).position, 6)
                    self.assertEqual(sum(len(r.tokens) for r in await session.history()), 6)
                    again = await client.restore_session(await session.snapshot(), verify=True)
                    self.assertEqual((await again.info()).position, 6)
                    await session.save_state("async")
                    self.assertEqual([s.name for s in await client.states()], ["async"])
                    await client.delete_state("async")
                    await fork.close()
                    await again.close()

        run_async(run())

    def test_the_end_of_the_block_deletes_the_session(self):
        with self.session() as session, self.client.session(model="bytes") as other:
            self.assertEqual({s.id for s in self.client.list_sessions()}, {session.id, other.id})
            self.assertEqual([s.id for s in self.client.list_sessions(model="bytes")], [other.id])
        self.assertEqual(self.client.list_sessions(), [])
        with self.assertRaises(lintel.NotFound):
            session.info()
        session.close()  # again: it is gone, which is what was wanted
        with self.assertRaises(lintel.NotFound):
            self.client.delete_session(session.id)

    def test_the_block_ends_with_its_own_error(self):
        with self.assertRaisesRegex(KeyError, "mine"):
            with self.session() as session:
                self.client.delete_session(session.id)
                raise KeyError("mine")
        self.assertEqual(self.client.list_sessions(), [])

    def test_a_session_is_found_again_by_its_id(self):
        made = self.session()
        made.generate([3, 1, 4], max_new_tokens=2).samples()
        with self.client.attach_session(made.id) as again:
            sample = again.generate(max_new_tokens=2).samples()[0]
            self.assertEqual(sample.first_position, 5)
            by_name = self.client.generate(session=made.id, max_new_tokens=1).samples()[0]
            self.assertEqual(by_name.first_position, 7)
            with self.assertRaisesRegex(ValueError, "another session"):
                again.generate(session="other")
        self.assertEqual(self.client.list_sessions(), [])

    def test_a_session_continues_and_ends_while_the_server_still_ends_a_cancelled_call(self):
        with self.session() as session:
            for _ in range(10):
                for token in session.generate([1], max_new_tokens=LONG):
                    break
                # Tokens fed by then stay; nothing is lost or fed twice.
                sample = session.generate(max_new_tokens=3).samples()[0]
                self.assertGreater(sample.first_position, token.position)
                self.assertEqual(session.info().position, sample.first_position + 3)
            generation = session.generate(max_new_tokens=LONG)
        self.assertEqual(self.client.list_sessions(), [])
        with self.assertRaises(lintel.LintelError):
            list(generation)

    def test_two_calls_at_a_time_are_refused_at_once(self):
        with self.session() as session:
            first = session.generate([1], max_new_tokens=LONG)
            next(iter(tokens := iter(first)))
            other = self.client.attach_session(session.id)
            with self.assertRaises(lintel.Aborted):
                other.generate(max_new_tokens=1).samples()
            with self.assertRaises(lintel.Aborted):
                self.client.delete_session(session.id)
            del tokens


if __name__ == "__main__":
    unittest.main()
