#!/usr/bin/env bash
# run.sh DIR: installs OpenAI's client in DIR, from the lock file, and tests the server with it. Exit
# status 77 without Node 20, npm or a registry that answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1

skip() {
  echo "SKIPPED: $1" >&2
  exit 77
}
command -v node >/dev/null || skip "no node (scripts/setup.sh --clients installs it)"
command -v npm >/dev/null || skip "no npm (scripts/setup.sh --clients installs it)"
node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)' ||
  skip "node $(node --version) is older than 20, which OpenAI's client asks for"

mkdir -p "$work"
cp "$here"/{package.json,.npmrc} "$work/"
cd "$work"
if ! cmp -s "$here/package-lock.json" installed-lock.json; then
  cp "$here/package-lock.json" .
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
LINTEL_PACKAGES=$PWD exec node --test "$here"/completions.test.mjs
