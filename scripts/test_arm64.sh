#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Lintel for Arm, 64 bits, on another machine, and tests it under qemu.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOF'
Usage: scripts/test_arm64.sh [--model] [--cpu NAME]... [--slow] [--jobs N] [CATCH2-ARGUMENT...]

Installs a cross compiler and qemu where they are missing, unpacks Debian's arm64 packages into
build/arm64-sysroot (nothing of arm64 is installed), builds the programs and the unit tests with the
preset arm64 and runs them under qemu: kernels, attention, golden vectors, that batches change no
bits, loading, chat, snapshots, the scheduler; last a server, whose client draws an image.
  --model     model/ and its tests alone
  --cpu NAME  the processor that qemu is; may be said again; default: max, then cortex-a72
              (qemu-aarch64 -cpu help lists them). Tests of model/ run on each, others on the first.
  --slow      also the tests of model/ that take minutes each under qemu: sums over millions of tokens,
              golden vectors in slices of every size
  --jobs N    compilers at a time; default: one per processor
Further arguments go to Catch2's model_test, e.g. scripts/test_arm64.sh --model --cpu max '*batch*'.
EOF
}

cpus=()
jobs=$(nproc)
arguments=()
slow=~[slow]  # Catch2's: all but those that take minutes each under qemu
model_alone=false
while (($#)); do
  case $1 in
    --model) model_alone=true; shift ;;
    --cpu) cpus+=("${2:?--cpu wants a name}"); shift 2 ;;
    --slow) slow=; shift ;;
    --jobs) jobs=${2:?--jobs wants a number}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
((${#cpus[@]})) || cpus=(max cortex-a72)

work=   # folder of packages that are unpacked
server= # under qemu
clean_up() {
  [[ -z $work ]] || rm -rf --one-file-system "$work"
  [[ -z $server ]] || kill -TERM "$server" 2>/dev/null || true
}
trap clean_up EXIT

step "packages of this machine: installed where missing"
scripts/setup.sh --arm64

# Packages that cmake/packages.cmake asks for, and those that qemu's programs load.
packages=(
  libc6-dev libstdc++6 libgomp1 libhwy-dev libdnnl-dev nlohmann-json3-dev libssl-dev catch2
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libspdlog-dev libcli11-dev libpng-dev
  zlib1g-dev libsqlite3-dev libhiredis-dev libxxhash-dev libboost-dev libedit-dev libcurl4-openssl-dev
  prometheus-cpp-dev libcivetweb-dev)
sysroot=build/arm64-sysroot
if [[ $(cat "$sysroot/packages" 2>/dev/null || true) != "${packages[*]}" ]]; then
  step "packages of arm64: unpacked into $sysroot"
  mkdir -p build
  work=$(mktemp -d "$PWD/build/arm64-packages.XXXXXX")
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

targets=(model_test)
# Others measure times, or start processes, which qemu's programs cannot.
others=(core_test models_test chat_test openai_test snapshot_test protocol_test engine_test)
$model_alone || targets+=("${others[@]}" lintel-server lintel-cli)
cmake --preset arm64 >/dev/null
CMAKE_BUILD_PARALLEL_LEVEL=$jobs build arm64 "${targets[@]}"
emulated() {
  qemu-aarch64 -L "$sysroot" "build/arm64/bin/$1" "${@:2}"
}
for cpu in "${cpus[@]}"; do
  step "model_test, qemu as $cpu${slow:+, without those that take minutes each}"
  QEMU_CPU=$cpu emulated model_test -d yes ${slow:+"$slow"} "${arguments[@]}"
done
if $model_alone; then exit 0; fi

export QEMU_CPU=${cpus[0]}
for test in "${others[@]}"; do
  step "$test, qemu as $QEMU_CPU"
  # An emulator does not bound a process's address space, and takes an hour for all batches of all kinds of attention.
  emulated "$test" '~[limits]~[promise]'
done

step "lintel-server and lintel, qemu as $QEMU_CPU"
out=build/arm64/completed
mkdir -p "$out"
: >"$out/ready"
rm -f "$out/digit.png"
qemu-aarch64 -L "$sysroot" build/arm64/bin/lintel-server --model weights/mnist-linear-small --weight-type int8 \
  --listen 127.0.0.1:0 --http-listen off >"$out/ready" &
server=$!
until grep -q '^lintel-server ready on ' "$out/ready"; do
  kill -0 $server
  sleep 1
done
address=$(sed -n 's/^lintel-server ready on //p' "$out/ready")
emulated lintel complete --address "$address" --unconditional 1 --seed 1 --out "$out/digit.png"
[[ -s $out/digit.png ]]
