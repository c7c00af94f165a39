#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a bare Debian, as debian:bookworm-slim and debian:trixie-slim are, for tests where no image can be pulled.
set -euo pipefail

case ${1:-} in
  "" | -h | --help)
    echo "Usage: scripts/bare_root.sh FILE.tar [RELEASE]"
    echo
    echo "Writes Debian's smallest root file system by debootstrap (scripts/setup.sh --packages), as root, which takes"
    echo "half a minute; a file that is there and younger than a week stays. RELEASE: bookworm (default) or trixie."
    exit 0 ;;
esac
tar=$1
release=${2:-bookworm}
[[ -z $(find "$tar" -mtime -7 2>/dev/null) ]] || exit 0
if ! command -v debootstrap >/dev/null || ((EUID != 0)); then
  echo "bare_root.sh: needs debootstrap (scripts/setup.sh --packages) and root" >&2
  exit 1
fi
work=$(mktemp -d "$(realpath "$(dirname "$tar")")/bare-root.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
debootstrap --variant=minbase --include=ca-certificates "$release" "$work/root" >"$work/log" 2>&1 \
  || { tail -n 20 "$work/log" >&2; exit 1; }
rm -rf "$work/root"/{var/cache/apt/archives/*.deb,var/lib/apt/lists/*,usr/share/doc/*,usr/share/man/*,usr/share/locale/*}
tar -C "$work/root" -cf "$work/root.tar" .
mv "$work/root.tar" "$tar"
