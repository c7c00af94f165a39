#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Lintel on Debian 13, in a root of its own, runs the demo and passes the unit tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOF'
Usage: scripts/test_debian13.sh [--jobs N] [DIR] [--only TARGET...]

Makes a bare Debian 13 in DIR (default: build/debian13) by debootstrap, as root, installs there what scripts/setup.sh
names, builds this tree with the preset ci, completes digits by scripts/demo.sh, passes the unit tests, and shows that a
header field without an end costs a server nothing with the libgrpc of that release. DIR keeps the root (2 GB), the
build and the compiler's cache for the next run. A first run builds everything, which takes more than half an hour of
CPU; the last line says how much it took. Where this is Debian 13, no root is made.
Exit status 77: none can be made or entered here.
  --jobs N           compilers at a time; default: one per processor
  --only TARGET...   builds these targets of CMake alone, and runs those that are tests
EOF
}

dir=build/debian13
jobs=$(nproc)
only=()
while (($#)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --jobs) jobs=${2:?--jobs wants a number}; shift 2 ;;
    --only) shift; only=("$@"); break ;;
    -*) echo "test_debian13.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
    *) dir=$1; shift ;;
  esac
done

skip() {
  echo "test_debian13.sh: SKIPPED: $1" >&2
  exit 77
}

# Steps in the root, or here where this is Debian 13: JOBS TARGET...
steps='
  source scripts/steps.sh
  export CMAKE_BUILD_PARALLEL_LEVEL=$1
  shift
  step "packages: installed where missing"
  scripts/setup.sh
  cmake --preset ci >/dev/null
  build ci "$@"
  if (($#)); then
    for target in "$@"; do
      [[ $target != *_test ]] || "build/ci/bin/$target" -d yes
    done
  else
    scripts/demo.sh --preset ci </dev/null
    step "unit tests"
    run_tests ci -L "^unit$"
    step "libgrpc: a header field without an end"
    build/ci/bin/chaos_test "[threat-45]" -d yes
  fi
  # Ticks of this shell and of what it waited for.
  read -r -a stat </proc/self/stat
  ticks=$((stat[13] + stat[14] + stat[15] + stat[16]))
  echo "test_debian13.sh: $((ticks / $(getconf CLK_TCK) / 60)) minutes of CPU"'
if grep -qs '^VERSION_CODENAME=trixie$' /etc/os-release; then
  exec bash -euo pipefail -c "$steps" debian13 "$jobs" "${only[@]}"
fi

((EUID == 0)) || skip "debootstrap and chroot need root"
command -v debootstrap >/dev/null || skip "no debootstrap (scripts/setup.sh --packages)"
status=0
in_release trixie "$dir" bash -euo pipefail -c "$steps" debian13 "$jobs" "${only[@]}" || status=$?
((status != 77)) || skip "a root cannot be made or entered here"
exit $status
