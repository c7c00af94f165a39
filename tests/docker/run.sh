#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a Python test of this folder with the first Python that has PyYAML and tomllib; exit status 77
# where none has, and for schema_test.py and envoy_test.py where there is no npm, nothing to install from or no protoc.
set -euo pipefail
cd "$(dirname "$0")"
skip() {
  echo "SKIPPED: $1" >&2
  exit 77
}

modules=tomllib,yaml
case $1 in
  schema_test.py) packages=schema ;;
  envoy_test.py)
    packages=envoy_api
    modules+=,google.protobuf
    command -v protoc >/dev/null || skip "no protoc"
    ;;
  *) packages= ;;
esac
if [[ -n $packages && ! -d $packages/node_modules ]]; then
  command -v npm >/dev/null || skip "no npm (scripts/setup.sh --docker installs it)"
  npm ci --prefix $packages --ignore-scripts --no-audit --no-fund >&2 || skip "npm cannot install the packages of $packages"
fi
for python in python3 /usr/bin/python3; do
  if "$python" -c "import $modules" 2>/dev/null; then exec "$python" "$@"; fi
done
skip "no Python with PyYAML (scripts/setup.sh --docker installs it)"
