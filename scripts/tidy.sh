#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The preset `tidy` over what changed: each file alone, without precompiled headers.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOF'
Usage: scripts/tidy.sh [--since COMMIT [--lines] | --all] [--most N]

Compiles sources with clang, its thread-safety analysis and clang-tidy: those that changed, and those that
include a header that changed. What they find is an error.
  --since COMMIT  since then; default: since the merge base with origin/main, or, where there is none, since
                  the commit before the last
  --lines         only findings of clang-tidy on changed lines: older code has some, too
  --all           every source
  --most N        of more than N sources, check N, evenly spread; a line says that others were left out
EOF
}

since=
all=false
lines=false
most=
while (($#)); do
  case $1 in
    --since) since=$2; shift 2 ;;
    --all) all=true; shift ;;
    --lines) lines=true; shift ;;
    --most) most=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tidy.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

sources=()
if $all; then
  mapfile -t sources < <(git ls-files '*.cpp')
else
  head=$(git rev-parse HEAD)
  : "${since:=$(git merge-base HEAD origin/main 2>/dev/null || true)}"
  [[ -n $since && $(git rev-parse "$since") != "$head" ]] || since=HEAD~1
  changed=$(git diff --name-only --diff-filter=d "$since" -- '*.cpp' '*.h')
  mapfile -t sources < <(
    grep '\.cpp$' <<<"$changed" || true
    for header in $(grep '\.h$' <<<"$changed"); do
      git grep -lF "#include \"$header\"" -- '*.cpp' || true
    done)
fi

cmake --preset tidy >/dev/null
if $lines; then
  ninja -C build/tidy lintel_proto lintel_health_proto >/dev/null  # generated headers
  git diff -U0 --diff-filter=d "$since" -- '*.cpp' '*.h' |
    clang-tidy-diff-14.py -p1 -path build/tidy -quiet -j "$(nproc)" -extra-arg=-Wno-unknown-warning-option |
    tee build/tidy/lines.log
  ! grep -qE '(warning|error): ' build/tidy/lines.log
  exit
fi
mapfile -t objects < <(
  sed -nE 's/.* -o ([^ ]+) -c ([^ ]+)",?$/\2 \1/p' build/tidy/compile_commands.json |
    grep -F -f <(printf "$PWD/%s \n" "${sources[@]:-none}") | cut -d' ' -f2 | sort -u)
if ((${#objects[@]} == 0)); then
  echo "tidy.sh: no source changed since $since"
  exit 0
fi
echo "tidy.sh: ${#objects[@]} sources"
if [[ -n $most ]] && ((${#objects[@]} > most)); then
  echo "tidy.sh: NOT all of them: every $(((${#objects[@]} + most - 1) / most))th; scripts/tidy.sh --all takes the rest"
  mapfile -t objects < <(printf '%s\n' "${objects[@]}" | awk -v step=$(((${#objects[@]} + most - 1) / most)) 'NR % step == 1 || step == 1')
fi
ninja -C build/tidy -k 0 "${objects[@]}"
