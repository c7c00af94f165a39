# SPDX-License-Identifier: Apache-2.0
# Sourced by other scripts: builds, tests and progress messages.

step() {
  echo "== $*"
}

# seconds_to_words <seconds>
seconds_to_words() {
  if (($1 < 90)); then echo "about $1 seconds"; else echo "about $((($1 + 30) / 60)) minutes"; fi
}

# build PRESET [TARGET...]: says how many files were never compiled, and how long that takes at most: a file takes
# a core's 8 seconds on average, and none where ccache knows it.
build() {
  local preset=$1 cores object new=0
  cores=$(nproc)
  shift
  for object in $(ninja -C "build/$preset" -t commands "${@:-all}" | sed -nE 's/.* -o ([^ ]+) -c .*/\1/p'); do
    [[ -e build/$preset/$object ]] || new=$((new + 1))
  done
  if ((new == 0)); then
    step "build, preset $preset: what changed"
  else
    step "build, preset $preset: $new files, $(seconds_to_words $((new * 8 / cores + 1))) on $cores cores"
  fi
  NINJA_STATUS='[%f of %t, %e s] ' cmake --build --preset "$preset" ${1:+--target "$@"}
}

# run_tests PRESET [CTEST-ARGUMENT...]: on all cores. On failure the failed checks are printed last.
run_tests() {
  local status=0 log=build/$1/Testing/Temporary/LastTest.log
  rm -f "$log"
  ctest --preset "$1" -j "$(nproc)" "${@:2}" || status=$?
  if ((status != 0)) && [[ -f $log ]]; then
    awk 'sub(/^[0-9]+\/[0-9]+ Test(ing)?: /, "") { name = $0 }
         /FAILED:$|^(--- )?(FAIL(ED)?|ERROR)[: ]|AssertionError|Sanitizer: / { left = 4 }
         left-- > 0 { print name ": " $0 }' "$log" | tail -n 40
  fi
  return $status
}
