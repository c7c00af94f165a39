# SPDX-License-Identifier: Apache-2.0
"""The package as its users get it: installed, typed, and beside others of its kind."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PACKAGE = os.path.join(REPOSITORY, "client", "python")

# A program about the client's answers for type checkers: each line that is wrong must be found.
USE = """
import numpy as np
import numpy.typing as npt
import lintel

def use(client: lintel.Client) -> None:
    generation = client.generate("text", max_new_tokens=3, stop=["a", 1], given={3: [1]})
    for token in generation:
        number: int = token.token
        probability: str = token.log2_prob  # wrong
    image: npt.NDArray[np.uint8] = client.complete_image(np.zeros((2, 2), np.uint8),
                                                         np.ones((2, 2), np.bool_))
    bits: npt.NDArray[np.float32] = client.score([[1, 2]])[0].bits
    client.generate("text", max_new_token=3)  # wrong
    with client.session() as session:
        reason: lintel.FinishReason = session.generate().result.finish_reason
    chat = client.chat([{"role": "user", "content": "Hello."}], schema=lintel.Model, tools=[use])
    for delta in chat:
        text: str = delta.content
        piece: int = delta.reasoning  # wrong
    answer: lintel.Answer = chat.answer()
    response: lintel.Response = client.respond("Hello.", temprature=1).response()  # wrong
    client.respond("Hello.", previous_response_id=response, seed=1)

async def use_async(client: lintel.AsyncClient) -> int:
    async with client.session() as session:
        async for token in session.generate([1]):
            return token.token
    return client.generate([1]).samples()  # wrong
"""


def run(*command, **options):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, **options)
    return done.returncode, done.stdout + done.stderr


def missing(*modules):
    return [module for module in modules if importlib.util.find_spec(module) is None]


class PackageTest(unittest.TestCase):
    @unittest.skipIf(missing("pip", "setuptools", "wheel"), "no pip, setuptools and wheel")
    def test_pip_installs_it_with_its_types_and_leaves_the_sources_as_they_were(self):
        def files():
            return sorted(os.path.join(folder, name)
                          for folder, _, names in os.walk(sources) for name in names)

        with tempfile.TemporaryDirectory() as sources, tempfile.TemporaryDirectory() as directory:
            for part in ("proto", "client/python"):
                shutil.copytree(os.path.join(REPOSITORY, part), os.path.join(sources, part),
                                ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
            before = files()
            status, output = run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                                 "--no-build-isolation", "--target", directory,
                                 os.path.join(sources, "client/python"))
            self.assertEqual(status, 0, output)
            self.assertEqual(files(), before)
            status, output = run("-c", "import lintel; print(lintel.__file__, lintel.__version__)",
                                 cwd=directory, env=dict(os.environ, PYTHONPATH=directory))
            self.assertEqual(status, 0, output)
            self.assertTrue(output.startswith(directory), output)
            for name in ("py.typed", "v1/generation_pb2.pyi"):
                self.assertTrue(os.path.exists(os.path.join(directory, "lintel", name)), name)

    @unittest.skipIf(missing("pip", "setuptools", "wheel", "ensurepip"), "no pip, venv and wheel")
    def test_what_the_readme_says_for_machines_without_a_network_installs_it(self):
        with open(os.path.join(REPOSITORY, "client/python/README.md"), encoding="utf-8") as file:
            (command,) = re.findall(r"^(python3 -m venv --system-site-packages .*)$",
                                    file.read(), re.MULTILINE)
        with tempfile.TemporaryDirectory() as directory:
            for part in ("proto", "client/python"):
                shutil.copytree(os.path.join(REPOSITORY, part), os.path.join(directory, part))
            os.mkdir(os.path.join(directory, "bin"))
            os.symlink(sys.executable, os.path.join(directory, "bin", "python3"))
            path = os.path.join(directory, "bin") + os.pathsep + os.environ["PATH"]
            environment = {"PATH": path, "HOME": directory, "http_proxy": "http://127.0.0.1:1",
                           "https_proxy": "http://127.0.0.1:1"}
            done = subprocess.run(command, shell=True, cwd=directory, env=environment,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            done = subprocess.run(
                [os.path.join(directory, "build/env/bin/python"), "-c",
                 "import lintel; print(lintel.__file__)"],
                cwd="/", env={"PATH": path}, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("/build/env/", done.stdout)

    @unittest.skipIf(missing("packaging"), "no packaging")
    def test_every_runtime_the_package_admits_can_import_what_its_build_generates(self):
        from packaging.requirements import Requirement
        from packaging.version import Version
        # The age of the protoc inside grpcio-tools 1.X, as a version of Python's protobuf.
        protoc = {52: "4.21", 59: "4.25", 76: "6.31.1"}
        with open(os.path.join(PACKAGE, "pyproject.toml"), "rb") as file:
            project = tomllib.load(file)

        def applying(requirements, name, python):
            """The specifier of the one requirement of `name`."""
            found = [r.specifier for r in map(Requirement, requirements) if r.name == name and
                     (r.marker is None or r.marker.evaluate({"python_version": python}))]
            self.assertEqual(len(found), 1, f"{name} for Python {python}")
            return found[0]

        def oldest(runtime, python):
            bounds = applying(project["project"]["dependencies"], runtime, python)
            return max(Version(b.version) for b in bounds if b.operator == ">=")

        for python in ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"):
            with self.subTest(python):
                tools = applying(project["build-system"]["requires"], "grpcio-tools", python)
                newest = max(minor for minor in range(100) if tools.contains(f"1.{minor}.0"))
                self.assertGreaterEqual(oldest("protobuf", python), Version(protoc[newest]))
                if newest >= 63:  # the generated code asks for its generator's version
                    self.assertGreaterEqual(oldest("grpcio", python), Version(f"1.{newest}.0"))
                    self.assertFalse(tools.contains(f"1.{newest}.1"))

    def test_a_generator_of_the_environments_own_age_goes_before_one_on_the_path(self):
        with tempfile.TemporaryDirectory() as directory:
            for tool in ("protoc", "grpc_python_plugin"):
                shutil.copy("/bin/true", os.path.join(directory, tool))

            def chosen(**environment):
                status, output = run(
                    "-B", "-c", "import generate; print(*generate.find_compiler()[0])",
                    env={"PATH": directory, "PYTHONPATH": f"{PACKAGE}{os.pathsep}{directory}",
                         **environment})
                self.assertEqual(status, 0, output)
                return output.split()

            def install(version):
                about = os.path.join(directory, "grpcio_tools-0.dist-info")
                os.makedirs(about, exist_ok=True)
                with open(os.path.join(about, "METADATA"), "w") as file:
                    file.write(f"Metadata-Version: 2.1\nName: grpcio-tools\nVersion: {version}\n")

            on_path = [os.path.join(directory, "protoc")]
            if missing("grpc_tools"):
                self.assertEqual(chosen(), on_path)
                install("1.14.1")
                self.assertEqual(chosen(), on_path)
            install("1.51.3")
            self.assertEqual(chosen()[1:], ["-m", "grpc_tools.protoc"])
            self.assertEqual(chosen(PROTOC="/named", GRPC_PYTHON_PLUGIN="/too"), ["/named"])

    @unittest.skipIf(missing("mypy"), "no mypy")
    def test_types_hold_in_the_package_and_for_its_users(self):
        config = os.path.join(PACKAGE, "pyproject.toml")
        built = os.environ["PYTHONPATH"].split(os.pathsep)[0]
        with tempfile.TemporaryDirectory() as directory:
            use = os.path.join(directory, "use.py")
            with open(use, "w") as file:
                file.write(USE)
            mypy = ("-m", "mypy", "--config-file", config, "--cache-dir", directory)
            environment = dict(os.environ, MYPYPATH=built)
            status, output = run(*mypy, "-p", "lintel", cwd=directory, env=environment)
            self.assertEqual(status, 0, output)
            status, output = run(*mypy, use, cwd=directory, env=environment)
        found = {line.split(":")[1] for line in output.splitlines() if ": error:" in line}
        wrong = {str(i) for i, line in enumerate(USE.splitlines(), 1) if "# wrong" in line}
        self.assertEqual(found, wrong, output)

    def test_its_version_is_the_projects(self):
        status, output = run("-c", "import lintel; print(lintel.__version__)")
        self.assertEqual(status, 0, output)
        server = subprocess.run([os.environ["LINTEL_SERVER"], "--version"], capture_output=True,
                                text=True, check=True)
        self.assertIn(output.strip(), server.stdout.split())

    def test_others_may_define_the_messages_of_google_rpc_and_health(self):
        # Registers them as googleapis-common-protos and grpcio-health-checking do, in files of other names.
        program = """
import lintel
from google.protobuf import descriptor_pb2, descriptor_pool
for package, message in (("google.rpc", "Status"), ("google.rpc", "RetryInfo"),
                         ("grpc.health.v1", "HealthCheckRequest")):
    descriptor_pool.Default().Add(descriptor_pb2.FileDescriptorProto(
        name=message + ".proto", package=package,
        message_type=[descriptor_pb2.DescriptorProto(name=message)]))
"""
        status, output = run("-c", program)
        self.assertEqual(status, 0, output)

    def test_without_generated_code_the_import_says_what_to_do(self):
        status, output = run("-c", "import lintel", env=dict(os.environ, PYTHONPATH=PACKAGE))
        if os.path.exists(os.path.join(PACKAGE, "lintel", "_foreign_pb2.py")):
            self.skipTest("generate.py was run here")
        self.assertNotEqual(status, 0)
        self.assertIn("generate.py", output.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
