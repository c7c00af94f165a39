#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and passes the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOF'
Usage: scripts/test.sh [--all] [PRESET] [CTEST-ARGUMENT...]

Installs what is missing, builds with PRESET (ci, dev, release, asan or tsan; default ci) and runs the unit
tests and the integration tests. Further arguments go to ctest, e.g. scripts/test.sh ci -R engine.
  --all   also the campaigns: faults on purpose, browsers, other instruction sets; a quarter of an hour more
PRESET ci compiles several files together, which is fastest from a clean clone; dev compiles each alone, which is
fastest after an edit.
EOF
}

only=(-LE '^campaign$')
preset=ci
while (($#)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --all) only=() LINTEL_NIGHTLY=1; shift ;;
    -*) break ;;
    *) preset=$1; shift; break ;;
  esac
done
export LINTEL_NIGHTLY=${LINTEL_NIGHTLY:-0}  # tests of many cases read it
start=$SECONDS
step "packages: installed where missing"
scripts/setup.sh --training --clients --browser --docker --redis
installed=$SECONDS
cmake --preset "$preset" >/dev/null
build "$preset"
built=$SECONDS
last=build/$preset/test_seconds  # of the tests, once they have passed
((${#only[@]})) || last=build/$preset/all_test_seconds
took=
[[ ! -f $last ]] || took=", all of them $(seconds_to_words "$(<"$last")") last time"
step "tests, $(tests_at_a_time) at a time$took"
progress=()
[[ ! -t 1 ]] || progress=(--progress)
status=0
# A browser that hangs is started once more; what fails is not.
run_tests "$preset" --repeat after-timeout:3 "${only[@]}" "${progress[@]}" "$@" || status=$?
if ((status == 0 && $# == 0)); then echo "$((SECONDS - built))" >"$last"; fi
echo "test.sh: packages $((installed - start)) s, build $((built - installed)) s, tests $((SECONDS - built)) s"
exit $status
