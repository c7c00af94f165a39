#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs the programs of the archive as a Python wheel: lintel-server.

  packaging/wheel.py TREE OUT VERSION

TREE: the archive, unpacked. OUT: the folder that gets lintel_server-VERSION-py3-none-manylinux_GLIBC_MACHINE.whl.
The wheel is the tree as package data of lintel_server and a command for each of its programs, which pip puts on the
PATH. A wheel is a zip archive whose RECORD lists its files (PEP 427); no build tool makes one of files that are built.
"""

import base64
import hashlib
import os
import platform
import stat
import sys
import time
import zipfile

INIT = '''# SPDX-License-Identifier: Apache-2.0
"""The programs of Lintel: lintel, lintel-server, lintel-convert and lintel-bench."""

import os
import sys

__version__ = "{version}"
DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tree")


def program(name: str) -> str:
    """The path of a program, e.g. "lintel-server"."""
    return os.path.join(DIRECTORY, "bin", name)


def run() -> None:
    """Becomes the program that the calling command is named after."""
    path = program(os.path.splitext(os.path.basename(sys.argv[0]))[0])
    os.execv(path, [path, *sys.argv[1:]])
'''

METADATA = """Metadata-Version: 2.1
Name: lintel-server
Version: {version}
Summary: Serves linear transformers, such as Qwen3.5 and RWKV-7, over gRPC and HTTP: the server, its client, converter and benchmark
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

`lintel-server` serves, `lintel` asks, `lintel-convert` reads checkpoints, `lintel-bench` measures. The programs carry
their libraries; of the system they need Linux on x86-64 and a glibc of {glibc} or newer. `pip install lintel-client` has
the client for Python.
"""


def main() -> None:
    tree, out, version = sys.argv[1:]
    glibc = platform.libc_ver()[1].replace(".", "_")
    tag = f"py3-none-manylinux_{glibc}_{platform.machine()}"
    info = f"lintel_server-{version}.dist-info"
    programs = sorted(os.listdir(os.path.join(tree, "bin")))
    texts = {
        "lintel_server/__init__.py": INIT.format(version=version),
        f"{info}/METADATA": METADATA.format(version=version, glibc=glibc.replace("_", ".")),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: lintel\nRoot-Is-Purelib: false\nTag: {tag}\n",
        f"{info}/entry_points.txt": "[console_scripts]\n" + "".join(f"{name} = lintel_server:run\n" for name in programs),
    }
    contents = {name: (text.encode(), 0o644) for name, text in texts.items()}
    for folder, _, files in sorted(os.walk(tree)):
        for name in sorted(files):
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                mode = 0o755 if os.stat(path).st_mode & stat.S_IXUSR else 0o644
                contents[f"lintel_server/tree/{os.path.relpath(path, tree)}"] = (file.read(), mode)
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, (data, _) in contents.items())
    contents[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), 0o644)
    day = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")))[:6]
    with zipfile.ZipFile(os.path.join(out, f"lintel_server-{version}-{tag}.whl"), "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, (data, mode) in contents.items():
            entry = zipfile.ZipInfo(name, day)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)


if __name__ == "__main__":
    main()
