# SPDX-License-Identifier: Apache-2.0
"""Code common to the tests of files of Docker Compose."""

import os
import shutil
import subprocess

import manifests

DOCKER = os.path.join(manifests.ROOT, "docker")


def flags(command):
    """{"--name": value} of ["--name=value", "--name", ...]."""
    return dict(argument.partition("=")[::2] for argument in command)


def check_file(test, file):
    """Docker Compose takes it; skips the test where there is none."""
    for compose in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(compose[0]) and subprocess.run(
                [*compose, "version"], capture_output=True, check=False).returncode == 0:
            subprocess.run([*compose, "--file", file, "config", "--quiet"], check=True)
            return
    test.skipTest("no docker compose")
