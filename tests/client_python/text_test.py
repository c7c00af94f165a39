# SPDX-License-Identifier: Apache-2.0
"""Text of a model whose tokens have several bytes."""

import unittest

import lintel
from lintel import FinishReason
from lintel.retry import Repeat
from lintel.v1 import generation_pb2 as pb
from serving import ServedTest, run_async

LONG = {token: 100.0 for token in range(257, 289)}  # tokens of several bytes, parts of characters too


class TextTest(ServedTest):
    models = ("bytes", "tokens", "world")

    def test_text_is_ids_and_back(self):
        text = "Hello, wörld! there 你好"
        ids = self.client.tokenize(text, model="world")
        self.assertLess(len(ids), len(text.encode()))
        self.assertEqual(self.client.detokenize(ids, model="world"), text)
        self.assertEqual(self.client.tokenize(b"a\xff", model="bytes"), [97, 255])
        with self.assertRaises(lintel.FailedPrecondition):
            self.client.tokenize("a", model="tokens")
        with self.assertRaises(lintel.InvalidArgument) as caught:
            self.client.detokenize([1, 300], model="world")
        self.assertEqual([v.field for v in caught.exception.violations], ["ids[1]"])

        async def both():
            async with lintel.AsyncClient(self.server.address) as client:
                return await client.detokenize(await client.tokenize(text, model="world"),
                                               model="world")
        self.assertEqual(run_async(both()), text)
        model = self.client.model("world")
        self.assertEqual((model.tokenizer, model.eos_tokens), ("World", (0,)))

    def test_text_streams_in_whole_characters(self):
        call = dict(model="world", max_new_tokens=60, seed=5, logit_bias=LONG)
        (sample,) = self.client.generate("Hello", **call).samples()
        self.assertEqual(len(sample.token_bytes), 60)
        self.assertEqual(sample.text, b"".join(sample.token_bytes))
        generation = self.client.generate("Hello", **call)
        pieces = [token.text for token in generation]
        whole = sample.text.decode(errors="replace")
        self.assertTrue(whole.startswith("".join(pieces)))
        self.assertLessEqual(len(whole) - len("".join(pieces)), 1)  # a character that is cut off
        self.assertIn("", pieces)
        self.assertEqual(generation.result.prompt_tokens,
                         len(self.client.tokenize("Hello", model="world")))

        async def streamed():
            async with lintel.AsyncClient(self.server.address) as client:
                return [token.text async for token in client.generate("Hello", **call)]
        self.assertEqual(run_async(streamed()), pieces)

    def test_text_comes_after_ids_where_it_is_asked_for(self):
        call = dict(model="world", max_new_tokens=5, seed=5)
        ids = self.client.tokenize("Hello", model="world")
        self.assertEqual([t.text for t in self.client.generate(ids, **call)], [""] * 5)
        (by_ids,) = self.client.generate(ids, text=True, **call).samples()
        (by_text,) = self.client.generate("Hello", **call).samples()
        self.assertEqual(by_ids.text, by_text.text)

    def test_a_stop_string_ends_the_text_inside_of_a_token(self):
        call = dict(model="world", max_new_tokens=60, seed=5, logit_bias=LONG)
        (whole,) = self.client.generate("Hello", **call).samples()
        begin = len(b"".join(whole.token_bytes[:6])) - 1
        stop = whole.text[begin:begin + 7]
        self.assertEqual(whole.text.index(stop), begin)
        (sample,) = self.client.generate("Hello", stop=stop, **call).samples()
        self.assertEqual(sample.text, whole.text[:begin])
        self.assertEqual(sample.result.finish_reason, FinishReason.STOP_STRING)
        self.assertEqual(sample.result.stop_string, stop)

    def test_special_tokens_are_what_the_call_says(self):
        def prompt_tokens(**options):
            (sample,) = self.client.generate("<|endoftext|>a", model="world", max_new_tokens=1,
                                             **options).samples()
            return sample.result.prompt_tokens
        self.assertEqual(prompt_tokens(), prompt_tokens(add_special=False))
        request = self.client.generate("a", model="world", max_new_tokens=1, add_special=False,
                                       parse_special=True)._stream.request
        self.assertTrue(request.parse_special)
        self.assertTrue(request.HasField("add_special"))
        self.assertFalse(request.add_special)

    def test_scores_of_texts_have_their_tokens(self):
        text = "there you are"
        (score,) = self.client.score([text], model="world")
        ids = self.client.tokenize(text, model="world", add_special=True)
        self.assertEqual(score.tokens.tolist(), ids)
        self.assertEqual(b"".join(score.token_bytes).decode(), text)
        (by_ids,) = self.client.score([ids], model="world")
        self.assertEqual(score.bits_per_dim, by_ids.bits_per_dim)
        self.assertEqual(by_ids.token_bytes, ())


class RepeatTest(unittest.TestCase):
    def test_a_repeat_cuts_what_was_seen_with_all_that_is_parallel(self):
        repeat = Repeat(pb.GenerateRequest(), patience=1.0)

        def chunk(first):
            return pb.GenerateResponse(chunks=[pb.Chunk(
                first_position=first, tokens=[1, 2, 3], log2_probs=[-1, -2, -3],
                top=[pb.TopValues(tokens=[i]) for i in (1, 2, 3)],
                token_bytes=[b"a", b"b", b"c"])])
        self.assertTrue(repeat.take(chunk(4)))
        again = chunk(5)
        self.assertTrue(repeat.take(again))
        (cut,) = again.chunks
        self.assertEqual((list(cut.tokens), list(cut.log2_probs), list(cut.token_bytes)),
                         ([3], [-3], [b"c"]))
        self.assertEqual([t.tokens[0] for t in cut.top], [3])


if __name__ == "__main__":
    unittest.main()
