#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that building, testing and training need, if they are missing.
set -euo pipefail

usage() {
  cat <<'EOF'
Usage: scripts/setup.sh [--training] [--bench] [--clients] [--browser] [--docker] [--containers]
                        [--packages] [--redis] [--sanitizers] [--arm64] [--check]

Installs with apt (through sudo when not root), on Debian 12 or 13, what is missing of:
  (always)       compiler, CMake, gRPC, Protocol Buffers, oneDNN, spdlog, Catch2, marked, DOMPurify, ...
  --training     PyTorch, NumPy and Matplotlib for training/ and its tests
  --bench        gnuplot, for the plots of lintel-bench
  --browser      Chromium, and Node (Debian's, unless there is one), for the tests of the page
  --clients      grpcio and NumPy for client/python, on Debian 13 the package openai, Node for client/node (Debian's,
                 unless there is one), curl
  --docker       PyYAML, npm and Compose, for the tests of docker/
  --containers   podman and debootstrap, for scripts/container_test.sh; nothing where Docker runs
  --packages     what scripts/package.sh and its test need: dpkg-dev, patchelf, pip, npm, lintian, debootstrap, zsh
  --redis        a Redis server, for the tests of the shared session store
  --sanitizers   clang, clang-tidy, clang-format and the fuzzing runtime, version 14: Debian 12 has it, 13 has not
  --arm64        a cross compiler and qemu, for scripts/test_arm64.sh
  --check        installs nothing; exits with 1 and names what is missing
EOF
}

packages=(
  g++ cmake ninja-build ccache mold git patch ca-certificates
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler
  libdnnl-dev opencl-headers ocl-icd-opencl-dev  # the last two: dnnl's CMake package asks for them
  libhwy-dev libssl-dev openssl libspdlog-dev nlohmann-json3-dev libcli11-dev libpng-dev zlib1g-dev
  libsqlite3-dev libhiredis-dev libxxhash-dev libboost-dev libedit-dev libcurl4-openssl-dev
  prometheus-cpp-dev libcivetweb-dev
  catch2
  libjs-marked node-dompurify  # embedded in the page
)
check=false
for argument in "$@"; do
  case $argument in
    --training) packages+=(python3-torch python3-numpy python3-matplotlib python3-pil libopenblas0-pthread) ;;  # the reference BLAS is 50 times slower
    --bench) packages+=(gnuplot-nox) ;;
    --clients)
      packages+=(curl python3-grpcio python3-protobuf python3-numpy python3-pip python3-setuptools python3-wheel python3-venv mypy)
      if grep -qs '^VERSION_CODENAME=trixie$' /etc/os-release; then packages+=(python3-openai); fi  # Debian 12 has none
      if ! command -v node >/dev/null || ! command -v npm >/dev/null; then packages+=(nodejs npm); fi ;;
    --browser)
      packages+=(chromium)
      command -v node >/dev/null || packages+=(nodejs) ;;
    --docker)
      packages+=(python3-yaml)
      command -v npm >/dev/null || packages+=(nodejs npm)
      docker compose version >/dev/null 2>&1 || packages+=(docker-compose) ;;
    --containers)
      docker info >/dev/null 2>&1 || packages+=(podman runc debootstrap) ;;
    --packages)
      packages+=(dpkg-dev file gzip patchelf python3-pip python3-setuptools python3-venv python3-wheel debootstrap lintian groff-base man-db zsh)
      command -v npm >/dev/null || packages+=(nodejs npm) ;;
    --redis) packages+=(redis-server) ;;
    --sanitizers) packages+=(clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev) ;;
    --arm64) packages+=(g++-aarch64-linux-gnu qemu-user apt dpkg) ;;
    --check) check=true ;;
    -h | --help) usage; exit 0 ;;
    *) echo "setup.sh: unknown argument $argument" >&2; usage >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then exit 0; fi
if $check; then
  echo "missing packages: ${missing[*]}" >&2
  exit 1
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || { echo "setup.sh: needs root or sudo to install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "Installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
