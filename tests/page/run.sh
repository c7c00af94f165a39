#!/usr/bin/env bash
# run.sh (modules|site|browser): tests of the page. Exit status 77 without Node 18, and for the browser's without
# Chromium.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

skip() {
  echo "SKIPPED: $1" >&2
  exit 77
}
command -v node >/dev/null || skip "no node (scripts/setup.sh --browser installs it)"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 18 || (a === 18 && b >= 17) ? 0 : 1)' ||
  skip "node $(node --version) is older than 18.17"

case $1 in
  modules | site) files=("$here/$1.test.mjs") ;;
  browser)
    command -v "${LINTEL_CHROMIUM:=chromium}" >/dev/null || skip "no chromium (scripts/setup.sh --browser installs it)"
    export LINTEL_CHROMIUM
    files=("$here/browser.test.mjs" "$here/token.test.mjs") ;;
esac
# One file after the other: they measure time.
for file in "${files[@]}"; do node --test "$file"; done
