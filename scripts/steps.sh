# SPDX-License-Identifier: Apache-2.0
# Sourced by other scripts: builds, tests, bare roots and progress messages.

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

# tests_at_a_time: one more than cores, as several wait for a lease, a disk or a process for most of their time.
tests_at_a_time() {
  echo $(($(nproc) + 1))
}

# run_tests PRESET [CTEST-ARGUMENT...]: on all cores. On failure the failed checks are printed last.
run_tests() {
  local status=0 log=build/$1/Testing/Temporary/LastTest.log
  rm -f "$log"
  ctest --preset "$1" -j "$(tests_at_a_time)" "${@:2}" || status=$?
  if ((status != 0)) && [[ -f $log ]]; then
    awk 'sub(/^[0-9]+\/[0-9]+ Test(ing)?: /, "") { name = $0 }
         /FAILED:$|^(--- )?(FAIL(ED)?|ERROR)[: ]|AssertionError|Sanitizer: / { left = 4 }
         left-- > 0 { print name ": " $0 }' "$log" | tail -n 40
  fi
  return $status
}

# unpack_root FILE.tar DIR: a root that scripts/bare_root.sh made, ready for apt, which reaches Debian as this machine
# does and starts no service.
unpack_root() {
  mkdir -p "$2"
  tar -C "$2" -xf "$1"
  cp -L /etc/resolv.conf "$2/etc/resolv.conf" 2>/dev/null || true
  apt-config dump | grep -i '^Acquire::https\?::.*proxy' >"$2/etc/apt/apt.conf.d/80here" || true
  printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d"
  chmod 755 "$2/usr/sbin/policy-rc.d"
}

# in_release RELEASE DIR COMMAND...: this tree on another release of Debian: in a root in DIR, which keeps the root, the
# tree's build folder there and the compiler's cache for the next time. Status 77: no root can be made or entered here.
in_release() {
  local release=$1 dir root
  mkdir -p "$2"/{build,ccache}
  dir=$(realpath "$2")
  root=$dir/root
  shift 2
  if [[ ! -e $dir/made ]]; then
    step "root of $release"
    rm -rf --one-file-system "$root"
    scripts/bare_root.sh "$dir/root.tar" "$release" || return 77
    unpack_root "$dir/root.tar" "$root"
    rm "$dir/root.tar"
    touch "$dir/made"
  fi
  in_root "$root" -- true 2>/dev/null || return 77
  LINTEL_BINDS="$PWD /lintel
$dir/build /lintel/build
$dir/ccache /root/.cache/ccache" in_root "$root" -- bash -euo pipefail -c 'cd /lintel; "$@"' lintel "$@"
}

# in_root DIR [UNSHARE-OPTION...] -- COMMAND...: with mounts and processes that end with it. LINTEL_BINDS: folders of
# this machine to be seen in the root, one "FROM TO" a line.
in_root() {
  local root=$1 apart=(--mount --pid --fork)
  shift
  while [[ $1 != -- ]]; do
    apart+=("$1")
    shift
  done
  shift
  unshare "${apart[@]}" --propagation private bash -euc '
    root=$0
    mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    while read -r from to; do
      [[ -n $from ]] || continue
      mkdir -p "$root$to"
      mount --bind "$from" "$root$to"
    done <<<"${LINTEL_BINDS:-}"
    exec chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
      LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"' "$root" "$@"
}
