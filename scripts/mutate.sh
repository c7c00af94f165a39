#!/usr/bin/env bash
# Plants small defects, one at a time, and says which of them no test notices.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'USAGE'
Usage: scripts/mutate.sh [--only NAME]... [--bar N] [--build DIR] [--list | --check]

Each tests/mutations/NAME.patch is a defect. All of them are applied to a copy of the tree, which is
built once; then the tests that a patch names are run with LINTEL_MUTATION=NAME, and have to fail.
Prints a line for each defect and how many survive.

  --only NAME  only this one; may be given again; NAME may hold *
  --bar N      exit status 1 when more than N survive [5]
  --build DIR  do not build: run what a former run has built there
  --list       print the names and what each defect is
  --check      only say whether every patch still applies; takes seconds
  --help       this text

Exit status: 0; 1 over the bar; 2 when a patch does not apply, a build fails, or tests fail without
any defect.
USAGE
}

patches=tests/mutations
root=build/mutate
tree=$root/tree
build=$root/build
bar=5
mode=run
prebuilt=
only=()
die() { echo "mutate.sh: $*" >&2; exit 2; }
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --list) mode=list ;;
    --check) mode=check ;;
    --only) only+=("${2:?--only needs a name}"); shift ;;
    --bar) bar=${2:?--bar needs a number}; shift ;;
    --build) prebuilt=${2:?--build needs a folder}; shift ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ $bar =~ ^[0-9]+$ ]] || die "--bar $bar: expected a number, 0 or more"

names=()
for file in "$patches"/*.patch; do
  name=$(basename "$file" .patch)
  ((${#only[@]} == 0)) && names+=("$name") && continue
  for wanted in "${only[@]}"; do
    # shellcheck disable=SC2053  # a pattern
    [[ $name == $wanted ]] && names+=("$name") && break
  done
done
((${#names[@]} > 0)) || die "no defect is named ${only[*]-}"

# A patch's header: a sentence, then the tests that should notice, as "Tests: EXECUTABLE [SPEC]";
# [#session_test] is Catch's name for the tests of session_test.cpp, and "page text" is tests/page/text.test.mjs.
tests_of() { sed -n '/^---/q; s/^Tests: //p' "$patches/$1.patch"; }

if [[ $mode == list ]]; then
  for name in "${names[@]}"; do printf '%-36s %s\n' "$name" "$(head -n 1 "$patches/$name.patch")"; done
  exit 0
fi

# Applies every patch to the copy in $1; what they touch has to be there.
apply_all() {
  local file name
  for file in "$patches"/*.patch; do
    name=$(basename "$file" .patch)
    grep -q "^+.*LINTEL_MUTATION(\"$name\")" "$file" || die "$file does not switch LINTEL_MUTATION(\"$name\")"
    [[ -n $(tests_of "$name") ]] || die "$file names no tests"
    # Little context, and none of it has to match: other patches may have changed it.
    patch -d "$1" -p1 --fuzz=1 --silent --force --no-backup-if-mismatch --reject-file=- <"$file" >/dev/null ||
      die "$file no longer applies: make it anew against the code as it is"
  done
}
touched() { sed -n 's|^+++ b/||p' "$patches"/*.patch | sort -u; }

if [[ $mode == check ]]; then
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' EXIT
  while read -r file; do
    [[ -f $file ]] || die "a patch is for $file, which is not there"
    mkdir -p "$copy/$(dirname "$file")" && cp "$file" "$copy/$file"
  done < <(touched)
  apply_all "$copy"
  echo "all $(ls "$patches"/*.patch | wc -l) patches apply"
  exit 0
fi

# What switches the defects of a file, for its first line. tests/page/chromium.mjs tells a page which one is chosen.
switch_for() {
  case $1 in
    *.js) echo 'globalThis.LINTEL_MUTATION ??= (name) => name === globalThis.process?.env.LINTEL_MUTATION;' ;;
    *) echo '#include "tests/mutations/mutation.h"' ;;
  esac
}

# The copy of the tree. Files that have not changed keep their times, for the next build.
make_tree() {
  local fresh=$root/fresh file
  rm -rf "$fresh" && mkdir -p "$fresh" "$tree"
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [[ -e $file ]] && printf '%s\0' "$file"; done |
    tar --null --files-from=- -cf - | tar -xf - -C "$fresh"
  apply_all "$fresh"
  while read -r file; do sed -i "1i $(switch_for "$file")" "$fresh/$file"; done < <(touched)
  (cd "$tree" && find . -type f) | while read -r file; do
    [[ -e $fresh/$file ]] || rm "$tree/$file"
  done
  (cd "$fresh" && find . -type f -o -type l) | while read -r file; do
    cmp -s "$fresh/$file" "$tree/$file" && continue
    mkdir -p "$tree/$(dirname "$file")" && cp "$fresh/$file" "$tree/$file"
  done
  rm -rf "$fresh"
}

mapfile -t runs < <(for name in "${names[@]}"; do tests_of "$name"; done | sort -u)
mapfile -t targets < <(printf '%s\n' "${runs[@]}" | cut -d' ' -f1 | sed 's/^page$/lintel-server/' | sort -u)
if [[ -n $prebuilt ]]; then
  build=$prebuilt
else
  make_tree
  cmake -S "$tree" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLINTEL_ASSERTIONS=ON >/dev/null ||
    die "the copy in $tree cannot be configured"
  cmake --build "$build" --target "${targets[@]}" || die "the copy in $tree does not build"
fi

# run_tests "EXECUTABLE [SPEC]" SECONDS: the tests, up to the first that fails. Output in $log.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run_tests() {
  local executable=${1%% *}
  local spec=${1#"$executable"}
  if [[ $executable == page ]]; then
    LINTEL_SERVER=$PWD/$build/bin/lintel-server LINTEL_SCREENSHOTS=$PWD/$build/page \
      timeout --kill-after=5 "$2" "$tree/tests/page/run.sh" "${spec# }" >"$log" 2>&1
    return
  fi
  {
    timeout --kill-after=5 "$2" "$build/bin/$executable" ${spec:+"${spec# }"} --abort \
      --warn NoTests --filenames-as-tags --reporter xml >"$log" 2>&1
  } 2>/dev/null  # the shell's word of what crashed
}

echo "== without any defect"
declare -A limit
for run in "${runs[@]}"; do
  begun=$SECONDS
  unset LINTEL_MUTATION
  run_tests "$run" 600 || { tail -n 40 "$log" >&2; die "tests fail without any defect: $run"; }
  limit[$run]=$((3 * (SECONDS - begun) + 20))
done

echo "== ${#names[@]} defects"
survivors=()
for name in "${names[@]}"; do
  begun=$SECONDS
  killer=
  while read -r run; do
    status=0
    LINTEL_MUTATION=$name run_tests "$run" "${limit[$run]}" || status=$?
    ((status == 0)) && continue
    # Catch's last one, or the first that Node says has failed.
    killer=$(sed -n 's/.*<TestCase name="\([^"]*\)".*/\1/p' "$log" | tail -n 1)
    [[ $run != page* ]] || killer=$(sed -n 's/^ *\(not ok [0-9]* -\|✖\) \(.*\)/\2/p' "$log" | head -n 1)
    ((status == 124 || status == 137)) && killer="${killer:-$run}, which did not end"
    killer=${killer:-$run}
    break
  done < <(tests_of "$name")
  if [[ -n $killer ]]; then
    printf '%-36s killed by "%s" in %d s\n' "$name" "$killer" $((SECONDS - begun))
  else
    printf '%-36s SURVIVED\n' "$name"
    survivors+=("$name")
  fi
done
echo "${#survivors[@]} of ${#names[@]} survive"
if ((${#survivors[@]} > bar)); then
  echo "more than $bar: ${survivors[*]}" >&2
  exit 1
fi
