# SPDX-License-Identifier: Apache-2.0
"""A stream that its client stops reading ends on the server too, and its slot is free."""

import gc
import threading
import unittest

import lintel

from serving import ServedTest, eventually

LONG = 1_000_000  # tokens: more than any test reads, and more than the server sends unread


class CancelTest(ServedTest):
    models = ("tokens",)

    def setUp(self):
        super().setUp()
        self.cancelled = self.server.metric("lintel_cancellations_total")
        gc.disable()  # objects are freed here by their last reference
        self.addCleanup(gc.enable)

    def generate(self):
        return self.client.generate([1], max_new_tokens=LONG)

    def check_freed(self, calls=1):
        eventually(lambda: self.server.metric("lintel_requests_running") == 0, "a free slot")
        eventually(lambda: self.server.metric("lintel_cancellations_total") ==
                   self.cancelled + calls, "the count of cancellations")

    def test_leaving_the_loop(self):
        generation = self.generate()  # the name lives on
        for token in generation:
            if token.position > 100:
                break
        self.check_freed()
        with self.assertRaises(lintel.Cancelled):
            list(generation)
        del generation

    def test_an_error_in_the_loop(self):
        with self.assertRaises(KeyError):
            for token in self.generate():
                raise KeyError(token)
        self.check_freed()

    def test_close(self):
        generation = self.generate()
        generation.close()
        generation.close()
        with self.assertRaises(lintel.Cancelled):
            generation.samples()
        eventually(lambda: self.server.metric("lintel_requests_running") == 0, "a free slot")

    def test_close_from_another_thread(self):
        generation = self.generate()
        tokens = iter(generation)
        next(tokens)
        closer = threading.Thread(target=generation.close)
        closer.start()
        with self.assertRaises(lintel.Cancelled):
            for _ in tokens:
                pass
        closer.join()
        self.check_freed()

    def test_the_end_of_a_block(self):
        with self.generate() as generation:
            next(iter(tokens := iter(generation)))
        self.check_freed()
        del tokens

    def test_a_stream_that_is_dropped(self):
        generation = self.generate()
        eventually(lambda: self.server.metric("lintel_requests_running") == 1)
        del generation
        self.check_freed()

    def test_the_end_of_the_client(self):
        client = lintel.Client(self.server.address)
        generation = client.generate([1], max_new_tokens=LONG)
        eventually(lambda: self.server.metric("lintel_requests_running") == 1)
        client.close()
        with self.assertRaises(lintel.Cancelled):
            generation.samples()
        self.check_freed()
        with self.assertRaisesRegex(lintel.Cancelled, "closed"):
            client.serving()
        with self.assertRaisesRegex(lintel.Cancelled, "closed"):
            client.generate([1])

    def test_a_timeout(self):
        with self.assertRaises(lintel.DeadlineExceeded):
            tokens = iter(self.client.generate([1], max_new_tokens=LONG, timeout=0.5))
            next(tokens)
            threading.Event().wait(0.6)  # longer than the timeout, with the stream unread
            for _ in tokens:
                pass
        eventually(lambda: self.server.metric("lintel_requests_running") == 0, "a free slot")
        for timeout in (0, -1, float("inf"), float("nan")):
            with self.assertRaises(ValueError):
                self.client.serving(timeout=timeout)
            with self.assertRaises(ValueError):
                lintel.Client(timeout=timeout)


if __name__ == "__main__":
    unittest.main()
