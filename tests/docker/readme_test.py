# SPDX-License-Identifier: Apache-2.0
"""The commands of docker/README.md do what they say.

Needs LINTEL_SERVER and LINTEL_CLI.
"""

import base64
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest

import manifests
import serving
import yaml


def read(name):
    with open(os.path.join(manifests.ROOT, name), encoding="utf-8") as file:
        return file.read()


def commands(block):
    """The commands of a block: lines that a backslash continues are one."""
    return block.replace("\\\n", " ").strip().splitlines()


class ReadmeTest(unittest.TestCase):
    def test_no_command_publishes_a_port_beyond_this_machine(self):
        for name in ("docker/README.md", "docker/Dockerfile"):
            runs = [line for line in read(name).splitlines()
                    if re.match("(#  *)?docker run ", line)]
            published = re.findall(r"(?:-p|--publish)[ =](\S+)", "\n".join(runs))
            self.assertTrue(published, name)
            for port in published:
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")

    def test_the_port_is_the_same_everywhere(self):
        shown = subprocess.run([os.environ["LINTEL_SERVER"], "--help"], check=True,
                               capture_output=True, text=True).stdout
        (port,) = re.findall(r"--listen ADDRESS=127\.0\.0\.1:(\d+)", shown)
        self.assertIn(f"\nEXPOSE {port}\n", read("docker/Dockerfile"))
        for name in ("README.md", "docker/README.md", "docker/Dockerfile", "docker/compose.yaml",
                     "docker/kubernetes/base/lintel.toml", "docker/kubernetes/tls/lintel.toml",
                     "docs/recipes.md", "docs/operations.md", "client/README.md",
                     "client/python/README.md", "client/node/README.md"):
            named = re.findall(r"(?:127\.0\.0\.1|0\.0\.0\.0|localhost|HOST|server):(\d+)",
                               read(name))
            # Metrics, Prometheus and Grafana have theirs.
            self.assertEqual(set(named) - {"9464", "9090", "3000", "8080"}, {port}, name)

    def test_the_secrets_are_made_as_described_and_a_server_serves_with_them(self):
        (block,) = re.findall(r"### Certificate and tokens.*?```\n(.*?)```",
                              read("docker/README.md"), re.DOTALL)
        with tempfile.TemporaryDirectory() as directory:
            binaries = os.path.join(directory, "bin")
            os.mkdir(binaries)
            os.symlink(os.environ["LINTEL_CLI"], os.path.join(binaries, "lintel"))
            environment = {**os.environ, "PATH": binaries + os.pathsep + os.environ["PATH"]}
            made = {}
            script = []
            for command in commands(block):
                if not command.startswith("kubectl "):
                    script.append(command)
                elif shutil.which("kubectl") is not None:
                    script.append(command + " --dry-run=client -o yaml >>secrets.yaml; "
                                  "echo --- >>secrets.yaml")
            subprocess.run(["bash", "-euc", "\n".join(script)], cwd=directory, env=environment,
                           check=True, capture_output=True)
            self.check_modes(directory)
            if shutil.which("kubectl") is not None:
                for secret in filter(None, yaml.safe_load_all(self.content(directory,
                                                                           "secrets.yaml"))):
                    for key, value in secret["data"].items():
                        made[f"{secret['metadata']['name']}/{key}"] = base64.b64decode(value)
                self.check_mounts(made)
                self.assertEqual(made["lintel-tls/tls.key"].decode(),
                                 self.content(directory, "server.key"))
            files = {name: os.path.join(directory, name)
                     for name in ("server.pem", "server.key", "tokens", "ca.pem", "alice.token")}
            arguments = ["--model", serving.MODEL, "--tls-cert", files["server.pem"], "--tls-key",
                         files["server.key"], "--auth-tokens", files["tokens"]]
            with serving.serving(arguments) as server:
                port = server.address.rpartition(":")[2]
                subprocess.run(
                    [os.environ["LINTEL_CLI"], "generate", "--address", f"localhost:{port}",
                     "--tls-ca", files["ca.pem"], "--token", "@" + files["alice.token"],
                     "--prompt-tokens", "0", "--max-new-tokens", "2"], check=True,
                    capture_output=True)

    @staticmethod
    def content(directory, name):
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            return file.read()

    def check_modes(self, directory):
        for name in ("ca.key", "server.key", "alice.token", "tokens"):
            self.assertEqual(os.stat(os.path.join(directory, name)).st_mode & 0o077, 0, name)

    def check_mounts(self, made):
        """Every file that the configuration of kubernetes/tls names is a key of a Secret."""
        documents = manifests.render(os.path.join(manifests.KUBERNETES, "tls"))
        pod = manifests.one(documents, "Deployment")["spec"]["template"]["spec"]
        secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"]
                   if "secret" in volume}
        (container,) = pod["containers"]
        mounts = {mount["mountPath"]: secrets[mount["name"]]
                  for mount in container["volumeMounts"] if mount["name"] in secrets}
        config = tomllib.loads(manifests.one(documents, "ConfigMap")["data"]["lintel.toml"])
        for key in ("tls-cert", "tls-key", "auth-tokens"):
            directory, name = os.path.split(config[key])
            self.assertIn(f"{mounts[directory]}/{name}", made)


if __name__ == "__main__":
    unittest.main()
