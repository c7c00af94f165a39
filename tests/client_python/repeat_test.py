# SPDX-License-Identifier: Apache-2.0
"""Calls on sessions that outlive the server, with one that is killed and started again on purpose."""

import asyncio
import concurrent.futures
import os
import subprocess
import tempfile
import threading
import time
import unittest

import grpc
import lintel
from lintel import Durability, RetryPolicy
from lintel.retry import Repeat
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import generation_pb2_grpc, session_pb2, session_pb2_grpc

from retry_test import BUSY, FULL, GONE, refusal
from serving import PATIENCE, Server, run_async

COUNT = 6
CANCELLED = refusal(grpc.StatusCode.CANCELLED)
POLICY = RetryPolicy(max_attempts=3, initial_backoff=0.001, max_backoff=0.002, repeat_for=PATIENCE)


def token_of(seed, position):
    return hash((seed, position)) % 251


class DurableServer(generation_pb2_grpc.GenerationServiceServicer,
                    session_pb2_grpc.SessionServiceServicer):
    """Tokens are a function of seed and position. `kill_at`: after so many of them the next Generate
    waits for kill(). `script`: how the next ones end at once, or None;
    `get_script`: how the next Gets do.
    """

    def __init__(self):
        self.durability = session_pb2.DURABILITY_INPUT
        self.kill_at = None
        self.sends_from = 0  # positions that a repeat did not ask for are sent from here on
        self.script, self.get_script = [], []
        self.calls, self.gets, self.requests = [], 0, []
        self.port = 0
        self.start()

    def start(self):
        self.killed = threading.Event()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self, self.server)
        session_pb2_grpc.add_SessionServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        self.server.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def kill(self):
        stopped = self.server.stop(None)
        self.killed.set()
        stopped.wait()

    def Generate(self, request, context):
        self.calls.append(pb.GenerateRequest.FromString(request.SerializeToString()))
        step = self.script.pop(0) if self.script else None
        if step is not None:
            step(context)
        kill_at, self.kill_at = self.kill_at, None
        first = max(2, min(request.from_position, self.sends_from or request.from_position))
        seed = request.sampling.seed
        for sent, position in enumerate(range(first, 2 + COUNT), 1):
            yield pb.GenerateResponse(chunks=[pb.Chunk(
                first_position=position, tokens=[token_of(seed, position)], log2_probs=[-position],
                top=[pb.TopValues(tokens=[position], log2_probs=[-1])])])
            if sent == kill_at:
                self.killed.wait(PATIENCE)
                context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
        yield pb.GenerateResponse(finished=[pb.SampleFinish(seed=seed, position=2 + COUNT)])

    def _session(self):
        return session_pb2.Session(id="it", durability=self.durability, numerics_changed_at=45)

    def Get(self, request, context):
        self.gets += 1
        if self.get_script:
            self.get_script.pop(0)(context)
        return self._session()

    def Create(self, request, context):
        self.requests.append(request)
        return self._session()

    def Fork(self, request, context):
        self.requests.append(request)
        return session_pb2.ForkSessionResponse(sessions=[self._session()])

    def Restore(self, requests, context):
        self.requests.append([request for request in requests][0].header)
        return self._session()


class SyncCalls:
    def read(self, on_token=lambda tokens: None, session="it", retry=POLICY, timeout=PATIENCE):
        """(tokens, result, error) of one call."""
        tokens = []
        with lintel.Client(self.fake.address, retry=retry, timeout=timeout) as client:
            generation = client.generate([0, 7], session=session, max_new_tokens=COUNT,
                                         log2_probs=True, top_log2_probs=1)
            try:
                for token in generation:
                    tokens.append(token)
                    on_token(tokens)
            except lintel.LintelError as error:
                return tokens, None, error
            return tokens, generation.result, None


class AsyncCalls(SyncCalls):
    def read(self, on_token=lambda tokens: None, session="it", retry=POLICY, timeout=PATIENCE):
        async def main():
            tokens = []
            async with lintel.AsyncClient(self.fake.address, retry=retry, timeout=timeout) as client:
                generation = client.generate([0, 7], session=session, max_new_tokens=COUNT,
                                             log2_probs=True, top_log2_probs=1)
                try:
                    async for token in generation:
                        tokens.append(token)
                        on_token(tokens)
                except lintel.LintelError as error:
                    return tokens, None, error
                return tokens, generation.result, None
        return run_async(main())


class RepeatTests:
    def setUp(self):
        self.fake = DurableServer()
        self.addCleanup(lambda: self.fake.kill())

    def check_whole(self, got):
        tokens, result, error = got
        self.assertIsNone(error)
        self.assertEqual([t.position for t in tokens], list(range(2, 2 + COUNT)))
        self.assertEqual([t.token for t in tokens],
                         [token_of(result.seed, p) for p in range(2, 2 + COUNT)])
        self.assertEqual([t.log2_prob for t in tokens], [-p for p in range(2, 2 + COUNT)])
        self.assertEqual([t.top[0].token for t in tokens], list(range(2, 2 + COUNT)))

    def killed_at(self, count):
        def on_token(tokens):
            if len(tokens) == count and len(self.fake.calls) == 1:
                self.fake.kill()
                self.fake.start()
        self.fake.kill_at = count
        self.fake.calls.clear()
        return self.read(on_token)

    def test_a_call_killed_at_any_token_is_repeated_and_yields_each_position_once(self):
        for count in range(1, COUNT + 1):
            with self.subTest(count=count):
                self.check_whole(self.killed_at(count))
                first, second = self.fake.calls
                self.assertEqual(second.from_position, 2 + count)
                second.from_position = first.from_position
                self.assertEqual(first, second)
                self.assertEqual(len(first.call_id), 32)
                self.assertTrue(first.sampling.HasField("seed"))

    def test_tokens_sent_twice_are_yielded_once(self):
        self.fake.sends_from = 2
        self.check_whole(self.killed_at(3))

    def test_a_transient_error_is_waited_out_in_a_repeat(self):
        self.fake.script = [GONE, BUSY, FULL]
        self.check_whole(self.read())
        self.assertEqual(len(self.fake.calls), 4)

    def test_a_call_that_a_server_cancels_as_one_that_ends_does_is_repeated(self):
        for script in ([CANCELLED], [CANCELLED, BUSY, CANCELLED]):
            self.fake.script = list(script)
            self.fake.calls.clear()
            self.check_whole(self.read())
            self.assertEqual(len(self.fake.calls), len(script) + 1)
            self.assertEqual(len({call.call_id for call in self.fake.calls}), 1)

    def test_a_server_that_cancels_ever_again_is_given_up_with_its_word(self):
        self.fake.script = [CANCELLED] * 1000
        error = self.read(retry=RetryPolicy(repeat_for=0.3))[2]
        self.assertIsInstance(error, lintel.Cancelled)
        self.assertIn("on purpose", str(error))

    def test_a_permanent_error_ends_it_with_its_reason(self):
        for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DATA_LOSS,
                     grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
            self.fake.script = [GONE, refusal(code)]
            self.assertIs(self.read()[2].code, code)
        self.fake.script = [BUSY]  # of a first try: another call holds the session
        self.assertIsInstance(self.read()[2], lintel.Aborted)

    def test_a_refusal_says_why_by_name(self):
        self.fake.script = [refusal(grpc.StatusCode.FAILED_PRECONDITION, reason="POSITION_MISMATCH",
                                    position="120")]
        error = self.read()[2]
        self.assertEqual(error.reason, "POSITION_MISMATCH")
        self.assertEqual(error.facts, {"position": "120"})
        self.fake.script = [BUSY]
        error = self.read()[2]
        self.assertEqual((error.reason, error.facts), ("", {}))

    def test_a_session_that_a_server_that_is_gone_holds_is_waited_for(self):
        self.fake.script = [refusal(grpc.StatusCode.ABORTED, reason="SESSION_HELD")]
        self.check_whole(self.read())

    def test_other_calls_are_never_repeated(self):
        for durability, session in ((session_pb2.DURABILITY_NONE, "it"),
                                    (session_pb2.DURABILITY_TOKEN, "")):
            self.fake.durability = durability
            self.fake.calls.clear()
            self.fake.script = [None]
            self.fake.kill_at = 1
            tokens, _, error = self.read(lambda tokens: self.fake.killed.set(), session=session)
            self.assertEqual(len(tokens), 1)
            self.assertIsInstance(error, lintel.Unavailable)
            self.assertEqual(len(self.fake.calls), 1)
            self.assertEqual(self.fake.calls[0].call_id, "")
            self.fake.killed.clear()
        self.fake.durability = session_pb2.DURABILITY_NONE
        self.fake.calls.clear()
        self.fake.script = [CANCELLED]
        self.assertIsInstance(self.read()[2], lintel.Cancelled)
        self.assertEqual(len(self.fake.calls), 1)

    def test_a_server_that_stays_away_is_given_up(self):
        self.fake.kill_at = 2
        def on_token(tokens):
            if len(tokens) == 2:
                self.fake.kill()
        start = time.monotonic()
        tokens, _, error = self.read(on_token, retry=RetryPolicy(repeat_for=0.5))
        self.assertIsInstance(error, lintel.Unavailable)
        self.assertEqual([t.position for t in tokens], [2, 3])
        self.assertGreaterEqual(time.monotonic() - start, 0.5)

    def test_nothing_is_repeated_or_asked_without_a_policy(self):
        for retry in (None, RetryPolicy(repeat_for=0)):
            self.fake.script = [GONE]
            self.fake.calls.clear()
            self.assertIsInstance(self.read(retry=retry)[2], lintel.Unavailable)
            self.assertEqual(len(self.fake.calls), 1)
        self.assertEqual(self.fake.gets, 0)

    def test_the_timeout_bounds_it(self):
        self.fake.script = [GONE] * 1000
        start = time.monotonic()
        self.assertIsNotNone(self.read(timeout=0.5)[2])
        self.assertLess(time.monotonic() - start, PATIENCE / 2)


class SyncRepeatTest(SyncCalls, RepeatTests, unittest.TestCase):
    def test_the_server_is_asked_once_and_not_about_sessions_that_were_made_here(self):
        with lintel.Client(self.fake.address, retry=POLICY, timeout=PATIENCE) as client:
            session = client.attach_session("it")
            for _ in range(2):
                session.generate([1], max_new_tokens=COUNT).samples()
                self.assertEqual(self.fake.gets, 1)
        for make in (lambda c: c.session(), lambda c: c.restore_session(b"x"),
                     lambda c: c.attach_session("x").fork()):
            with lintel.Client(self.fake.address, retry=POLICY, timeout=PATIENCE) as client:
                make(client).generate([1], max_new_tokens=COUNT).samples()
        self.assertEqual(self.fake.gets, 1)
        self.assertEqual(len({call.call_id for call in self.fake.calls}), 5)

    def test_sessions_set_and_report_their_durability(self):
        with lintel.Client(self.fake.address, retry=POLICY, timeout=PATIENCE) as client:
            session = client.session(durability=Durability.TOKEN, expire_after=1.5)
            session.fork(durability=Durability.CALL)
            client.restore_session(b"x", durability=Durability.NONE)
            client.session()
            created, forked, restored, plain = self.fake.requests
            self.assertEqual(created.durability, session_pb2.DURABILITY_TOKEN)
            self.assertEqual(created.expire_after.ToMilliseconds(), 1500)
            self.assertEqual(forked.durability, session_pb2.DURABILITY_CALL)
            self.assertEqual(restored.durability, session_pb2.DURABILITY_NONE)
            self.assertEqual(plain, session_pb2.CreateSessionRequest())
            info = session.info()
            self.assertIs(info.durability, Durability.INPUT)
            self.assertFalse(info.in_memory)
            self.assertIsNone(info.interrupted)
            self.assertEqual(info.numerics_changed_at, 45)


    def test_a_call_cancelled_here_is_not_repeated(self):
        for close in (lambda client, generation: client.close(),
                      lambda client, generation: generation.close()):
            self.fake.calls.clear()
            self.fake.kill_at = 1
            with lintel.Client(self.fake.address, retry=POLICY, timeout=PATIENCE) as client:
                generation = client.generate([0, 7], session="it", max_new_tokens=COUNT)
                tokens = iter(generation)
                next(tokens)
                threading.Thread(target=close, args=(client, generation)).start()
                with self.assertRaises(lintel.Cancelled):
                    next(tokens)
            self.assertEqual(len(self.fake.calls), 1)


class AsyncRepeatTest(AsyncCalls, RepeatTests, unittest.TestCase):
    def test_a_call_cancelled_here_is_not_repeated(self):
        async def main(end, error):
            self.fake.calls.clear()
            self.fake.kill_at = 1
            async with lintel.AsyncClient(self.fake.address, retry=POLICY) as client:
                generation = client.generate([0, 7], session="it", max_new_tokens=COUNT)
                tokens = aiter(generation)
                await anext(tokens)
                rest = asyncio.ensure_future(anext(tokens))
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # it reads
                await end(client, generation, rest)
                with self.assertRaises(error):
                    await rest
            self.assertEqual(len(self.fake.calls), 1)

        async def cancel(client, generation, rest):
            rest.cancel()

        async def close(client, generation, rest):
            generation.close()

        async def close_all(client, generation, rest):
            await client.close()

        run_async(main(cancel, asyncio.CancelledError))
        run_async(main(close, lintel.Cancelled))
        run_async(main(close_all, lintel.Cancelled))

    def test_the_server_is_asked_once(self):
        async def main():
            async with lintel.AsyncClient(self.fake.address, retry=POLICY) as client:
                session = client.attach_session("it")
                for _ in range(2):
                    await session.generate([1], max_new_tokens=COUNT).samples()
                async with client.session(durability=Durability.TOKEN) as made:
                    await made.generate([1], max_new_tokens=COUNT).samples()
        try:
            run_async(main())
        except lintel.LintelError as error:  # the fake deletes nothing
            self.assertIs(error.code, grpc.StatusCode.UNIMPLEMENTED)
        self.assertEqual(self.fake.gets, 1)
        self.assertEqual(self.fake.requests[0].durability, session_pb2.DURABILITY_TOKEN)


class KilledServerTest(unittest.TestCase):
    """The real one, in the middle of a call."""

    COUNT = 10000

    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())
        subprocess.run([os.environ["LINTEL_WRITE_TINY_MODELS"], self.directory], check=True)
        self.start()
        self.addCleanup(lambda: self.server.stop())

    def start(self):
        self.server = Server([f"{self.directory}/tokens"],
                             ["--session-store", f"{self.directory}/store"],
                             f"unix:{self.directory}/socket")

    def kill(self):
        self.server.process.kill()
        self.server.stop()
        self.start()

    def check(self, killed, undisturbed):
        self.assertEqual(len(undisturbed), self.COUNT)
        self.assertEqual(killed, undisturbed)

    def options(self):
        return dict(seed=4, max_new_tokens=self.COUNT, log2_probs=True)

    def test_a_call_continues_over_it(self):
        with lintel.Client(self.server.address, timeout=PATIENCE) as client:
            for durability in (Durability.CALL, Durability.INPUT, Durability.TOKEN):
                with client.session(durability=durability) as session, \
                        client.session(durability=Durability.NONE) as twin:
                    undisturbed = list(twin.generate([3, 1, 4], **self.options()))
                    tokens = []
                    for token in session.generate([3, 1, 4], **self.options()):
                        tokens.append(token)
                        if len(tokens) == 10:
                            self.kill()
                    self.check(tokens, undisturbed)
                    self.assertEqual(session.info().position, 3 + self.COUNT)

    def test_a_call_of_asyncio_continues_over_it(self):
        async def main():
            async with lintel.AsyncClient(self.server.address, timeout=PATIENCE) as client:
                session, twin = await client.session(), await client.session()
                undisturbed = [t async for t in twin.generate([3, 1, 4], **self.options())]
                tokens = []
                async for token in session.generate([3, 1, 4], **self.options()):
                    tokens.append(token)
                    if len(tokens) == 10:
                        self.kill()
                return tokens, undisturbed
        self.check(*run_async(main()))


class PositionsTest(unittest.TestCase):
    def test_positions_that_are_left_out_are_an_error(self):
        repeat = Repeat(pb.GenerateRequest(), 1.0)
        self.assertTrue(repeat.take(pb.GenerateResponse(
            chunks=[pb.Chunk(first_position=4, tokens=[1, 2])])))
        self.assertFalse(repeat.take(pb.GenerateResponse(
            chunks=[pb.Chunk(first_position=5, tokens=[2])])))
        with self.assertRaisesRegex(lintel.Internal, "from position 6 to 6"):
            repeat.take(pb.GenerateResponse(chunks=[pb.Chunk(first_position=7, tokens=[4])]))

    def test_pauses_double_to_two_seconds_and_end_with_patience(self):
        repeat = Repeat(pb.GenerateRequest(), 1000.0)
        away = lintel.Unavailable(grpc.StatusCode.UNAVAILABLE, "away")
        for expected in (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
            self.assertAlmostEqual(repeat.delay_after(away), expected, delta=0.2 * expected + 1e-9)
        with self.assertRaises(lintel.Unavailable):
            Repeat(pb.GenerateRequest(), 0.0).delay_after(away)


if __name__ == "__main__":
    unittest.main()
