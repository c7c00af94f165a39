#!/usr/bin/env bash
# Runs a Python test of this folder with the first Python that has PyYAML and tomllib; exit status 77
# where none has, and for schema_test.py where there is no npm or nothing to install from.
set -euo pipefail
cd "$(dirname "$0")"
skip() {
  echo "SKIPPED: $1" >&2
  exit 77
}

if [[ $1 == schema_test.py && ! -d schema/node_modules ]]; then
  command -v npm >/dev/null || skip "no npm (scripts/setup.sh --docker installs it)"
  npm ci --prefix schema --no-audit --no-fund >&2 || skip "npm cannot install the types of the Kubernetes API"
fi
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import tomllib, yaml' 2>/dev/null; then exec "$python" "$@"; fi
done
skip "no Python with PyYAML (scripts/setup.sh --docker installs it)"
