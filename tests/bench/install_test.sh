#!/usr/bin/env bash
# install_test.sh CMAKE BUILD: what `cmake --install` of a build puts under a prefix runs there.
set -euo pipefail
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
"$1" --install "$2" --prefix "$prefix" >/dev/null
for program in lintel lintel-server lintel-convert lintel-bench; do
  "$prefix/bin/$program" --version
done
installed=$(find "$prefix" -type f | wc -l)
((installed == 4)) || { echo "FAILED: $installed files are installed, not 4" >&2; exit 1; }
