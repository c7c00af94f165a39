#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DIR [FLAG...]: installs the Rust library tokenizers' binding in DIR, from the lock file, and compares its ids
# with Lintel's; flags are those of compare.mjs. Exit status 77 without Node 20.11, npm or a registry that answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1
source "$here/../npm_packages.sh"

need_node 20.11
install_packages "$here" "$work"
LINTEL_PACKAGES=$(cd "$work" && pwd) exec node "$here/compare.mjs" "${@:2}"
