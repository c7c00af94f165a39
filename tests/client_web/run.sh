#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DIR: installs the clients in DIR, from the lock file, and runs the tests with them. Exit
# status 77 without Node 18.15, npm or a registry that answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1
source "$here/../npm_packages.sh"

need_node 18.15
install_packages "$here" "$work"
cd "$work"
export LINTEL_ROOT=${here%/tests/client_web} LINTEL_DESCRIPTORS=$work/lintel.pb
"${PROTOC:-protoc}" -I "$LINTEL_ROOT/proto" --include_imports --descriptor_set_out="$LINTEL_DESCRIPTORS" \
  "$LINTEL_ROOT"/proto/lintel/v1/*.proto
exec node --test "$here"/*.test.mjs
