#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the attention backends on this machine and puts the tables and plots into docs/comparison.md.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOT'
Usage: scripts/compare.sh [--data DIR] [--out DIR] [--quick | --again NAME]

Builds lintel-bench (preset release), runs its four comparisons one after the other as one run, and
replaces what docs/comparison.md has between the markers `compare:begin` and `compare:end`, and
docs/images/{length,serve}.png. Takes about half an hour on two cores; leave the machine alone
meanwhile.
  --data DIR   MNIST files as they are distributed: t10k*images*idx3* and t10k*labels*idx1*.
               Without it there are no bits/dim and no occlusion experiment.
  --out DIR    where JSON, CSV and Markdown of each comparison go (default build/compare)
  --again NAME repeat only the comparison NAME (paper, length, serve or occlusion), as part of the run that
               --out holds; the others stay as they are there. paper and occlusion need --data again.
  --quick      a minute of small models, to see that everything works; docs/comparison.md is left alone
EOT
}

data= out=build/compare quick=false again=
while (($#)); do
  case $1 in
    --data) data=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --quick) quick=true; shift ;;
    --again) again=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "compare.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

fail() {
  echo "compare.sh: $1" >&2
  exit 2
}
if [[ -n $again ]]; then
  case $again in
    paper | occlusion) [[ -n $data ]] || fail "--again $again needs --data" ;;
    length | serve) ;;
    *) fail "--again $again: there are paper, length, serve and occlusion" ;;
  esac
  [[ -f $out/run && -f $out/load ]] || fail "--again $again: there is no run in $out"
fi

images= labels=
if [[ -n $data ]]; then
  images=$(compgen -G "$data/t10k*images*idx3*" | head -n 1) || fail "no test images in $data"
  labels=$(compgen -G "$data/t10k*labels*idx1*" | head -n 1) || fail "no test labels in $data"
fi

load=$(cut -d ' ' -f 1 /proc/loadavg)  # before the build adds to it
scripts/setup.sh --bench
[[ -f build/release/CMakeCache.txt ]] || cmake --preset release -DLINTEL_TESTS=OFF >/dev/null
cmake --build --preset release --target lintel-bench

mkdir -p "$out"
run=$(date -u +%Y%m%d-%H%M)
if [[ -n $again ]]; then
  run=$(<"$out/run")
  load=$(<"$out/load")
else
  rm -f "$out"/{paper,length,serve,occlusion}.{md,json,csv}  # of an earlier run, which had other parts
fi
echo "$run" >"$out/run"
echo "$load" >"$out/load"
page=docs/comparison.md
pictures=docs/images
paper=(--batch 64 --repeats 3 --positions 8)
length=(--attention all --positions 100,300,1000,3000,10000,30000,100000 --repeats 3 --budget 20)
serve=(--concurrency 1,8,64 --repeats 3 --seconds 5)
occlusion=(--repeats 1)
if $quick; then
  pictures=$out
  paper=(--shape mnist-small --batch 16 --repeats 1 --positions 4 --score-images 20)
  length=(--shape mnist-small --attention all --positions 100,1000 --repeats 2 --budget 3)
  serve=(--shape mnist-small --concurrency 1,8 --repeats 1 --seconds 0.5)
  occlusion=(--repeats 1 --counts 10,20 --judge 40)
fi

# bench NAME FLAG...: one comparison; its tables go to $out/NAME.{md,json,csv}.
bench() {
  local name=$1
  shift
  [[ -z $again || $again == "$name" ]] || return 0
  echo "== lintel-bench $name $*" >&2
  build/release/bin/lintel-bench "$name" "$@" --run "$run" --json "$out/$name.json" --csv "$out/$name.csv" >"$out/new.md"
  mv "$out/new.md" "$out/$name.md"
}

bench paper "${paper[@]}" ${images:+--images "$images"}
bench length "${length[@]}" --plot "$pictures/length.png"
bench serve "${serve[@]}" --plot "$pictures/serve.png"
if [[ -n $images ]]; then
  bench occlusion "${occlusion[@]}" --images "$images" --labels "$labels"
fi

# part NAME [PLOT]: what the run has of a comparison. Blank lines stand between parts.
between=
part() {
  [[ -f $out/$1.md ]] || return 0
  printf '%s' "$between"
  cat "$out/$1.md"
  [[ -z ${2:-} ]] || printf '\n%s\n' "$2"
  between=$'\n'
}

section=$out/section.md
{
  printf 'Load average before the run: %s on %s cores. ' "$load" "$(nproc)"
  printf 'Where it is well above 0, others used the machine too: figures are lower than it can give, and uneven.\n\n'
  part paper
  part length '![Microseconds a token and bytes a session against position](images/length.png)'
  part serve '![Tokens a second and time between tokens by concurrent clients](images/serve.png)'
  part occlusion
} >"$section"
if $quick; then cat "$section"; exit 0; fi

awk -v section="$section" '
  /<!-- compare:end/ { inside = 0 }
  !inside { print }
  /<!-- compare:begin/ { inside = 1; while ((getline line < section) > 0) print line }
' "$page" >"$out/page.md"
grep -q 'compare:end' "$out/page.md"
cp "$out/page.md" "$page"
echo "compare.sh: $page and $pictures are new; everything is in $out" >&2
