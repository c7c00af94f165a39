#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the shared libraries of an installed tree's programs into the tree.
set -euo pipefail

usage() {
  cat <<'EOT'
Usage: scripts/carry_libraries.sh TREE

For the programs in TREE/bin, built on this Debian: copies every shared library that they load, but for glibc's, into
TREE/lib/lintel, where programs and libraries find them before those of the system (DT_RPATH); and for each Debian
package that such a library comes from the file TREE/share/doc/lintel/libraries/PACKAGE, with its copyright and licence.
Prints a line "PACKAGE VERSION LIBRARY..." for each package. Needs patchelf (scripts/setup.sh --packages).
EOT
}

case ${1:-} in
  "" | -h | --help) usage; exit 0 ;;
esac
tree=$1
libraries=$tree/lib/lintel
notices=$tree/share/doc/lintel/libraries
mkdir -p "$libraries" "$notices"

# Libraries of glibc are always those of the system that runs the programs: they belong to its loader and to its names
# of users and hosts.
is_glibc() {
  [[ $1 =~ ^(ld-linux.*|lib(c|m|mvec|dl|pthread|rt|resolv|util|anl|nsl|nss_[a-z]+|thread_db)\.so.*)$ ]]
}

declare -A found  # NAME: the file that the loader takes for it
for program in "$tree"/bin/*; do
  [[ $(head -c 4 "$program" | tail -c 3) == ELF ]] || continue
  while read -r name arrow file _; do
    [[ $arrow == "=>" ]] || continue
    [[ $file != not ]] || { echo "carry_libraries.sh: $program needs $name, which is not here" >&2; exit 1; }
    is_glibc "$name" || found[$name]=$file
  done < <(ldd "$program")
  patchelf --force-rpath --set-rpath "\$ORIGIN/../lib/lintel" "$program"
done

declare -A carried  # PACKAGE: its libraries
for name in "${!found[@]}"; do
  file=$(realpath "${found[$name]}")
  install -m 644 "$file" "$libraries/$name"
  patchelf --force-rpath --set-rpath "\$ORIGIN" "$libraries/$name"
  # A system whose /lib is a link knows the file by one of two names.
  owner=$(dpkg -S "$file" 2>/dev/null || dpkg -S "${file#/usr}")
  package=${owner%%:*}
  carried[$package]+=" $name"
done
for package in "${!carried[@]}"; do
  cp -L "/usr/share/doc/$package/copyright" "$notices/$package"
  echo "$package $(dpkg-query -W -f '${Version}' "$package" 2>/dev/null | head -n 1)${carried[$package]}"
done | sort
