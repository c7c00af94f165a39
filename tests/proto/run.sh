#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DIR: installs buf in DIR, from the lock file, and checks proto/lintel: its style, and that a client of the released
# v1 (v1.binpb) still fits. Exit status 77 without Node, npm or a registry that answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1
source "$here/../npm_packages.sh"

need_node 18
install_packages "$here" "$work"
buf=$work/node_modules/.bin/buf
cd "$here/../../proto"
"$buf" lint
"$buf" breaking --against "$here/v1.binpb"

# The check notices a field that is gone.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R . "$copy/proto"
sed -i '/penalty_window/d' "$copy/proto/lintel/v1/generation.proto"
if "$buf" breaking "$copy/proto" --against "$here/v1.binpb" >"$copy/found"; then
  echo "buf breaking did not notice a deleted field" >&2
  exit 1
fi
grep -q penalty_window "$copy/found"
