#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DIR [FILE]: installs the example's packages in DIR, from its lock file, and tests it there with FILE of this
# folder, or with *.test.mjs. Exit status 77 without Node 18.3, npm or a registry that answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=${here%/tests/client_node}
work=$1
source "$here/../npm_packages.sh"

need_node 18.3
command -v python3 >/dev/null || skip "no python3"
# A copy, laid out as in the repository: the sources stay as they are, and builds apart.
mkdir -p "$work/client/node"
rm -rf "$work/proto" "$work"/client/node/*.m{js,ts}
cp -r "$root/proto" "$work/proto"
cp "$root"/client/node/*.m{js,ts} "$work/client/node/"
install_packages "$root/client/node" "$work/client/node"
cd "$work/client/node"
tests=("$here"/*.test.mjs)
(($# > 1)) && tests=("$here/$2")
LINTEL_EXAMPLE=$PWD LINTEL_ROOT=$root exec node --test "${tests[@]}"
