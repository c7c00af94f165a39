#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns a LoRA adapter of PEFT, made over a checkpoint that convert_checkpoint.py converts, into one of
the converted model:

    python3 training/convert_adapter.py ADAPTER --out MODEL/adapters/NAME

ADAPTER holds adapter_config.json and adapter_model.safetensors; so does what is written, with the modules
named as in the model directory. A module that has no counterpart there is named, and the exit status is 1.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from lintel_training import from_peft, safetensors_io  # noqa: E402
from lintel_training.adapter_files import CONFIG, TENSORS  # noqa: E402


def convert(source, out):
    """Names of the modules that are adapted."""
    path = os.path.join(source, CONFIG)
    with open(path, encoding="utf-8") as file:
        try:
            config = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: is no JSON object")
    config, tensors = from_peft.converted(config, safetensors_io.load(os.path.join(source, TENSORS)))
    os.makedirs(out, exist_ok=True)
    safetensors_io.save(tensors, os.path.join(out, TENSORS))
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    safetensors_io.write_atomically(os.path.join(out, CONFIG), text.encode())
    return config["target_modules"]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", help="directory of the adapter")
    parser.add_argument("--out", required=True, help="directory to write")
    args = parser.parse_args(argv)
    try:
        modules = convert(args.adapter, args.out)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{args.out}: adapts {', '.join(modules)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
