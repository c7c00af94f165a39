# SPDX-License-Identifier: Apache-2.0
"""The steps that pyproject.toml has no words for: the protobuf code is made when the package is, and
nothing is left beside the sources.
"""

import atexit
import os
import shutil
import sys
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from generate import generate  # noqa: E402


class BuildWithProtos(build_py):
    def run(self):
        super().run()
        generate(self.build_lib)


# Instead of build/ and lintel.egg-info/ here.
scratch = tempfile.mkdtemp(prefix="lintel-build-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)

setup(
    cmdclass={"build_py": BuildWithProtos},
    options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
)
