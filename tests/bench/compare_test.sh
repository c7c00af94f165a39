#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What scripts/compare.sh writes into docs/comparison.md, with stubs in place of the build and of lintel-bench:
# nothing is built or measured.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{docs,scripts,stubs,build/release/bin,mnist}
cp "$repository/scripts/compare.sh" "$root/scripts/"
printf '#!/bin/sh\n' | tee "$root/scripts/setup.sh" >"$root/stubs/cmake"
touch "$root/build/release/CMakeCache.txt" "$root"/mnist/t10k-{images-idx3,labels-idx1}-ubyte.gz
cat >"$root/build/release/bin/lintel-bench" <<'EOT'
#!/usr/bin/env bash
name=$1
while [[ $1 != --run ]]; do shift; done
[[ ! -f failing ]] || { echo half; exit 1; }
echo "$name of $2 in round $(<round)"
EOT
chmod +x "$root/scripts/setup.sh" "$root/stubs/cmake" "$root/build/release/bin/lintel-bench"
cd "$root"
page=docs/comparison.md
cat >$page <<'EOT'
before
<!-- compare:begin -->
nothing yet
<!-- compare:end -->
after
EOT

compare() { PATH=$root/stubs:$PATH scripts/compare.sh --out results "$@" >log 2>&1; }
die() {
  echo "FAILED: $1" >&2
  cat log $page >&2
  exit 1
}
# measured NAME=ROUND...: the page has these comparisons, of one run, and no others.
measured() {
  local expected
  expected=$(for part in "$@"; do echo "${part%=*} of $(<results/run) in round ${part#*=}"; done)
  [[ $(grep ' in round ' $page) == "$expected" ]] || die "the page should have $*"
  [[ $(head -n 1 $page) == before && $(tail -n 1 $page) == after ]] || die "text beside the section is lost"
}
# refused WORDS ARGUMENT...: says so, and leaves the page alone.
refused() {
  local words=$1 status=0
  shift
  cp $page kept
  compare "$@" || status=$?
  ((status == 2)) || die "$* ended with $status"
  grep -q -e "$words" log || die "$* did not say: $words"
  cmp -s $page kept || die "$* changed the page"
}

echo 1 >round
refused 'no run in results' --again serve
compare --data mnist || die 'a whole run failed'
measured paper=1 length=1 serve=1 occlusion=1
echo 2 >round
compare --again serve || die '--again serve failed'
measured paper=1 length=1 serve=2 occlusion=1
compare --again occlusion --data mnist || die '--again occlusion failed'
measured paper=1 length=1 serve=2 occlusion=2
refused 'there are paper, length' --again srve
refused 'needs --data' --again paper
refused 'needs --data' --again occlusion

echo 3 >round
touch failing
! compare --again length || die 'a failed measurement went unseen'
rm failing
compare --again serve || die '--again serve failed'
measured paper=1 length=1 serve=3 occlusion=2

echo 4 >round
compare || die 'a run without data failed'
measured paper=4 length=4 serve=4
[[ $(grep -c '^!\[' $page) == 2 ]] || die 'the plots are not shown once each'
for plot in $(sed -n 's/^!.*](\(.*\))$/\1/p' $page); do
  [[ -f $repository/docs/$plot ]] || die "no $plot beside the page"
done
echo 'all passed'
