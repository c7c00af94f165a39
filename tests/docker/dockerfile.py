# SPDX-License-Identifier: Apache-2.0
"""docker/Dockerfile, as far as other files must agree with it."""

import json
import os
import re

import manifests


class Dockerfile:
    def __init__(self):
        with open(os.path.join(manifests.ROOT, "docker", "Dockerfile"), encoding="utf-8") as file:
            self.text = file.read()

    def instruction(self, name):
        """The arguments of the last line that begins with `name`."""
        return re.findall(rf"^{name} (.*)$", self.text, re.MULTILINE)[-1]

    def user(self):
        return self.instruction("USER")

    def health_command(self):
        return json.loads(self.instruction("HEALTHCHECK").partition(" CMD ")[2])

    def argument(self, name):
        """The default of a build argument."""
        return re.search(rf"^ARG {name}=(.*)$", self.text, re.MULTILINE)[1].strip('"')

    @staticmethod
    def project_version():
        with open(os.path.join(manifests.ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
            return re.search(r"project\(lintel VERSION (\S+)", file.read())[1]
