#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs Lintel's archive, after a look at its sum.
set -eu

usage() {
  cat <<'EOT'
Usage: install.sh [--from URL] [--prefix DIR]

Fetches lintel-VERSION-linux-amd64.tar.gz and SHA256SUMS from URL (a release; a folder works, too), compares the sum,
unpacks the archive into DIR/lib/lintel-VERSION and links its programs into DIR/bin.
  --from URL     default: the release that this script is of
  --prefix DIR   default: /usr/local for root, else ~/.local
To remove it: rm -r DIR/lib/lintel-VERSION DIR/bin/lintel DIR/bin/lintel-*
EOT
}

fail() {
  echo "install.sh: $1" >&2
  exit 1
}

from=${LINTEL_RELEASE:-@release@}
prefix=$HOME/.local
[ "$(id -u)" != 0 ] || prefix=/usr/local
while [ $# -gt 0 ]; do
  case $1 in
    --from | --prefix)
      [ -n "${2:-}" ] || { echo "install.sh: $1 needs a value" >&2; exit 2; }
      if [ "$1" = --from ]; then from=$2; else prefix=$2; fi
      shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "install.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done
case $from in
  @*) echo "install.sh: of which release? --from URL" >&2; exit 2 ;;
esac
case $from in
  http://* | https://*) ;;
  *)
    [ -d "$from" ] || fail "--from: there is no folder $from"
    from=$(cd "$from" && pwd) ;;
esac
case $prefix in
  /*) ;;
  *) prefix=$PWD/${prefix#./} ;;
esac
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "the archive is for Linux on x86-64, not for $(uname -s) on $(uname -m)"

# fetch NAME: into the current folder.
fetch() {
  case $from in
    http://* | https://*)
      if command -v curl >/dev/null; then
        curl -fL --proto '=http,https' --retry 3 -o "$1" "$from/$1"
      elif command -v wget >/dev/null; then
        wget -O "$1" "$from/$1"
      else
        fail "there is neither curl nor wget"
      fi ;;
    *) cp "$from/$1" . ;;
  esac || fail "$from/$1 cannot be fetched"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(
  cd "$work"
  fetch SHA256SUMS
  grep 'lintel-[0-9.]*-linux-amd64\.tar\.gz$' SHA256SUMS >sum || fail "SHA256SUMS names no archive"
  archive=$(sed 's/^[0-9a-f]* [ *]//' sum)
  case $archive in
    */* | *" "* | "") fail "SHA256SUMS names a strange archive: $archive" ;;
  esac
  fetch "$archive"
  sha256sum -c sum >/dev/null || fail "$archive is not what SHA256SUMS says: nothing was installed"
  tar -xzf "$archive"
)
tree=$(echo "$work"/lintel-*-linux-amd64)
name=$(basename "$tree")
name=${name%-linux-amd64}
mkdir -p "$prefix/lib" "$prefix/bin"
rm -rf "$prefix/lib/$name"
mv "$tree" "$prefix/lib/$name"
for program in "$prefix/lib/$name/bin"/*; do
  ln -sf "../lib/$name/bin/$(basename "$program")" "$prefix/bin/$(basename "$program")"
done
"$prefix/bin/lintel-server" --version >/dev/null || fail "the programs do not run here: their glibc is newer than this system's"
echo "$name is in $prefix. Next: lintel-server"
case :$PATH: in
  *:"$prefix/bin":*) ;;
  *) echo "$prefix/bin is not in PATH: export PATH=$prefix/bin:\$PATH" ;;
esac
