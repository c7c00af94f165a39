#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cluster_demo.sh: three servers, their store, Envoy; a text that streams on while the servers are killed one after the
# other and come back. Ctrl-C ends it; `docker compose -f docker/compose.cluster.yaml down` takes everything away.
set -euo pipefail
cd "$(dirname "$0")"
compose() { docker compose -f compose.cluster.yaml "$@"; }

compose up -d --build --wait server-1 server-2 server-3 envoy prometheus
kill_in_turn() {
  while true; do
    for server in server-1 server-2 server-3; do
      sleep 10
      printf '\n--- %s is killed\n' "$server" >&2
      compose kill --signal KILL "$server" >/dev/null 2>&1
      sleep 5
      compose up -d --wait "$server" >/dev/null 2>&1
      printf '\n--- %s is back\n' "$server" >&2
    done
  done
}
kill_in_turn &
killer=$!
trap 'kill "$killer" 2>/dev/null' EXIT
compose run --rm -T text
