#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the packages: for Debian, as an archive, and the Python client as a wheel.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOT'
Usage: scripts/package.sh [--preset NAME]

Writes into build/packages:
  lintel_VERSION_amd64.deb            for the release of Debian that builds it: apt install ./lintel_*.deb
  lintel-VERSION-linux-amd64.tar.gz   the same files, to be unpacked anywhere; the libraries they need are those
                                      that the Debian package depends on
  lintel-VERSION-py3-none-any.whl     the Python client: pip install lintel-*.whl
  --preset NAME   CMake preset of the build: release (default), or ci, which scripts/test.sh makes
EOT
}

preset=release
while (($#)); do
  case $1 in
    --preset) preset=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "package.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

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

# From a copy: pip leaves things where it builds. Debian's protoc writes what the wheel needs of proto/.
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import pip, setuptools, wheel' 2>/dev/null; then break; fi
done
mkdir -p "$out/wheel/client"
cp -r proto "$out/wheel/"
cp -r client/python "$out/wheel/client/"
"$python" -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir "$out" "$out/wheel/client/python"
rm -rf "$out/wheel"

(cd "$out" && ls -l ./*.deb ./*.tar.gz ./*.whl)
echo "package.sh: build $((built - start)) s, packages $((SECONDS - built)) s"
