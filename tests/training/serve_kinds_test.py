# SPDX-License-Identifier: Apache-2.0
"""Every kind of attention that PyTorch computes is served: the same bits, all samples and a LoRA adapter in one server.

Needs LINTEL_SERVER and LINTEL_CLI, the two binaries.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

TRAINING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "training")
sys.path.insert(0, os.path.join(TRAINING, "tests"))

import context  # noqa: E402, F401
import torch  # noqa: E402

import small  # noqa: E402
from lintel_training.adapter_files import save_adapter  # noqa: E402
from lintel_training.attention import KINDS, SAMPLE_DIMS  # noqa: E402
from lintel_training.export import export_model  # noqa: E402
from lintel_training.losses import LN2, nll  # noqa: E402
from test_lora import adapted  # noqa: E402
from test_structure import CHANGES  # noqa: E402

TOLERANCE = 1e-4  # bits/dim
TOKENS = torch.randint(0, 17, (2, 40), generator=torch.Generator().manual_seed(6))


def bits_of(model):
    """Bits/dim of each of TOKENS."""
    with torch.no_grad():
        return (nll(model.config, model(TOKENS[:, :-1]), TOKENS[:, 1:]).mean(1) / LN2).tolist()


class ServeKindsTest(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())

    def test_every_sample_and_structure_and_an_adapter_score_as_in_pytorch(self):
        models = {f"{kind['type']}-{i}": small.model(sample["attention"], **SAMPLE_DIMS)
                  for kind in KINDS.values() for i, sample in enumerate(kind["samples"])}
        models.update((f"structure-{i}", small.model({"type": "linear"}, **changes))
                      for i, changes in enumerate(CHANGES))
        models["adapted"] = small.model({"type": "linear"})
        for name, model in models.items():
            export_model(model, os.path.join(self.directory, name), "f32")
        with_adapter = adapted()
        save_adapter(with_adapter, os.path.join(self.directory, "adapted", "adapters", "learnt"), 1.5)

        for name, model in models.items():
            self.check(name, bits_of(model))
        self.check("adapted", bits_of(with_adapter), "--adapter", "learnt")

    def check(self, name, expected, *flags):
        with self.subTest(name, flags=flags):
            found = self.served_bits(name, *flags)
            self.assertEqual(len(found), len(expected))
            for ours, theirs in zip(found, expected):
                self.assertAlmostEqual(ours, theirs, delta=TOLERANCE)

    def served_bits(self, name, *flags):
        lines = "".join(json.dumps(row) + "\n" for row in TOKENS.tolist())
        done = subprocess.run(
            [os.environ["LINTEL_CLI"], "score", "--address", self.address(), "--model", name,
             "--input", "-", *flags], input=lines, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line)["bits_per_dim"] for line in done.stdout.splitlines()]

    def address(self):
        """The address of a server of all models of the directory, started at the first call."""
        if not hasattr(self, "_address"):
            models = sorted(os.path.join(self.directory, name) for name in os.listdir(self.directory))
            flags = [flag for model in models for flag in ("--model", model)]
            server = subprocess.Popen(
                [os.environ["LINTEL_SERVER"], *flags, "--listen", "127.0.0.1:0", "--http-listen", "off",
                 "--workers", "1", "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
            self.addCleanup(server.stdout.close)
            self.addCleanup(server.wait)
            self.addCleanup(server.terminate)
            self._address = server.stdout.readline().strip().rpartition(" ")[2]
        return self._address


if __name__ == "__main__":
    unittest.main()
