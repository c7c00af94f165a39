# SPDX-License-Identifier: Apache-2.0
"""Generations without a bound end, and tokens before an error are kept."""

import concurrent.futures
import threading
import unittest

import grpc
import lintel
from lintel import FinishReason
from lintel.v1 import generation_pb2 as pb
from lintel.v1 import generation_pb2_grpc

from serving import ServedTest, run_async


class BoundTest(ServedTest):
    models = ("image", "bytes", "tokens")

    def both(self, *arguments, **options):
        """The samples of either kind of client."""
        async def asynchronous():
            async with lintel.AsyncClient(self.server.address) as client:
                return await client.generate(*arguments, **options).samples()
        samples = self.client.generate(*arguments, **options).samples()
        again = run_async(asynchronous())
        self.assertEqual([s.tokens.size for s in samples], [s.tokens.size for s in again])
        return samples

    def test_a_sequence_without_an_end_ends_after_256(self):
        (sample,) = self.both([1, 2], model="tokens")
        self.assertEqual(sample.tokens.size, 256)
        self.assertEqual(sample.result.finish_reason, FinishReason.LENGTH)
        for prompt in ("text", [65]):  # to a model of bytes
            with self.client.generate(prompt, model="bytes") as generation:
                self.assertEqual(generation._stream.request.max_new_tokens, 256)

    def test_an_image_goes_to_its_end(self):
        (sample,) = self.both(model="image")
        self.assertEqual(sample.result.finish_reason, FinishReason.END_OF_SEQUENCE)

    def test_the_limit_of_the_caller_holds(self):
        self.assertEqual(self.both([1], model="tokens", max_new_tokens=300)[0].tokens.size, 300)
        generation = self.client.generate([1], model="tokens", time_limit=0.3)
        self.assertEqual(generation.samples()[0].result.finish_reason, FinishReason.DEADLINE)
        self.assertFalse(generation._stream.request.HasField("max_new_tokens"))

    def test_a_session_ends_too(self):
        with self.client.session(model="tokens") as session:
            self.assertEqual(session.generate([1]).samples()[0].tokens.size, 256)
            self.assertEqual(session.generate().samples()[0].tokens.size, 256)


class Stuck(generation_pb2_grpc.GenerationServiceServicer):
    """Sends a few tokens and no more."""

    def Generate(self, request, context):
        yield pb.GenerateResponse(chunks=[pb.Chunk(first_position=1, tokens=[4, 5])])
        yield pb.GenerateResponse(
            chunks=[pb.Chunk(first_position=1, tokens=[6], sample=1)],
            finished=[pb.SampleFinish(sample=1, seed=9, reason=pb.FINISH_REASON_STOP_TOKEN)])
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait()


class PartialTest(unittest.TestCase):
    def setUp(self):
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(Stuck(), server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        self.addCleanup(server.stop, None)

    def check(self, error):
        self.assertRegex(str(error), r"DEADLINE_EXCEEDED.*the call had a timeout of 2 s")
        first, second = error.partial
        self.assertEqual(first.tokens.tolist(), [4, 5])
        self.assertEqual((first.first_position, first.result.position), (1, 3))
        self.assertEqual((first.result.seed, first.result.finish_reason), (8, FinishReason.DEADLINE))
        self.assertEqual(second.tokens.tolist(), [6])
        self.assertEqual((second.result.seed, second.result.finish_reason),
                         (9, FinishReason.STOP_TOKEN))

    def test_samples_that_time_out_are_in_the_error(self):
        options = dict(max_new_tokens=9, num_samples=2, seed=8)
        with lintel.Client(self.address, timeout=2) as client:
            with self.assertRaises(lintel.DeadlineExceeded) as raised:
                client.generate([1], **options).samples()
        self.check(raised.exception)

        async def asynchronous():
            async with lintel.AsyncClient(self.address, timeout=2) as client:
                await client.generate([1], **options).samples()
        with self.assertRaises(lintel.DeadlineExceeded) as raised:
            run_async(asynchronous())
        self.check(raised.exception)

    def test_other_errors_have_nothing(self):
        with lintel.Client("127.0.0.1:1", retry=None) as client:
            with self.assertRaises(lintel.Unavailable) as raised:
                client.generate([1]).samples()
        self.assertEqual(raised.exception.partial, [])


if __name__ == "__main__":
    unittest.main()
