#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/scale.sh: what it pins and prints, with stubs in place of the programs; then a run of seconds with those in
# LINTEL_BIN, on one core.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cd "$root"
mkdir bin
cat >bin/lintel-server <<'EOT'
#!/usr/bin/env bash
echo "server $(nproc) $*" >>"$CALLS"
echo 'lintel-server ready on 127.0.0.1:1'
sleep 60 & trap 'kill $!; exit' TERM
wait
EOT
cat >bin/lintel-bench <<'EOT'
#!/usr/bin/env bash
echo "$1 $(nproc) $*" >>"$CALLS"
cores=$(nproc)
while [[ $1 != --json ]]; do shift; done
cat >"$2" <<JSON
{"alone": {"tokens_per_s": $((10 * cores))}, "seqs_16": {"tokens_per_s": 40}, "prompt_512": {"tokens_per_s": 700.4},
 "seqs_64": {"tokens_per_s": 1234.5, "grpc_tokens_per_s": 900}, "tokens_per_s": 55, "requests_per_s": 1.25,
 "ttft_ms": {"p50": 81.25}, "refused": 2, "failed": 0, "weight_type": "int8",
 "run": {"date": "2026-11-30", "machine": {"cpu": "a processor", "build": "Release"}, "model": "m", "weight_type": "int8"}}
JSON
EOT
chmod +x bin/*
export CALLS=$root/calls
model=$repository/weights/text-rwkv7-small

die() {
  echo "FAILED: $1" >&2
  cat log calls >&2 || true
  exit 1
}
scale() { : >calls && "$repository/scripts/scale.sh" --model "$model" --out "$root/results" "$@" >table 2>log; }
# refused WORDS ARGUMENT...
refused() {
  local words=$1 status=0
  shift
  scale --bin "$root/bin" "$@" || status=$?
  ((status == 2)) || die "$* ended with $status"
  grep -q -e "$words" log || die "$* did not say: $words"
}

refused 'unknown argument --core' --core 1
refused '--cores 0' --cores 0
refused "there are $(nproc)" --cores 1,1000000
refused '--minutes 0' --minutes 0
refused 'needs an argument' --bin

scale --bin "$root/bin" || die 'a run over all cores failed'
expected= count=1
while ((count < $(nproc))); do expected+="$count " && ((count *= 2)); done
expected+="$(nproc) "
for of in large server; do
  [[ $(awk -v of=$of '$1 == of { printf "%s ", $2 }' calls) == "$expected" ]] || die "$of should run on $expected cores"
  awk -v of=$of '$1 == of && !index($0, "--workers " $2 " ")' calls | grep -q . && die "$of has other workers than cores"
done
grep -q '^| 1 | 10 | 40 | 1,234 | 900 | 700 | 55 | 1.25 | 81.2 |$' table || die 'the first row is not what was measured'
grep -q '4 requests of the users were refused' table || (($(nproc) != 2)) || die 'refused requests are left out'
cmp -s table results/scale.md || die 'scale.md is another table'
if (($(nproc) > 1)); then grep -q '^| 2 | 2.00 | 1.00 ' table || die 'the second row is not over the first'; fi

if [[ -n ${LINTEL_BIN:-} ]]; then
  scale --bin "$LINTEL_BIN" --cores 1 --minutes 0.1 || die 'a run of seconds failed'
  grep -Eq '^\| 1( \| [0-9][0-9,.e+]*){8} \|$' table || die 'a figure is missing'
fi
echo 'all passed'
