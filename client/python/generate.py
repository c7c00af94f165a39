#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the protobuf and gRPC code of the package: lintel/v1/*_pb2*.py and lintel/_foreign_pb2.py.

    python3 client/python/generate.py [--out DIR]

DIR is where the package `lintel` lies or will lie; default: beside this file. Takes the package
grpcio-tools, 1.51 or later, or, where it is missing, protoc and grpc_python_plugin (Debian:
protobuf-compiler, protobuf-compiler-grpc). Those that PROTOC and GRPC_PYTHON_PLUGIN name go first.

The code is not committed: generated code runs with protobuf and grpcio of its own age or younger, so
that what an old generator wrote is safe to use, and what a new one wrote is not. Where pip builds
the package, it is grpcio-tools of the age that pyproject.toml asks for; where it lies in one
environment with grpcio, it is no younger than that; a protoc on the PATH may be of any age.
"""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO_ROOT = os.path.join(HERE, "..", "..", "proto")
SERVICES = [
    f"lintel/v1/{name}.proto" for name in ("chat", "generation", "model", "response", "session")
]
FOREIGN = "lintel/_foreign.proto"


def has_grpcio_tools():
    try:
        version = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(map(int, version.split(".")[:2])) >= (1, 51)  # older ones know no --pyi_out


def find_compiler():
    """The command that is protoc, and the option that names its gRPC plugin."""
    protoc, plugin = os.environ.get("PROTOC"), os.environ.get("GRPC_PYTHON_PLUGIN")
    if not protoc and not plugin and has_grpcio_tools():
        return [sys.executable, "-m", "grpc_tools.protoc"], []
    protoc = protoc or shutil.which("protoc")
    plugin = plugin or shutil.which("grpc_python_plugin")
    if protoc and plugin:
        return [protoc], ["--plugin=protoc-gen-grpc_python=" + plugin]
    sys.exit("generate.py: neither grpcio-tools nor protoc with grpc_python_plugin is installed")


def generate(out):
    if not os.path.isdir(PROTO_ROOT):
        sys.exit(f"generate.py: {PROTO_ROOT} is missing: the package is built inside its repository")
    protoc, plugin = find_compiler()
    os.makedirs(out, exist_ok=True)
    common = [*protoc, "-I", PROTO_ROOT, "-I", HERE, "--python_out=" + out, "--pyi_out=" + out]
    subprocess.run([*common, FOREIGN], check=True)
    subprocess.run([*common, *plugin, "--grpc_python_out=" + out, *SERVICES], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=HERE, help="where the package lies (default: %(default)s)")
    generate(parser.parse_args().out)
