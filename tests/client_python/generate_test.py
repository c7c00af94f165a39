# SPDX-License-Identifier: Apache-2.0
"""Generation: the tokens are those of the C++ command line, bit for bit."""

import unittest

import lintel
import numpy as np
from lintel import FinishReason, Source

from serving import ServedTest, eventually, run_async


class WindowTest(ServedTest):
    models = ("bytes", "text")

    def tokens(self, model, prompt, **options):
        (sample,) = self.client.generate(prompt, model=model, max_new_tokens=90, seed=5,
                                         **options).samples()
        return sample.tokens.tolist(), sample.result

    def test_a_window_is_the_servers_choice_unless_it_is_named_and_the_result_says_it(self):
        for prompt in ("Once", "a text that is longer than what the model was trained on" * 20):
            with self.subTest(len(prompt)):
                windowed, _ = self.tokens("bytes", prompt, window=32)
                chosen, result = self.tokens("text", prompt)
                self.assertEqual(chosen, windowed)
                self.assertEqual(result.window, 32)
                self.assertEqual(result.window_restarts, (len(prompt) + 90 - 1 - 32) // 16 + 1)
                self.assertEqual(result.prompt_tokens + result.skipped_tokens, len(prompt))
                self.assertLessEqual(result.prompt_tokens, 32)
        plain, _ = self.tokens("bytes", "Once")
        off, result = self.tokens("text", "Once", window=0)
        self.assertEqual(off, plain)
        self.assertEqual((result.window, result.window_restarts, result.skipped_tokens), (0, 0, 0))
        self.assertNotEqual(off, self.tokens("text", "Once")[0])

    def test_a_session_has_the_servers_choice_unless_it_is_made_with_another(self):
        for options, window in (({}, 32), ({"window": 16}, 16), ({"window": 0}, 0)):
            with self.subTest(window), self.client.session(model="text", **options) as session:
                self.assertEqual(session.info().window, window)
                (sample,) = session.generate("Once", max_new_tokens=90, seed=5).samples()
                self.assertEqual(sample.result.window, window)
                self.assertEqual(sample.tokens.tolist(),
                                 self.tokens("bytes", "Once", window=window)[0])
                with self.assertRaisesRegex(lintel.InvalidArgument, "window"):
                    session.generate(max_new_tokens=1, window=64).samples()

    def test_async_clients_leave_it_to_the_server_too(self):
        async def windows():
            async with lintel.AsyncClient(self.server.address) as client:
                found = []
                for options in ({}, {"window": 0}):
                    async with await client.session(model="text", **options) as session:
                        found.append((await session.info()).window)
                return found

        self.assertEqual(run_async(windows()), [32, 0])


class MnistTest(ServedTest):
    mnist = True

    def test_a_seed_gives_the_tokens_and_bits_that_the_command_line_gives(self):
        expected = self.server.cli_lines(
            "generate", "--prompt-tokens", "0,0,12", "--max-new-tokens", "200", "--seed", "7",
            "--format", "jsonl")[0]
        generation = self.client.generate([0, 0, 12], max_new_tokens=200, seed=7, log2_probs=True)
        tokens = list(generation)
        self.assertEqual([t.token for t in tokens], expected["tokens"])
        # The command line prints floats so that they read back exactly.
        self.assertEqual(np.float32([t.log2_prob for t in tokens]).tolist(),
                         np.float32(expected["log2_probs"]).tolist())
        self.assertEqual([t.position for t in tokens], list(range(3, 203)))
        self.assertEqual({(t.source, t.sample) for t in tokens}, {(Source.SAMPLED, 0)})
        result = generation.result
        self.assertEqual(result.finish_reason, FinishReason.LENGTH)
        self.assertEqual((result.seed, result.prompt_tokens, result.generated_tokens,
                          result.position), (7, 3, 200, 203))
        self.assertGreater(result.timings.generation, 0)

    def test_an_image_completed_is_what_the_same_prompt_and_given_spans_give(self):
        image = self.client.generate(seed=3).samples()[0]
        image = np.append([0], image.tokens).astype(np.uint8).reshape(28, 28)
        mask = np.zeros((28, 28), dtype=bool)
        mask[10:20, 5:25] = True
        completed = self.client.complete_image(image, mask, seed=4)
        self.assertEqual((completed.dtype, completed.shape), (np.uint8, (28, 28)))
        np.testing.assert_array_equal(completed[~mask], image[~mask])
        flat, hidden = image.reshape(-1), mask.reshape(-1)
        first = int(np.argmax(hidden))
        given = [f"--given={i}={flat[i]}" for i in range(first, 784) if not hidden[i]]
        expected = self.server.cli_lines(
            "generate", "--prompt-tokens", ",".join(map(str, flat[:first])), "--max-new-tokens",
            str(784 - first), "--seed", "4", "--format", "jsonl", *given)[0]
        self.assertEqual(completed.reshape(-1)[first:].tolist(), expected["tokens"])

        several = self.client.complete_image(image, mask, seed=3, num_samples=2)
        self.assertEqual(several.shape, (2, 28, 28))
        np.testing.assert_array_equal(several[1], completed)  # sample 1 of seed 3
        np.testing.assert_array_equal(
            self.client.complete_image(image, np.zeros_like(mask)), image)
        whole = self.client.complete_image(image, np.ones_like(mask), seed=3)
        np.testing.assert_array_equal(whole, image)

    def test_an_image_completed_by_particles_keeps_all_that_is_known(self):
        image = np.zeros((28, 28), dtype=np.uint8)
        image[8:20, 12:16] = 230
        mask = np.zeros((28, 28), dtype=bool)
        mask[3, 3:20] = True  # and all that follows is known
        several = self.client.complete_image(image, mask, seed=3, particles=4, num_samples=2)
        np.testing.assert_array_equal(several[0][~mask], image[~mask])
        np.testing.assert_array_equal(several[1][~mask], image[~mask])

    def test_scores_are_the_bits_that_generation_reported(self):
        sample = self.client.generate(seed=1, log2_probs=True).samples()[0]
        image = np.append([0], sample.tokens).astype(np.uint8)
        scores = self.client.score([image, image.reshape(28, 28)[:5]])
        self.assertEqual(len(scores), 2)
        self.assertEqual(scores[0].log2_probs.dtype, np.float32)
        np.testing.assert_array_equal(scores[0].log2_probs, sample.log2_probs)
        np.testing.assert_array_equal(scores[1].bits, -sample.log2_probs[:139])
        self.assertAlmostEqual(scores[0].bits_per_dim, float(scores[0].bits.mean()), places=5)
        expected = self.server.cli_lines("score", "--input", "-", stdin=f"{image.tolist()}\n")[0]
        self.assertEqual(scores[0].log2_probs.tolist(),
                         np.float32(expected["log2_probs"]).tolist())
        self.assertEqual(scores[0].bits_per_dim, expected["bits_per_dim"])


class TinyModelsTest(ServedTest):
    models = ("image", "bytes", "tokens")

    def test_text_streams_and_stops_where_it_should(self):
        expected = self.server.cli("generate", "--model", "bytes", "--prompt", "Once",
                                   "--max-new-tokens", "20", "--seed", "3", "--format", "jsonl")
        sample = self.client.generate("Once", model="bytes", max_new_tokens=20, seed=3).samples()[0]
        self.assertIn(str(sample.tokens.tolist()).replace(" ", ""), expected.replace(" ", ""))
        text = sample.text
        self.assertEqual(len(text), 20)
        at = text.index(text[7:9])
        for stop in (text[7:9], [b"never said, ever", text[7:9]]):
            generation = self.client.generate(b"Once", model="bytes", max_new_tokens=20, seed=3,
                                              stop=stop)
            self.assertEqual(bytes(t.token for t in generation), text[:at])
            self.assertEqual(generation.result.finish_reason, FinishReason.STOP_STRING)
            self.assertEqual(generation.result.stop_string, text[7:9])
        sample = self.client.generate("Once", model="bytes", max_new_tokens=20, seed=3,
                                      stop=text[5], include_stop=True).samples()[0]
        self.assertEqual(sample.result.finish_reason, FinishReason.STOP_TOKEN)
        self.assertEqual(sample.text, text[:text.index(text[5]) + 1])

    def test_particles_keep_known_tokens_and_report_the_evidence(self):
        options = dict(model="tokens", max_new_tokens=6, seed=9, given={4: [7, 8]})
        (sample,) = self.client.generate([3, 1, 4], particles=8, **options).samples()
        self.assertEqual(sample.tokens[1:3].tolist(), [7, 8])
        self.assertLess(sample.result.log2_evidence, 0)
        (plain,) = self.client.generate([3, 1, 4], **options).samples()
        self.assertIsNone(plain.result.log2_evidence)
        (one,) = self.client.generate([3, 1, 4], particles=1, **options).samples()
        self.assertEqual(one.tokens.tolist(), plain.tokens.tolist())

    def test_given_tokens_echo_top_tokens_and_samples(self):
        options = dict(model="tokens", max_new_tokens=6, seed=9, given={4: [7, 8]}, num_samples=3,
                       log2_probs=True, top_log2_probs=2, echo_prompt=True)
        tokens = list(self.client.generate([3, 1, 4], **options))
        generation = self.client.generate([3, 1, 4], **options)
        samples = generation.samples()
        self.assertEqual(len(samples), 3)
        for i, sample in enumerate(samples):
            mine = [t for t in tokens if t.sample == i]
            produced = [t for t in mine if t.source != Source.PROMPT]
            self.assertEqual([t.token for t in mine if t.source == Source.PROMPT], [3, 1, 4])
            self.assertEqual(sample.prompt.tolist(), [3, 1, 4])
            self.assertEqual([t.token for t in produced], sample.tokens.tolist())
            self.assertEqual([t.position for t in produced], list(range(3, 9)))
            self.assertEqual(sample.first_position, 3)
            self.assertEqual(sample.given.tolist(), [False, True, True, False, False, False])
            self.assertEqual([t.source == Source.GIVEN for t in produced], sample.given.tolist())
            self.assertEqual(sample.tokens[1:3].tolist(), [7, 8])
            self.assertTrue(np.isnan(sample.prompt_log2_probs[0]))
            self.assertIsNone(mine[0].log2_prob)
            self.assertEqual([t.top for t in produced], list(sample.top))
            for token in produced:
                self.assertEqual(len(token.top), 2)
                self.assertGreaterEqual(token.top[0].log2_prob, token.top[1].log2_prob)
            self.assertEqual(generation.results[i].seed, 9 + i)
            self.assertEqual(generation.results[i].given_tokens, 2)
            self.assertEqual(sample.result, generation.results[i])
        self.assertEqual(generation.result, generation.results[0])

    def test_every_option_reaches_the_server(self):
        def tokens(**options):
            return self.client.generate(
                [3, 1, 4], model="tokens", max_new_tokens=12, seed=5, **options
            ).samples()[0].tokens.tolist()

        def cli(*flags):
            return self.server.cli_lines(
                "generate", "--model", "tokens", "--prompt-tokens", "3,1,4", "--max-new-tokens",
                "12", "--seed", "5", "--format", "jsonl", *flags)[0]["tokens"]

        plain = tokens()
        self.assertEqual(plain, cli())
        for option, flag, value in (
                ("temperature", "--temperature", 0), ("top_k", "--top-k", 2),
                ("top_p", "--top-p", 0.2), ("min_p", "--min-p", 0.9),
                ("repetition_penalty", "--repetition-penalty", 100),
                ("presence_penalty", "--presence-penalty", 50),
                ("frequency_penalty", "--frequency-penalty", 50)):
            with self.subTest(option):
                changed = tokens(**{option: value})
                self.assertEqual(changed, cli(flag, str(value)))
                self.assertNotEqual(changed, plain)
        penalised = {"frequency_penalty": 50}
        windowed = tokens(penalty_window=3, **penalised)
        self.assertEqual(windowed, cli("--frequency-penalty", "50", "--penalty-window", "3"))
        self.assertNotEqual(windowed, tokens(**penalised))
        self.assertEqual(tokens(logit_bias={17: 1000.0}), [17] * 12)
        finished = self.client.generate([3], model="tokens", time_limit=1e-9)
        self.assertEqual(finished.samples()[0].result.finish_reason, FinishReason.DEADLINE)

    def test_a_result_is_there_when_the_stream_has_been_read(self):
        with self.client.generate([1], model="tokens", max_new_tokens=3) as generation:
            with self.assertRaisesRegex(RuntimeError, "not been read"):
                generation.result
            list(generation)
            self.assertEqual(generation.result.generated_tokens, 3)
            self.assertEqual(list(generation), [])  # at its end
        repeated = self.client.generate([1], model="tokens", max_new_tokens=3,
                                        seed=generation.result.seed)
        self.assertEqual(repeated.samples()[0].result.seed, generation.result.seed)

    def test_models_and_health_are_reported(self):
        self.assertEqual([m.name for m in self.client.models()], ["bytes", "image", "tokens"])
        image = self.client.model("image")
        self.assertEqual((image.image.height, image.image.width, image.image.start_token), (6, 5, 0))
        self.assertEqual(image.config["d_model"], 16)
        self.assertGreater(image.limits["max_new_tokens"], 0)
        self.assertIsNone(self.client.model("tokens").image)
        self.assertTrue(self.client.serving())
        self.assertTrue(self.client.serving("lintel.v1.GenerationService"))
        with self.assertRaises(lintel.NotFound):
            self.client.serving("lintel.v1.Nothing")

    def test_errors_say_which_field_and_which_request(self):
        generation = self.client.generate([1, 500], model="tokens", temperature=-1)
        with self.assertRaises(lintel.InvalidArgument) as raised:
            list(generation)
        error = raised.exception
        self.assertEqual([v.field for v in error.violations],
                         ["prompt.tokens.ids[1]", "sampling.temperature"])
        self.assertEqual(error.request_id, generation.request_id)
        self.assertIn(generation.request_id, str(error))
        self.assertIn("sampling.temperature", str(error))
        self.assertIsNone(error.retry_delay)
        with self.assertRaises(lintel.NotFound) as raised:
            self.client.model("none")
        self.assertEqual([(r.type, r.name) for r in raised.exception.resources],
                         [("model", "none")])
        with self.assertRaisesRegex(lintel.LintelError, "model"):
            self.client.generate([1]).samples()  # three are loaded
        # The log knows the call by the same id.
        eventually(lambda: generation.request_id in self.server.log, "the line in the log")


if __name__ == "__main__":
    unittest.main()
