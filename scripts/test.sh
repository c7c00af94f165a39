#!/usr/bin/env bash
# Builds and passes all tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

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
step "packages: installed where missing"
scripts/setup.sh --training --clients --browser --docker --redis
installed=$SECONDS
cmake --preset "$preset" >/dev/null
build "$preset"
built=$SECONDS
last=build/$preset/test_seconds  # of all tests, once they have passed
took=
[[ ! -f $last ]] || took=", all of them $(seconds_to_words "$(<"$last")") last time"
step "tests, $(nproc) at a time$took"
progress=()
[[ ! -t 1 ]] || progress=(--progress)
status=0
# A browser that hangs is started once more; what fails is not.
ctest --preset "$preset" -j "$(nproc)" --repeat after-timeout:3 "${progress[@]}" "$@" || status=$?
if ((status == 0 && $# == 0)); then echo "$((SECONDS - built))" >"$last"; fi
echo "test.sh: packages $((installed - start)) s, build $((built - installed)) s, tests $((SECONDS - built)) s"
exit $status
