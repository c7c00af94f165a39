#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a Python test, FILE or else all of training/tests, with the first Python that has PyTorch;
# exit status 77 where none has.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import torch, numpy' 2>/dev/null; then
    if (($#)); then exec "$python" "$here/$1"; fi
    cd "$here/../../training"
    exec "$python" -m unittest discover -s tests
  fi
done
echo "SKIPPED: no PyTorch (scripts/setup.sh --training installs it)" >&2
exit 77
