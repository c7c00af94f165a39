#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh NAME: the tests of NAME.test.mjs. Exit status 77 without Node 18, for what needs a browser without Chromium, and
# for what needs packages of npm without npm or a registry that answers. They are installed in LINTEL_PAGE_PACKAGES.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

source "$here/../npm_packages.sh"
command -v node >/dev/null || skip "no node (scripts/setup.sh --browser installs it)"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 18 || (a === 18 && b >= 17) ? 0 : 1)' ||
  skip "node $(node --version) is older than 18.17"
if grep -q chromium "$here/$1.test.mjs" || grep -q watched_pages "$here/$1.test.mjs"; then
  command -v "${LINTEL_CHROMIUM:=chromium}" >/dev/null || skip "no chromium (scripts/setup.sh --browser installs it)"
  export LINTEL_CHROMIUM
fi
if grep -q LINTEL_PAGE_PACKAGES "$here/$1.test.mjs"; then
  command -v npm >/dev/null || skip "no npm (scripts/setup.sh --clients installs it)"
  install_packages "$here" "$LINTEL_PAGE_PACKAGES"
fi
exec node --test "$here/$1.test.mjs"
