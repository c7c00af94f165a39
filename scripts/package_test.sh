#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian package in a bare Debian 12, uses it as its users do, and takes it away again.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOT'
Usage: scripts/package_test.sh [--preset NAME] [--made]

Makes the packages (scripts/package.sh), looks at them with lintian, and installs the Debian package by apt in a root made by
debootstrap: the systemd unit, the server as the unit runs it with the client beside it, man pages, completions, the archive
unpacked elsewhere; and after a purge nothing is left. Nothing outside build/ is changed. Exit status 77: no such root can be
made or entered here.
  --preset NAME   as for scripts/package.sh
  --made          of the packages that are in build/packages already
EOT
}

preset=release made=false
while (($#)); do
  case $1 in
    --preset) preset=$2; shift 2 ;;
    --made) made=true; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "package_test.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

skip() {
  echo "package_test.sh: SKIPPED: $1" >&2
  exit 77
}

$made || scripts/package.sh --preset "$preset"
start=$SECONDS
packages=(build/packages/lintel_*.deb)
archives=(build/packages/lintel-*.tar.gz)

echo "== lintian"
lintian --allow-root --fail-on error,warning "${packages[0]}"

((EUID == 0)) || skip "debootstrap and chroot need root"
scripts/bare_root.sh build/bare-root.tar || skip "debootstrap failed"
root=$PWD/build/package-root
remove_root() {
  rm -rf --one-file-system "$root" || echo "package_test.sh: $root is not quite removed" >&2
}
rm -rf --one-file-system "$root"
trap remove_root EXIT
unpack_root build/bare-root.tar "$root"
cp "${packages[0]}" "${archives[0]}" tests/packaging/in_root.sh "$root/root/"

# take STEP: the steps that serve have a network of their own, so no port is taken.
take() {
  local apart=()
  [[ $1 != use ]] || apart=(--net)
  in_root "$root" "${apart[@]}" -- bash /root/in_root.sh "$1"
}
take enter >/dev/null 2>&1 || skip "a root cannot be entered here"
for step in prepare install use purge; do
  echo "== $step"
  take "$step"
done
echo "package_test.sh: $((SECONDS - start)) s"
