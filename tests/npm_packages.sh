# SPDX-License-Identifier: Apache-2.0
# What the tests with clients from npm share. To be sourced; ends them with status 77 where something is missing.
# shellcheck shell=bash

skip() {
  echo "SKIPPED: $1" >&2
  exit 77
}

# need_node VERSION: Node, of VERSION ("18.15") or later, and npm.
need_node() {
  command -v node >/dev/null || skip "no node (scripts/setup.sh --clients installs it)"
  command -v npm >/dev/null || skip "no npm (scripts/setup.sh --clients installs it)"
  printf '%s\n' "$1" "$(node -p process.versions.node)" | sort --check=quiet --version-sort ||
    skip "node $(node --version) is older than $1"
}

# run_without_network COMMAND...: becomes the command, in a network of its own that has loopback alone. Where that is not
# permitted, it has the machine's network, and a warning says so.
run_without_network() {
  local isolated=(unshare -rn bash -c 'ip link set lo up && exec "$@"' _)
  if "${isolated[@]}" true 2>/dev/null; then exec "${isolated[@]}" "$@"; fi
  echo "WARNING: no network namespace (unshare -rn, ip): ${*: -1} runs with the network of this machine" >&2
  exec "$@"
}

# install_packages FROM TO: what FROM/package-lock.json names, as it names it, in TO, unless it is there already.
install_packages() {
  local from=$1 to=$2 status=0
  mkdir -p "$to"
  cp "$from"/{package.json,.npmrc} "$to/"
  cmp -s "$from/package-lock.json" "$to/installed-lock.json" && return
  cp "$from/package-lock.json" "$to/"
  (cd "$to" && npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=3 --fetch-retry-mintimeout=1000 \
    --fetch-retry-maxtimeout=5000) >"$to/npm.log" 2>&1 || status=$?
  if ((status != 0)); then
    cat "$to/npm.log" >&2
    grep -Eq 'code (ENOTFOUND|EAI_AGAIN|ECONN[A-Z]*|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT|E[45][0-9][0-9])$' "$to/npm.log" &&
      skip "no registry answers"
    exit $status
  fi
  cp "$to/package-lock.json" "$to/installed-lock.json"
}
