#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Three servers and a Redis Cluster on this machine, killed one after another while a client streams digits.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOF'
Usage: scripts/cluster_demo.sh [--model DIR] [--preset NAME] [--rounds N] [--lease DURATION] [--no-setup]

Installs missing packages, builds, starts three masters and three replicas of a Redis Cluster and three lintel-servers
that keep their sessions there, all on loopback. A client draws digits, pixel by pixel, each in a session; the server
that streams is killed, then a master of the cluster, and so on. At the end: the digits, whether each has the bits of
one that nothing disturbed, and how long the stream stood still after each blow.
  --model DIR       default: weights/mnist-linear, or weights/mnist-linear-small if that is missing
  --preset NAME     CMake preset of the build: release (default), or dev
  --rounds N        servers killed, and as many masters [3]
  --lease DURATION  the servers' --session-lease [3s]
  --no-setup        installs and builds nothing
Writes build/cluster_demo/digits.png and build/cluster_demo/pauses.md.
EOF
}

model=weights/mnist-linear
[[ -f $model/model.safetensors ]] || model=weights/mnist-linear-small
preset=release
rounds=3
lease=3s
setup=true
while (($#)); do
  case $1 in
    --model) model=$2; shift 2 ;;
    --preset) preset=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --lease) lease=$2; shift 2 ;;
    --no-setup) setup=false; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "cluster_demo.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done
[[ -f $model/model.safetensors ]] || { echo "cluster_demo.sh: no model in $model" >&2; exit 2; }

if $setup; then
  step "packages: installed where missing"
  scripts/setup.sh --redis
  flags=()
  [[ $preset != release ]] || flags=(-DLINTEL_TESTS=OFF)
  cmake --preset "$preset" "${flags[@]}" >/dev/null
  build "$preset" lintel-server
fi
command -v python3 >/dev/null || { echo "cluster_demo.sh: needs python3" >&2; exit 1; }
mkdir -p build/cluster_demo
exec python3 scripts/cluster_demo.py --server "build/$preset/bin/lintel-server" --model "$model" --rounds "$rounds" \
  --lease "$lease" --out build/cluster_demo
