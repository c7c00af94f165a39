#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a Python test, FILE, with the first Python that has grpcio, protobuf and NumPy; exit status 77
# where none has.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import grpc, google.protobuf, numpy' 2>/dev/null; then
    exec "$python" -W error::ResourceWarning "$here/$1" -v
  fi
done
echo "SKIPPED: no grpcio (scripts/setup.sh --clients installs it)" >&2
exit 77
