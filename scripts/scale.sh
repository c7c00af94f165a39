#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures speed on 1, 2, 4 ... cores of this machine and prints the table.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOT'
Usage: scripts/scale.sh [--minutes M] [--cores N[,N...]] [--shape NAME | --model DIR] [--weight-type TYPE]
                        [--bin DIR] [--out DIR]

Runs lintel-bench large, and lintel-bench load at a lintel-server, pinned to 1, 2, 4 ... and all cores of this machine,
and prints a table: tokens/s of one sequence, of 16 and of 64, in process and of 64 through gRPC, of a prompt of 512
tokens; tokens/s, requests/s and median time to the first token of 64 users. A row has as many workers as cores, one of
each pair of hyperthreads first. The users of load run on other cores, where there are some. Leave the machine alone
meanwhile.
  --minutes M        time for all of it, without the build (default 8): windows are as long as that allows, at least
                     0.05 s, so that many cores with a large shape take longer
  --cores N[,N...]   numbers of cores
  --shape NAME       random weights of a published shape (scripts/random_checkpoint.py --help; default rwkv7-0.1b,
                     which loads in seconds; models of a billion parameters use more cores)
  --model DIR        a checkpoint with a tokenizer in place of a shape
  --weight-type TYPE default int8
  --bin DIR          programs to measure; without it the preset release is built
  --out DIR          JSON of each measurement, and the table as scale.md (default build/scale)
EOT
}

minutes=8 counts= shape=rwkv7-0.1b model= type=int8 bin= out=build/scale
while (($#)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --minutes | --cores | --shape | --model | --weight-type | --bin | --out)
      (($# > 1)) || { echo "scale.sh: $1 needs an argument" >&2; exit 2; }
      case $1 in
        --minutes) minutes=$2 ;;
        --cores) counts=$2 ;;
        --shape) shape=$2 ;;
        --model) model=$2 ;;
        --weight-type) type=$2 ;;
        --bin) bin=$2 ;;
        --out) out=$2 ;;
      esac
      shift 2 ;;
    *) echo "scale.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

fail() {
  echo "scale.sh: $1" >&2
  exit "${2:-1}"
}
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ && $minutes =~ [1-9] ]] || fail "--minutes $minutes: more than 0 is required" 2
[[ -z $counts || $counts =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || fail "--cores $counts: numbers from 1 on, with commas between them" 2

# The cores that this process may use, one of each pair of hyperthreads first.
cores=() twins=()
allowed=$(taskset -cp $$)
for range in $(tr ',' ' ' <<<"${allowed##*: }"); do
  for ((core = ${range%-*}; core <= ${range#*-}; ++core)); do
    first=$(sed 's/[,-].*//' "/sys/devices/system/cpu/cpu$core/topology/thread_siblings_list" 2>/dev/null || echo "$core")
    if [[ $first == "$core" ]]; then cores+=("$core"); else twins+=("$core"); fi
  done
done
cores+=("${twins[@]}")
if [[ -z $counts ]]; then
  for ((count = 1; count < ${#cores[@]}; count *= 2)); do counts+=$count,; done
  counts+=${#cores[@]}
fi
IFS=, read -ra counts <<<"$counts"
for count in "${counts[@]}"; do
  ((count <= ${#cores[@]})) || fail "--cores $count: there are ${#cores[@]}" 2
done

if [[ -z $bin ]]; then
  scripts/setup.sh --bench >&2
  [[ -f build/release/CMakeCache.txt ]] || cmake --preset release -DLINTEL_TESTS=OFF >&2
  cmake --build --preset release --target lintel-bench lintel-server >&2
  bin=build/release/bin
fi
mkdir -p "$out"
subject=(--shape "$shape")
if [[ -n $model ]]; then
  subject=(--model "$model")
else
  # Any tokenizer does: the text means nothing.
  model=$out/$shape
  [[ -f $model/model.safetensors ]] || scripts/random_checkpoint.py "$shape" "$model"
  cp weights/text-rwkv7-small/tokenizer.json weights/text-rwkv7-small/tokenizer_config.json "$model/"
fi

# A row's seconds. `large` has 56 windows, and takes some 15 s to load, to warm up and to measure what the machine
# allows; `load` takes a quarter of the row.
row=$(awk "BEGIN { print $minutes * 60 / ${#counts[@]} }")
window=$(awk "BEGIN { w = ($row * 0.75 - 15) / 56; print (w < 0.05 ? 0.05 : (w > 2 ? 2 : w)) }")
load=$(awk "BEGIN { s = $row / 5 - 2; print (s < 1 ? 1 : s) }")
warm_up=$(awk "BEGIN { print ($load < 4 ? 0 : $load / 4) }")

server=
stop_server() {
  [[ -z $server ]] || { kill "$server" 2>/dev/null && wait "$server"; } || true
  server=
}
trap stop_server EXIT

# list FROM COUNT: numbers of cores for taskset.
list() {
  local IFS=,
  echo "${cores[*]:$1:$2}"
}

# measure_load COUNT FILE: users of a server on so many cores.
measure_load() {
  local users=("${cores[@]:$1}") address log=$out/server.log
  ((${#users[@]} > 0)) && users=$(list "$1" "${#users[@]}") || users=$(list 0 "$1")
  : >"$log"
  taskset -c "$(list 0 "$1")" "$bin/lintel-server" --model "$model" --weight-type "$type" --workers "$1" \
    --listen 127.0.0.1:0 --http-listen off >"$log" 2>&1 &
  server=$!
  for ((i = 0; i < 1200; ++i)); do
    address=$(sed -n 's/^lintel-server ready on //p' "$log")
    [[ -z $address ]] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  [[ -n $address ]] || { cat "$log" >&2; fail 'the server did not start'; }
  taskset -c "$users" "$bin/lintel-bench" load --api generate --target "$address" --users 64 --turns 3 --prompt-words 50 \
    --answer-tokens 32 --ignore-eos --seed 1 --warm-up "$warm_up" --duration "$load" --json "$2" >"$out/load.log" ||
    { cat "$out/load.log" >&2; fail 'lintel-bench load failed'; }
  stop_server
}

rm -f "$out"/{large,load}-*.json
for count in "${counts[@]}"; do
  echo "== $count cores: $(list 0 "$count")" >&2
  taskset -c "$(list 0 "$count")" "$bin/lintel-bench" large "${subject[@]}" --weight-type "$type" --workers "$count" \
    --repeats 1 --seconds "$window" --json "$out/large-$count.json" >"$out/large.log" ||
    { cat "$out/large.log" >&2; fail 'lintel-bench large failed'; }
  measure_load "$count" "$out/load-$count.json"
done

python3 - "$out" "${counts[@]}" <<'EOT' | tee "$out/scale.md"
import json
import sys

out, counts = sys.argv[1], sys.argv[2:]
LARGE = {"1 sequence": ("alone", "tokens_per_s"), "16": ("seqs_16", "tokens_per_s"), "64": ("seqs_64", "tokens_per_s"),
         "64, gRPC": ("seqs_64", "grpc_tokens_per_s"), "prompt of 512": ("prompt_512", "tokens_per_s")}
rows, refused = [], 0
for count in counts:
    large = json.load(open(f"{out}/large-{count}.json"))
    load = json.load(open(f"{out}/load-{count}.json"))
    refused += load["refused"] + load["failed"]
    rows.append([large[name][figure] for name, figure in LARGE.values()] +
                [load["tokens_per_s"], load["requests_per_s"], load.get("ttft_ms", {}).get("p50")])


def cell(value):
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


names = [*LARGE, "64 users", "requests/s", "first token, ms"]
print("| cores | " + " | ".join(names) + " |\n|" + "---:|" * (len(names) + 1))
for count, row in zip(counts, rows):
    print(f"| {count} | " + " | ".join(map(cell, row)) + " |")
if len(rows) > 1:
    print(f"\n| over {counts[0]} | " + " | ".join(names[:-1]) + " |\n|" + "---:|" * len(names))
    for count, row in zip(counts[1:], rows[1:]):
        print(f"| {count} | " + " | ".join(f"{a / b:.2f}" if a and b else "" for a, b in zip(row[:-1], rows[0])) + " |")
run = large["run"]
print(f"\n*tokens/s but where a column says otherwise, one window each; {run['date']} UTC, {run['machine']['cpu']}, "
      f"{run['machine']['build']}; {run['model']}, {run['weight_type']}.*")
if refused:
    print(f"\n{refused} requests of the users were refused or failed.")
EOT
