# SPDX-License-Identifier: Apache-2.0
"""Calls that are sent again and calls that are not, with servers that refuse and break on purpose."""

import asyncio
import concurrent.futures
import os
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock

import grpc
import lintel
from google.protobuf import any_pb2, empty_pb2
from lintel import RetryPolicy
from lintel import _foreign_pb2 as foreign
from lintel.retry import Attempts
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import generation_pb2_grpc, session_pb2, session_pb2_grpc

from serving import PATIENCE, Server, run_async

QUICK = RetryPolicy(max_attempts=4, initial_backoff=0.001, max_backoff=0.002)


def refusal(code, retry_delay=None, reason="", **facts):
    """Ends a call as the server does."""
    details = []
    if retry_delay is not None:
        retry = foreign.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(retry_delay * 1e9))
        details.append(("RetryInfo", retry))
    if reason:
        details.append(("ErrorInfo", foreign.ErrorInfo(reason=reason, metadata=facts)))

    def end(context):
        if details:
            status = foreign.Status(code=code.value[0], details=[any_pb2.Any(
                type_url=f"type.googleapis.com/google.rpc.{name}",
                value=detail.SerializeToString()) for name, detail in details])
            context.set_trailing_metadata(
                (("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(code, "on purpose")
    return end


class FakeServer(generation_pb2_grpc.GenerationServiceServicer,
                 session_pb2_grpc.SessionServiceServicer):
    """Plays a script: a step for each call, None for a good answer. After it all are good."""

    def __init__(self):
        self.script = []
        self.calls = []  # (time, request, metadata)
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self, self.server)
        session_pb2_grpc.add_SessionServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def _play(self, request, context):
        self.calls.append((time.monotonic(), request, dict(context.invocation_metadata())))
        step = self.script.pop(0) if self.script else None
        if step is not None:
            step(context)

    def Generate(self, request, context):
        self._play(request, context)
        yield pb.GenerateResponse(chunks=[pb.Chunk(tokens=[1, 2])])
        self._play(request, context)
        yield pb.GenerateResponse(chunks=[pb.Chunk(first_position=2, tokens=[3])],
                                  finished=[pb.SampleFinish(seed=5)])

    def Score(self, request, context):
        self._play(request, context)
        yield pb.ScoreResponse(log2_probs=[-1], bits_per_dim=1)

    def Create(self, request, context):
        self._play(request, context)
        return session_pb2.Session(id="made")

    def Delete(self, request, context):
        self._play(request, context)
        return empty_pb2.Empty()


FULL = refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, 0.001)
DRAINING = refusal(grpc.StatusCode.UNAVAILABLE, 0.001)
GONE = refusal(grpc.StatusCode.UNAVAILABLE)
TOO_LARGE = refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)
LATER = refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, PATIENCE / 2)
BUSY = refusal(grpc.StatusCode.ABORTED)
LOST = refusal(grpc.StatusCode.NOT_FOUND)


class SyncCalls:
    """The calls of a Client."""

    def setUp(self):
        self.fake = FakeServer()
        self.addCleanup(self.fake.server.stop, None)

    def run_with(self, body, retry=QUICK, timeout=PATIENCE):
        with lintel.Client(self.fake.address, retry=retry, timeout=timeout) as client:
            return body(client)

    def generate(self, **options):
        return self.run_with(lambda c: [t.token for t in c.generate([1], **options)])

    def score(self):
        return self.run_with(lambda c: c.score([[1, 2]])[0].bits_per_dim)

    def create(self):
        return self.run_with(lambda c: c.session().id)

    def delete(self):
        return self.run_with(lambda c: c.delete_session("it"))


class AsyncCalls(SyncCalls):
    """The same of an AsyncClient."""

    def run_with(self, body, retry=QUICK, timeout=PATIENCE):
        async def main():
            async with lintel.AsyncClient(self.fake.address, retry=retry,
                                          timeout=timeout) as client:
                return await body(client)
        return run_async(main())

    def generate(self, **options):
        async def body(client):
            return [t.token async for t in client.generate([1], **options)]
        return self.run_with(body)

    def score(self):
        async def body(client):
            return (await client.score([[1, 2]]))[0].bits_per_dim
        return self.run_with(body)

    def create(self):
        async def body(client):
            return (await client.session()).id
        return self.run_with(body)


class RetryTests:
    def begun_waits(self):
        """An event that is set when a call that was refused begins to wait."""
        started = threading.Event()
        delay_after = Attempts.delay_after

        def seen(attempts, error):
            delay = delay_after(attempts, error)
            started.set()
            return delay
        self.enterContext(unittest.mock.patch.object(Attempts, "delay_after", seen))
        return started

    def refused(self, call, error, script):
        self.fake.script = list(script)
        self.fake.calls.clear()
        with self.assertRaises(error):
            call()
        return len(self.fake.calls)

    def test_refusals_are_tried_again_with_the_same_request_and_id(self):
        for call, expected in ((self.generate, [1, 2, 3]), (self.score, 1.0),
                               (self.create, "made"), (self.delete, None)):
            self.fake.script = [FULL, DRAINING, GONE]
            self.fake.calls.clear()
            self.assertEqual(call(), expected)
            self.assertGreaterEqual(len(self.fake.calls), 4)
            _, requests, metadata = zip(*self.fake.calls)
            self.assertTrue(all(r == requests[0] for r in requests))
            self.assertEqual(len({m["x-request-id"] for m in metadata}), 1)

    def test_the_servers_wait_is_waited_out(self):
        self.fake.script = [refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, 0.3),
                            refusal(grpc.StatusCode.UNAVAILABLE, 0.4)]
        self.generate()
        at = [call[0] for call in self.fake.calls]
        self.assertGreaterEqual(at[1] - at[0], 0.3)
        self.assertGreaterEqual(at[2] - at[1], 0.4)

    def test_attempts_are_counted(self):
        self.assertEqual(self.refused(self.generate, lintel.ResourceExhausted, [FULL] * 9), 4)
        self.assertEqual(self.refused(self.create, lintel.Unavailable, [GONE] * 9), 4)

    def test_a_wait_past_the_timeout_is_not_begun(self):
        before = time.monotonic()
        script = [refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, 2 * PATIENCE)]
        self.assertEqual(self.refused(self.generate, lintel.ResourceExhausted, script), 1)
        self.assertLess(time.monotonic() - before, PATIENCE)

    def test_other_errors_stand(self):
        self.assertEqual(self.refused(self.generate, lintel.ResourceExhausted, [TOO_LARGE]), 1)
        self.assertEqual(self.refused(self.generate, lintel.Aborted, [BUSY]), 1)
        self.assertEqual(self.refused(self.delete, lintel.NotFound, [LOST]), 1)

    def test_nothing_is_delivered_twice(self):
        for broken in (DRAINING, GONE, FULL):
            calls = self.refused(self.generate, lintel.LintelError, [None, broken])
            self.assertEqual(calls, 2)  # the two steps of one call

    def test_a_session_is_tried_again_only_where_it_cannot_have_advanced(self):
        def session():
            return self.generate(session="it")
        self.fake.script = [FULL, FULL]
        self.assertEqual(session(), [1, 2, 3])
        self.assertEqual(self.refused(session, lintel.Unavailable, [DRAINING]), 1)
        self.assertEqual(self.refused(session, lintel.Unavailable, [GONE]), 1)

    def test_a_delete_whose_answer_was_lost_has_deleted(self):
        self.fake.script = [GONE, LOST]
        self.assertIsNone(self.delete())


class SyncRetryTest(SyncCalls, RetryTests, unittest.TestCase):
    def test_no_policy_means_no_retry(self):
        def call():
            self.run_with(lambda c: c.session(), retry=None)
        self.assertEqual(self.refused(call, lintel.ResourceExhausted, [FULL]), 1)

    def test_a_session_waits_for_its_own_call_that_was_cut_short_and_for_no_other(self):
        def body(client):
            session = client.attach_session("it")
            for _ in session.generate([1]):
                break
            self.fake.script = [BUSY] * 6  # more than the policy has attempts
            self.assertEqual(len(list(session.generate([1]))), 3)
            self.fake.script = [BUSY]
            with self.assertRaises(lintel.Aborted):
                list(session.generate([1]))
        self.run_with(body)

    def test_a_server_that_is_late_is_waited_for(self):
        directory = self.enterContext(tempfile.TemporaryDirectory())
        subprocess.run([os.environ["LINTEL_WRITE_TINY_MODELS"], directory], check=True)
        address = f"unix:{directory}/socket"
        with lintel.Client(address, timeout=PATIENCE, retry=QUICK) as client:
            with self.assertRaises(lintel.Unavailable):
                client.serving()
        patient = RetryPolicy(max_attempts=10**6, max_backoff=0.1)
        with lintel.Client(address, timeout=PATIENCE, retry=patient) as client:
            generation = client.generate([1], max_new_tokens=3)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                reader = pool.submit(generation.samples)
                server = Server([f"{directory}/tokens"], listen=address)
                try:
                    self.assertEqual(reader.result()[0].tokens.size, 3)
                finally:
                    self.assertEqual(server.stop(), 0)

    def closed_while_it_waits(self, start, close):
        """Calls close(client, start(client)) while what start gave, called, waits."""
        self.fake.script = [LATER]
        waits = self.begun_waits()
        before = time.monotonic()
        with lintel.Client(self.fake.address) as client:
            call = start(client)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                reader = pool.submit(getattr(call, "samples", call))
                self.assertTrue(waits.wait(PATIENCE))
                close(client, call)
                self.assertIsInstance(reader.exception(), lintel.Cancelled)
        self.assertLess(time.monotonic() - before, PATIENCE / 2)

    def test_closing_a_stream_ends_its_wait(self):
        self.closed_while_it_waits(lambda c: c.generate([1]), lambda _, call: call.close())

    def test_closing_the_client_ends_every_wait(self):
        for start in (lambda c: c.generate([1]), lambda c: lambda: c.score([[1, 2]]),
                      lambda c: c.session):
            self.closed_while_it_waits(start, lambda client, _: client.close())

    def test_a_stream_that_ends_early_is_no_success(self):
        def unfinished(request, context):
            yield pb.GenerateResponse(chunks=[pb.Chunk(tokens=[1])])
        self.fake.Generate = unfinished
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self.fake, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(server.stop, None)
        with lintel.Client(f"127.0.0.1:{port}") as client:
            with self.assertRaisesRegex(lintel.Internal, "before every sample"):
                list(client.generate([1]))


class AsyncRetryTest(AsyncCalls, RetryTests, unittest.TestCase):
    def closed_while_it_waits(self, start, close):
        """Calls close(client, start(client)), which are awaited, while the latter waits."""
        self.fake.script = [LATER]
        waits = self.begun_waits()

        async def body(client):
            call = start(client)
            reader = asyncio.ensure_future(getattr(call, "samples", lambda: call)())
            while not waits.is_set():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
            await close(client, call)
            with self.assertRaises(lintel.Cancelled):
                await reader
        before = time.monotonic()
        self.run_with(body, timeout=2 * PATIENCE)
        self.assertLess(time.monotonic() - before, PATIENCE / 2)

    def test_closing_a_stream_ends_its_wait(self):
        async def close(_, call):
            call.close()
        self.closed_while_it_waits(lambda c: c.generate([1]), close)

    def test_closing_the_client_ends_every_wait(self):
        async def make(client):
            return await client.session()
        for start in (lambda c: c.generate([1]), lambda c: c.score([[1, 2]]), make):
            self.closed_while_it_waits(start, lambda client, _: client.close())


class PolicyTest(unittest.TestCase):
    def test_waits_grow_to_their_bound_and_are_shortened_by_up_to_half(self):
        policy = RetryPolicy(initial_backoff=0.1, max_backoff=1.0, multiplier=3)
        longest = [policy.delay(attempt, None, 0.0) for attempt in range(1, 6)]
        for delay, expected in zip(longest, [0.1, 0.3, 0.9, 1.0, 1.0]):
            self.assertAlmostEqual(delay, expected)
        self.assertAlmostEqual(policy.delay(2, None, 0.999), 0.15, places=3)

    def test_a_servers_wait_is_never_shortened(self):
        policy = RetryPolicy()
        for jitter in (0.0, 0.5, 0.999):
            for attempt in range(1, 9):
                self.assertGreaterEqual(policy.delay(attempt, 3.0, jitter), 3.0)
        self.assertGreaterEqual(policy.delay(9, 0.001, 0.5), 0.75 * policy.max_backoff)

    def test_invalid_settings_are_refused(self):
        for options in (dict(max_attempts=0), dict(initial_backoff=0), dict(multiplier=0.5)):
            with self.assertRaises(ValueError):
                RetryPolicy(**options)

    def test_a_session_s_call_that_never_left_this_machine_is_tried_again(self):
        def delay(unreached):
            attempts = Attempts(QUICK, PATIENCE)
            attempts.changes_session = True
            return attempts.delay_after(
                lintel.Unavailable(grpc.StatusCode.UNAVAILABLE, "away", unreached=unreached))
        self.assertGreater(delay(True), 0)
        with self.assertRaises(lintel.Unavailable):
            delay(False)

    def test_time_left_is_never_nothing(self):
        self.assertGreater(Attempts(None, 1e-9).remaining(), 0)


if __name__ == "__main__":
    unittest.main()
