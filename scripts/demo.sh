#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From nothing to completed digits: installs, builds, serves, completes, draws, stops.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOF'
Usage: scripts/demo.sh [--images FILE] [--model DIR] [--preset NAME] [COMPLETE-ARGUMENT...]

Installs missing packages, as root or through sudo, builds, starts lintel-server with a trained MNIST
model and completes occluded digits through gRPC.
  --images FILE   digits to complete: IDX (also .gz), e.g. the official t10k-images-idx3-ubyte.gz, or
                  PNG. Default: weights/demo-digits.png, drawn by our own model.
  --model DIR     default: weights/mnist-linear, or weights/mnist-linear-small if that is missing
  --preset NAME   CMake preset of the build: release (default), or ci, which scripts/test.sh makes
Further arguments go to `lintel complete`, e.g. --occlude random:0.7 --samples 8.
Writes build/demo/completions.png and build/demo/results.json.
EOF
}

images=weights/demo-digits.png
model=weights/mnist-linear
[[ -f $model/model.safetensors ]] || model=weights/mnist-linear-small
preset=release
extra=()
while (($#)); do
  case $1 in
    --images) images=$2; shift 2 ;;
    --model) model=$2; shift 2 ;;
    --preset) preset=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) extra+=("$1"); shift ;;
  esac
done
[[ -f $images ]] || { echo "demo.sh: no such file: $images" >&2; exit 2; }
[[ -f $model/model.safetensors ]] || { echo "demo.sh: no model in $model" >&2; exit 2; }

start=$SECONDS
step "packages: installed where missing, about 120 MB"
scripts/setup.sh
flags=()
[[ $preset != release ]] || flags=(-DLINTEL_TESTS=OFF)
cmake --preset "$preset" "${flags[@]}" >/dev/null
build "$preset" lintel-server lintel-cli
bin=build/$preset/bin

out=build/demo
mkdir -p "$out"
ready=$out/ready
: >"$ready"
"$bin/lintel-server" --model "$model" --listen 127.0.0.1:0 --http-listen off >"$ready" 2>"$out/server.log" &
server=$!
trap 'kill -TERM $server 2>/dev/null || true; wait $server 2>/dev/null || true' EXIT
until grep -q '^lintel-server ready on ' "$ready"; do
  kill -0 $server 2>/dev/null || { echo "demo.sh: the server did not start:" >&2; cat "$out/server.log" >&2; exit 1; }
  sleep 0.05
done
address=$(sed -n 's/^lintel-server ready on //p' "$ready")
step "serving $model on $address, completing occluded digits"

# The demo's digits were drawn with a seed far from this one: with its own seed a digit's completion
# would be the digit itself.
"$bin/lintel" complete --address "$address" --images "$images" --index 0-7 \
  --occlude bottom:14 --samples 4 --seed 1 --concurrency 32 --watch \
  --out "$out/completions.png" --json "$out/results.json" "${extra[@]}"

kill -TERM $server
wait $server
trap - EXIT
echo "Original, occluded, completions: $out/completions.png, after $((SECONDS - start)) s"
echo "To play with it in a browser, at http://127.0.0.1:8080/ :"
echo "  $bin/lintel-server"
