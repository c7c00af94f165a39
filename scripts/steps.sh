# SPDX-License-Identifier: Apache-2.0
# Sourced: what scripts/demo.sh and scripts/test.sh say while they work.

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
