#!/usr/bin/env bash
# Builds and passes all tests.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOF'
Usage: scripts/test.sh [PRESET] [CTEST-ARGUMENT...]

Installs what is missing, builds with PRESET (dev, release, asan or tsan; default dev) and runs the
tests. Further arguments go to ctest, e.g. scripts/test.sh dev -R golden.
EOF
}
case ${1:-} in -h | --help) usage; exit 0 ;; esac

preset=${1:-dev}
shift || true
start=$SECONDS
scripts/setup.sh --training --clients --docker
installed=$SECONDS
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset"
built=$SECONDS
status=0
ctest --preset "$preset" -j "$(nproc)" "$@" || status=$?
echo "test.sh: packages $((installed - start)) s, build $((built - installed)) s, tests $((SECONDS - built)) s"
exit $status
