# Sourced: what scripts/demo.sh and scripts/test.sh say while they work.

step() {
  echo "== $*"
}

# seconds_to_words <seconds>
seconds_to_words() {
  if (($1 < 90)); then echo "about $1 seconds"; else echo "about $((($1 + 30) / 60)) minutes"; fi
}

# build PRESET [TARGET...]: says how many files there are to compile, and how long that takes at most. A file
# takes a core's 5 seconds on average; what ccache knows takes none.
build() {
  local preset=$1 files cores
  shift
  local targets=()
  (($# == 0)) || targets=(--target "$@")
  files=$(cmake --build --preset "$preset" "${targets[@]}" -- -n | grep -c 'Building CXX' || true)
  cores=$(nproc)
  if ((files == 0)); then
    step "build, preset $preset: nothing to compile"
  else
    step "build, preset $preset: $files files to compile, $(seconds_to_words $((files * 5 / cores + 1))) on $cores cores"
  fi
  NINJA_STATUS='[%f of %t, %e s] ' cmake --build --preset "$preset" "${targets[@]}"
}
