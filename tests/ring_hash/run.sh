#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DIR: installs gRPC's packages for Node in DIR, beside a copy of our client, and tests there. Exit
# status 77 without Node 18.3, npm or a registry that answers, or redis-server.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=${here%/tests/ring_hash}
work=$1
source "$here/../npm_packages.sh"

need_node 18.3
command -v redis-server >/dev/null || skip "no redis-server (scripts/setup.sh --redis installs it)"
install_packages "$here" "$work"
# The client has its packages from the folder above it: they and those of xDS are to be one grpc-js.
rm -rf "$work/proto" "$work/client"
mkdir -p "$work/client/node"
cp -r "$root/proto" "$work/proto"
cp "$root"/client/node/*.mjs "$work/client/node/"
cd "$work"
# No proxy is asked for what is on loopback.
export no_proxy=127.0.0.1
LINTEL_PACKAGES=$PWD exec node --test "$here"/ring_hash.test.mjs
