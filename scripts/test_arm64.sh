#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds model/ and its tests for Arm, 64 bits, on another machine, and runs them under qemu.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOF'
Usage: scripts/test_arm64.sh [--cpu NAME]... [--slow] [--jobs N] [CATCH2-ARGUMENT...]

Installs a cross compiler and qemu where they are missing, unpacks Debian's arm64 packages into
build/arm64-sysroot (nothing of arm64 is installed), builds model/ and its tests with the preset
arm64 and runs them under qemu: kernels, attention, golden vectors, that batches change no bits.
  --cpu NAME  the processor that qemu is; may be said again; default: max, then cortex-a72
              (qemu-aarch64 -cpu help lists them)
  --slow      also the tests that take minutes each under qemu: sums over millions of tokens, golden
              vectors in slices of every size
  --jobs N    compilers at a time; default: one per processor
Further arguments go to Catch2's model_test, e.g. scripts/test_arm64.sh --cpu max '*batch*'.
EOF
}

cpus=()
jobs=$(nproc)
arguments=()
slow=~[slow]  # Catch2's: all but those that take minutes each under qemu
while (($#)); do
  case $1 in
    --cpu) cpus+=("${2:?--cpu wants a name}"); shift 2 ;;
    --slow) slow=; shift ;;
    --jobs) jobs=${2:?--jobs wants a number}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
((${#cpus[@]})) || cpus=(max cortex-a72)

step "packages of this machine: installed where missing"
scripts/setup.sh --arm64

# What model/ and its tests include and link, as cmake/packages.cmake has it, and what qemu's programs load.
packages=(libc6-dev libstdc++6 libgomp1 libhwy-dev libdnnl-dev nlohmann-json3-dev libssl-dev catch2)
sysroot=build/arm64-sysroot
if [[ $(cat "$sysroot/packages" 2>/dev/null || true) != "${packages[*]}" ]]; then
  step "packages of arm64: unpacked into $sysroot"
  mkdir -p build
  work=$(mktemp -d "$PWD/build/arm64-packages.XXXXXX")
  trap 'rm -rf --one-file-system "$work"' EXIT
  mkdir -p "$work"/{lists,archives}/partial "$work/root"
  : >"$work/status"
  # An apt of its own, which knows of no installed package: it fetches all that these depend on, and leaves
  # this machine's packages and lists alone.
  arm64_apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" \
      -o Dir::State="$work" -o Dir::State::status="$work/status" -o Dir::State::Lists="$work/lists" \
      -o Dir::Cache="$work" -o Dir::Cache::archives="$work/archives" -o Debug::NoLocking=1 "$@"
  }
  arm64_apt update
  arm64_apt install --yes --download-only --no-install-recommends "${packages[@]}"
  for package in "$work"/archives/*.deb; do dpkg-deb -x "$package" "$work/root"; done
  echo "${packages[*]}" >"$work/root/packages"
  rm -rf --one-file-system "$sysroot"
  mv "$work/root" "$sysroot"
fi

cmake --preset arm64 >/dev/null
CMAKE_BUILD_PARALLEL_LEVEL=$jobs build arm64
for cpu in "${cpus[@]}"; do
  step "tests, qemu as $cpu${slow:+, without those that take minutes each}"
  QEMU_CPU=$cpu qemu-aarch64 -L "$sysroot" build/arm64/bin/model_test -d yes ${slow:+"$slow"} "${arguments[@]}"
done
