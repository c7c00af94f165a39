#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what is installed without a compiler: a Debian package, an archive for any Linux, wheels, and their sums.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh

usage() {
  cat <<'EOT'
Usage: scripts/package.sh [--preset NAME] [--release NAME]

Writes into build/packages:
  lintel_VERSION_RELEASE_amd64.deb    for the release of Debian that builds it: apt install ./lintel_*.deb
  lintel-VERSION-linux-amd64.tar.gz   for every Linux whose glibc is as old as that release's (Debian 12: 2.36) or newer:
                                      to be unpacked anywhere; it carries all other libraries
  lintel_client-VERSION-py3-none-any.whl             the Python client: pip install lintel-client
  lintel_server-VERSION-py3-none-manylinux_*.whl     the programs of the archive: pip install lintel-server
  lintel-client-VERSION.tgz           the client for Node: npm install
  lintel-VERSION.spdx.json            what the archive carries: SPDX 2.3
  SHA256SUMS                          of all of them
  --preset NAME   CMake preset of the build: release (default), or ci, which scripts/test.sh makes
  --release NAME  of Debian, bookworm or trixie: builds there, as root, in a clean root that debootstrap makes in
                  build/release-NAME and that stays for the next time; adds its .deb to build/packages
EOT
}

preset=release release=
while (($#)); do
  case $1 in
    --preset) preset=$2; shift 2 ;;
    --release) release=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "package.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

if [[ -n $release ]]; then
  ((EUID == 0)) || { echo "package.sh: --release needs root" >&2; exit 1; }
  dir=build/release-$release
  in_release "$release" "$dir" scripts/package.sh --preset "$preset"
  mkdir -p build/packages
  cp "$dir"/build/packages/lintel_*.deb build/packages
  exit
fi

start=$SECONDS
scripts/setup.sh --packages
flags=()
[[ $preset != release ]] || flags=(-DLINTEL_TESTS=OFF)
cmake --preset "$preset" "${flags[@]}" >/dev/null
# The same commit gives the same pages and archives.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
cmake --build --preset "$preset" --target lintel_described
built=$SECONDS

out=$PWD/build/packages
rm -rf "$out"
mkdir -p "$out"
cpack --config "build/$preset/CPackConfig.cmake" -B "$out/work" >"$out/cpack.log" 2>&1 || { cat "$out/cpack.log" >&2; exit 1; }
mv "$out"/work/*.deb "$out"/work/*.tar.gz "$out"
rm -rf "$out/work"

# The archive with the libraries of this release in it, the same for the same commit and libraries.
archive=$(echo "$out"/*.tar.gz)
mkdir "$out/work"
tar -C "$out/work" -xzf "$archive"
tree=$(echo "$out"/work/*)
scripts/carry_libraries.sh "$tree" >"$out/work/libraries"
name=$(basename "$tree")
version=${name#lintel-} version=${version%-linux-*}
scripts/sbom.py --name "$name" --version "$version" <"$out/work/libraries" >"$out/lintel-$version.spdx.json"
tar -C "$out/work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$name" |
  gzip -9n >"$archive"
packaging/wheel.py "$tree" "$out" "$version"
rm -rf "$out/work"

# From a copy: pip leaves things where it builds. Debian's protoc writes what the wheel needs of proto/.
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import pip, setuptools, wheel' 2>/dev/null; then break; fi
done
mkdir -p "$out/wheel/client"
cp -r proto "$out/wheel/"
cp -r client/python "$out/wheel/client/"
"$python" -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir "$out" "$out/wheel/client/python"
rm -rf "$out/wheel"

# Copies the client with the interfaces, which lie above it here.
mkdir "$out/node"
cp -r client/node/. proto "$out/node/"
(cd "$out/node" && npm pack --silent --pack-destination "$out" >/dev/null)
rm -rf "$out/node"

cd "$out"
sha256sum -- *.deb *.tar.gz *.whl *.tgz *.json >SHA256SUMS
ls -l -- *.deb *.tar.gz *.whl *.tgz *.json
echo "package.sh: build $((built - start)) s, packages $((SECONDS - built)) s"
