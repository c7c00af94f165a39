#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DIR: installs Claude Code in DIR, from the lock file, and has it work with the server, without any network but
# loopback. Exit status 77 without Node 20.11, npm or a registry that answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1
source "$here/../npm_packages.sh"

need_node 20.11
install_packages "$here" "$work"
cd "$work"
export LINTEL_PACKAGES=$PWD
run_without_network node --test "$here"/claude_code.test.mjs
