#!/usr/bin/env bash
# run.sh DIR: installs the example's packages in DIR, from its lock file, and tests it there. Exit
# status 77 without Node 18, npm or a registry that answers.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$1

skip() {
  echo "SKIPPED: $1" >&2
  exit 77
}
command -v node >/dev/null || skip "no node (scripts/setup.sh --clients installs it)"
command -v npm >/dev/null || skip "no npm (scripts/setup.sh --clients installs it)"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 18 || (a === 18 && b >= 3) ? 0 : 1)' ||
  skip "node $(node --version) is older than 18.3"

# A copy, laid out as in the repository: the sources stay as they are, and builds apart.
mkdir -p "$work/client/node"
rm -rf "$work/proto" "$work"/client/node/*.mjs
cp -r "$root/proto" "$work/proto"
cp "$root"/client/node/{*.mjs,package.json,.npmrc} "$work/client/node/"
cd "$work/client/node"
if ! cmp -s "$root/client/node/package-lock.json" installed-lock.json; then
  cp "$root/client/node/package-lock.json" .
  status=0
  npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=3 --fetch-retry-mintimeout=1000 \
    --fetch-retry-maxtimeout=5000 >npm.log 2>&1 || status=$?
  if ((status != 0)); then
    cat npm.log >&2
    grep -Eq 'code (ENOTFOUND|EAI_AGAIN|ECONN[A-Z]*|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT|E[45][0-9][0-9])$' npm.log &&
      skip "no registry answers"
    exit $status
  fi
  cp package-lock.json installed-lock.json
fi
LINTEL_EXAMPLE=$PWD LINTEL_ROOT=$root exec node --test "$root"/tests/client_node/*.test.mjs
