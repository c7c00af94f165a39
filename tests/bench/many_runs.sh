#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lintel-bench, run many times in a row on a machine that is busy: no run may fail, hang or measure nothing.
#   many_runs.sh LINTEL_BENCH [RUNS]
# Runs: as given, or as many as LINTEL_BENCH_RUNS says (200 take some ten minutes on two cores), or 4.
# Beside them every core has two loops that do nothing but keep it busy; LINTEL_BENCH_BUSY=N: N loops in all.
set -euo pipefail
bench=$1
runs=${2:-${LINTEL_BENCH_RUNS:-4}}
root=$(mktemp -d)
busy=()
clean_up() {
  [[ ${#busy[@]} == 0 ]] || kill "${busy[@]}" 2>/dev/null || true
  rm -rf "$root"
}
trap clean_up EXIT

for _ in $(seq "${LINTEL_BENCH_BUSY:-$((2 * $(nproc)))}"); do
  (while :; do :; done) &
  busy+=($!)
done

# Sets the command of one run, in turn. It has to have measured tokens/s.
tiny=(--shape mnist-small --repeats 1)
run_of() {
  case $(($1 % 4)) in
    0) command=(serve "${tiny[@]}" --concurrency 1,64 --seconds 0.5) ;;
    1) command=(speed "${tiny[@]}" --batch 4 --seconds 0.02 --weight-type int8) ;;
    2) command=(serve "${tiny[@]}" --concurrency 16 --seconds 0.5 --http --weight-type bf16) ;;
    3) command=(adapters "${tiny[@]}" --batch 4 --adapters 1,2 --rank 4 --steps 2) ;;
  esac
}

lost=0
for ((i = 0; i < runs; ++i)); do
  run_of "$i"
  status=0
  timeout 120 "$bench" "${command[@]}" --json "$root/report.json" >"$root/out" 2>"$root/err" || status=$?
  if [[ $status == 0 ]] && python3 - "$root/report.json" 2>>"$root/err" <<'EOP'
import json, sys
tables = json.load(open(sys.argv[1]))["tables"]
rates = [row[i].get("value", 0) for table in tables for i, name in enumerate(table["columns"])
         if "tokens/s" in name for row in table["rows"]]
sys.exit(0 if rates and all(rate > 0 for rate in rates) else "no tokens/s, or one that is not more than 0")
EOP
  then
    continue
  fi
  lost=$((lost + 1))
  echo "run $i failed with $status: lintel-bench ${command[*]}" >&2
  cat "$root/err" >&2
done
echo "$((runs - lost)) of $runs runs went through"
[[ $lost == 0 ]]
