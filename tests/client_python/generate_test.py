"""Generation: the values are those of the C++ command line, bit for bit."""

import unittest

import lintel
import numpy as np
from lintel import FinishReason, Source

from serving import ServedTest


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


if __name__ == "__main__":
    unittest.main()
