# SPDX-License-Identifier: Apache-2.0
"""The package as a wheel, in a virtual environment that has nothing else of ours."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from serving import MNIST, REPOSITORY, Server

# A newcomer's first program, against a server.
PROGRAM = """
import sys
import lintel
import numpy as np

with lintel.Client(sys.argv[1]) as client:
    image = client.complete_image(np.zeros((28, 28), np.uint8), np.ones((28, 28), bool), seed=1)
    (sample,) = client.generate([0, 0, 12], max_new_tokens=5, seed=7).samples()
print(lintel.__file__, lintel.__version__, image.shape, len(sample.tokens), sep="\\n")
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def missing(*modules):
    return [module for module in modules if importlib.util.find_spec(module) is None]


@unittest.skipIf(missing("pip", "setuptools", "wheel", "venv", "ensurepip"),
                 "no pip, setuptools, wheel and venv (scripts/setup.sh --clients)")
class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        sources = os.path.join(cls.directory, "sources")
        for part in ("proto", "client/python"):
            shutil.copytree(os.path.join(REPOSITORY, part), os.path.join(sources, part),
                            ignore=shutil.ignore_patterns("*_pb2*"))
        # The build that test_package has too; offline, with Debian's protoc.
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index",
            "--no-build-isolation", "--wheel-dir", cls.directory,
            os.path.join(sources, "client/python"))
        (cls.wheel,) = [os.path.join(cls.directory, name) for name in os.listdir(cls.directory)
                        if name.endswith(".whl")]
        shutil.rmtree(sources)

    def test_it_is_for_every_machine_and_holds_what_protoc_makes(self):
        self.assertRegex(os.path.basename(self.wheel), r"^lintel_client-\d+\.\d+\.\d+-py3-none-any\.whl$")
        names = zipfile.ZipFile(self.wheel).namelist()
        for name in ("lintel/__init__.py", "lintel/py.typed", "lintel/_foreign_pb2.py",
                     "lintel/v1/generation_pb2.py", "lintel/v1/generation_pb2.pyi",
                     "lintel/v1/generation_pb2_grpc.py", "lintel/v1/session_pb2.py",
                     "lintel/v1/chat_pb2_grpc.py", "lintel/v1/response_pb2.py"):
            self.assertIn(name, names)
        strange = [name for name in names
                   if not name.startswith("lintel/") and ".dist-info/" not in name]
        self.assertEqual(strange, [])

    def test_it_serves_in_a_clean_environment(self):
        environment = os.path.join(self.directory, "env")
        # Uses the system's grpcio and NumPy, so that no registry is asked.
        run(sys.executable, "-m", "venv", "--system-site-packages", environment)
        python = os.path.join(environment, "bin", "python")
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        run(python, "-m", "pip", "install", "--quiet", "--no-index", self.wheel, env=clean)
        server = Server([MNIST])
        try:
            output = run(python, "-c", PROGRAM, server.address, cwd=self.directory, env=clean)
        finally:
            status = server.stop()
        self.assertEqual(status, 0, server.log)
        file, version, shape, tokens = output.splitlines()
        self.assertTrue(file.startswith(environment), file)
        self.assertIn(f"-{version}-", os.path.basename(self.wheel))
        self.assertEqual((shape, tokens), ("(28, 28)", "5"))


if __name__ == "__main__":
    unittest.main()
