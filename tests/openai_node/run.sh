#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DIR: installs clients of OpenAI's API, ajv and ws in DIR, from the lock file, and tests the server with them.
# Exit status 77 without Node 20.11, npm or a registry that answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1
source "$here/../npm_packages.sh"

need_node 20.11
install_packages "$here" "$work"
cd "$work"
LINTEL_PACKAGES=$PWD exec node --test "$here"/{codex,completions,langchain,open_webui,responses,structured}.test.mjs
