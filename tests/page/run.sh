#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh NAME: the tests of NAME.test.mjs. Exit status 77 without Node 18, and for what needs a browser without Chromium.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

skip() {
  echo "SKIPPED: $1" >&2
  exit 77
}
command -v node >/dev/null || skip "no node (scripts/setup.sh --browser installs it)"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 18 || (a === 18 && b >= 17) ? 0 : 1)' ||
  skip "node $(node --version) is older than 18.17"
if grep -q chromium "$here/$1.test.mjs" || grep -q watched_pages "$here/$1.test.mjs"; then
  command -v "${LINTEL_CHROMIUM:=chromium}" >/dev/null || skip "no chromium (scripts/setup.sh --browser installs it)"
  export LINTEL_CHROMIUM
fi
exec node --test "$here/$1.test.mjs"
