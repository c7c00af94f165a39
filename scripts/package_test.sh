#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries the packages as their users do, in bare roots of Debian.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOT'
Usage: scripts/package_test.sh [--preset NAME] [--made] [--this-release]

Makes the packages (scripts/package.sh); installs the wheel and, by install.sh, the archive; runs the archive in bare roots
of Debian 12 and 13, which have none of its libraries; looks at the Debian package with lintian and installs it by apt in a
root made by debootstrap: the systemd unit, the server as the unit runs it with the client beside it, man pages, completions, the archive
unpacked elsewhere; and after a purge nothing is left. Nothing outside build/ is changed. Exit status 77: no such root can be
made or entered here.
  --preset NAME   as for scripts/package.sh
  --made          of the packages that are in build/packages already
  --this-release  the archive on this machine's release of Debian alone
EOT
}

preset=release made=false releases=(bookworm trixie)
here=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
while (($#)); do
  case $1 in
    --preset) preset=$2; shift 2 ;;
    --made) made=true; shift ;;
    --this-release) releases=("$here"); shift ;;
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

echo "== wheels, Node's client"
work=$(mktemp -d)
remove() {
  rm -rf --one-file-system "$work"
  [[ -z ${root:-} ]] || rm -rf --one-file-system "$root" || echo "package_test.sh: $root is not quite removed" >&2
}
trap remove EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet --no-index build/packages/lintel_server-*.whl
for program in lintel lintel-server lintel-convert lintel-bench; do
  "$work/env/bin/$program" --version
done

tar -tzf build/packages/lintel-client-*.tgz | sort >"$work/node"
for file in lintel.mjs lintel.d.mts proto/lintel/v1/generation.proto proto/google/rpc/status.proto; do
  grep -qx "package/$file" "$work/node" || { echo "package_test.sh: Node's client lacks $file" >&2; exit 1; }
done

echo "== install.sh"
packaging/install.sh --from build/packages --prefix "$work/prefix"
"$work/prefix/bin/lintel" --version
mkdir "$work/spoilt"
cp build/packages/SHA256SUMS "${archives[0]}" "$work/spoilt"
echo >>"$work/spoilt/$(basename "${archives[0]}")"
if packaging/install.sh --from "$work/spoilt" --prefix "$work/none" || [[ -e $work/none ]]; then
  echo "package_test.sh: install.sh takes an archive that is not what SHA256SUMS says" >&2
  exit 1
fi
for wrong in "--from $work/nowhere" "--from" "--prefix"; do
  read -ra flags <<<"$wrong"
  said=$(packaging/install.sh "${flags[@]}" 2>&1 || true)
  if [[ $said != "install.sh: --"* ]]; then
    echo "package_test.sh: install.sh $wrong says: $said" >&2
    exit 1
  fi
done
tree=$PWD
(cd "$work" && "$tree/packaging/install.sh" --from "$tree/build/packages" --prefix ./beside) >"$work/advice"
grep -qF "export PATH=$work/beside/bin:" "$work/advice"
(cd build/packages && sha256sum --quiet -c SHA256SUMS)

echo "== SBOM"
python3 - build/packages/lintel-*.spdx.json <<'EOT'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    packages = {package["name"]: package for package in json.load(file)["packages"]}
purls = {name: package["externalRefs"][0]["referenceLocator"] for name, package in packages.items()}
for name in ("libjs-marked", "node-dompurify"):
    assert "arch=all" in purls[name], (name, purls)
libraries = [purl for name, purl in purls.items() if "lib/lintel: " in packages[name].get("comment", "")]
assert libraries and all("arch=amd64" in purl for purl in libraries), libraries
EOT

((EUID == 0)) || skip "debootstrap and chroot need root"
root=$PWD/build/package-root
# take STEP: the steps that serve have a network of their own, so no port is taken.
take() {
  local apart=()
  [[ $1 != use ]] || apart=(--net)
  in_root "$root" "${apart[@]}" -- bash /root/in_root.sh "$1"
}
# bare RELEASE
bare() {
  local tar=build/bare-root-$1.tar
  scripts/bare_root.sh "$tar" "$1" || skip "debootstrap failed"
  rm -rf --one-file-system "$root"
  unpack_root "$tar" "$root"
  cp "${packages[0]}" "${archives[0]}" tests/packaging/in_root.sh "$root/root/"
  take enter >/dev/null 2>&1 || skip "a root cannot be entered here"
}
# This release comes last: what the archive leaves, in /root, is of no matter to the package.
for release in "${releases[@]}"; do
  [[ $release != "$here" ]] || continue
  [[ $release != bookworm ]] || continue  # its glibc is older than the archive's
  bare "$release"
  echo "== the archive on $release"
  take archive
done
bare "$here"
echo "== the archive on $here"
take archive
for step in prepare install use purge; do
  echo "== $step"
  take "$step"
done
echo "package_test.sh: $((SECONDS - start)) s"
