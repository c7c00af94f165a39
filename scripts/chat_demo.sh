#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Chats: a long conversation that survives kill -9, and a hundred conversations at once.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOF'
Usage: scripts/chat_demo.sh [--model PATH | --shape NAME] [--preset NAME] [--no-setup] [--json] [ARGUMENT...]

Installs missing packages, builds and starts lintel-server, and chats with it over OpenAI's API. First a conversation
of 20,000 tokens: the server is killed by kill -9, starts again and continues it. Then 100 conversations at once on two
workers, ten of them forks of one. Prints times to the first token, tokens read and cached, and bytes a conversation.
  --model PATH    default: weights/text-rwkv7-small, which was trained on plays
  --shape NAME    random weights of a published shape, e.g. rwkv7-0.4b (scripts/random_checkpoint.py --help)
  --preset NAME   CMake preset of the build: release (default), or another
  --no-setup      installs and builds nothing
  --json          prints JSON
  --peer-root DIR the next turn in llama.cpp, too, by npm's node-llama-cpp in DIR; --model has to be a GGUF file
Further arguments are those of scripts/chat_demo.py, e.g. --tokens 50000 --conversations 200 --forks 20.
EOF
}

preset=release
setup=true
shape=
arguments=()
while (($#)); do
  case $1 in
    --shape) shape=$2; shift 2 ;;
    --preset) preset=$2; shift 2 ;;
    --no-setup) setup=false; shift ;;
    -h | --help) usage; exit 0 ;;
    *) arguments+=("$1"); shift ;;
  esac
done

if $setup; then
  step "packages: installed where missing"
  scripts/setup.sh
  flags=()
  [[ $preset != release ]] || flags=(-DLINTEL_TESTS=OFF)
  cmake --preset "$preset" "${flags[@]}" >/dev/null
  build "$preset" lintel-server lintel-cli
fi >&2
if [[ -n $shape ]]; then
  model=build/chat_demo/$shape
  if [[ ! -f $model/model.safetensors ]]; then
    step "random weights of $shape" >&2
    scripts/random_checkpoint.py "$shape" "$model"
  fi
  arguments+=(--model "$model" --random)
fi
exec python3 scripts/chat_demo.py --server "build/$preset/bin/lintel-server" "${arguments[@]}"
