#!/usr/bin/env bash
# Runs training/tests with the first Python that has PyTorch; exit status 77 where none has.
set -euo pipefail
cd "$(dirname "$0")/../../training"
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import torch, numpy' 2>/dev/null; then
    exec "$python" -m unittest discover -s tests
  fi
done
echo "SKIPPED: no PyTorch (scripts/setup.sh --training installs it)" >&2
exit 77
