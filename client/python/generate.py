#!/usr/bin/env python3
"""Writes the protobuf and gRPC code of the package: lintel/v1/*_pb2*.py and lintel/_foreign_pb2.py.

    python3 client/python/generate.py [--out DIR]

DIR is where the package `lintel` lies or will lie; default: beside this file. Takes protoc and
grpc_python_plugin (Debian: protobuf-compiler, protobuf-compiler-grpc) or, where they are missing,
the package grpcio-tools. The code is not committed: generated code runs with protobuf of its own
age or younger, so that what an old protoc wrote is safe to use, and what a new one wrote is not.
"""

import argparse
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO_ROOT = os.path.join(HERE, "..", "..", "proto")
SERVICES = ["lintel/v1/generation.proto", "lintel/v1/model.proto", "lintel/v1/session.proto"]
FOREIGN = "lintel/_foreign.proto"


def find_compiler():
    """The command that is protoc, and the option that names its gRPC plugin."""
    protoc = os.environ.get("PROTOC") or shutil.which("protoc")
    plugin = os.environ.get("GRPC_PYTHON_PLUGIN") or shutil.which("grpc_python_plugin")
    if protoc and plugin:
        return [protoc], ["--plugin=protoc-gen-grpc_python=" + plugin]
    try:
        import grpc_tools.protoc  # noqa: F401
    except ImportError:
        sys.exit("generate.py: neither protoc with grpc_python_plugin nor grpcio-tools is installed")
    return [sys.executable, "-m", "grpc_tools.protoc"], []


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
