#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DIR: installs Codex in DIR, from the lock file, and lets it work with the server and a scripted model, without
# any network but loopback. RECORD=FILE writes its requests there, without its texts. Exit status 77 without Node 20.11,
# npm or a registry that answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1
source "$here/../npm_packages.sh"

need_node 20.11
install_packages "$here" "$work"
[[ -e $work/node_modules/@openai/codex-linux-x64 || -e $work/node_modules/@openai/codex-linux-arm64 ]] ||
  skip "no Codex for this machine"
LINTEL_CODEX=$(cd "$work" && pwd)/node_modules/@openai/codex/bin/codex.js
export LINTEL_CODEX
run_without_network node --test "$here/codex.test.mjs"
