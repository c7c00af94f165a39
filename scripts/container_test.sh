#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the image, checks what is in it, runs it and the client against it.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOT'
Usage: scripts/container_test.sh [--tests FOLDERS] [--keep]

Builds docker/Dockerfile with Docker, or with podman (by root) where no Docker engine answers, and runs
tests/docker/container_test.py with the image: read-only, without privileges and without a network of
its own. Exit status 77: no engine can run here, or there is no base image.
  --tests FOLDERS  first pass the stage `test` with these folders of tests/, e.g. "layering;cli"
  --keep         leave podman's images in build/container, for a faster next time
Where debian:trixie-slim cannot be pulled, root makes a base image like it with debootstrap.
EOT
}

folders= keep=false
while (($#)); do
  case $1 in
    --tests) folders=$2; shift 2 ;;
    --keep) keep=true; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "container_test.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done

skip() {
  echo "container_test.sh: SKIPPED: $1" >&2
  exit 77
}

start=$SECONDS
work=$PWD/build/container
mkdir -p "$work"

# podman with images and settings of its own: the user's stay untouched. Without CAP_SYS_RESOURCE limits can
# only be lowered; without a bridge a container has loopback, or the machine's network.
set_up_podman() {
  cat >"$work/storage.conf" <<EOT
[storage]
driver = "overlay"
graphroot = "$work/storage"
runroot = "$work/run"
EOT
  cat >"$work/containers.conf" <<EOT
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
EOT
  export CONTAINERS_STORAGE_CONF=$work/storage.conf CONTAINERS_CONF=$work/containers.conf
  export BUILDAH_FORMAT=docker  # the OCI format has no HEALTHCHECK
  export TMPDIR=$work/tmp  # the place of the build's ccache
  mkdir -p "$TMPDIR"
}

remove_podman() {
  podman rm --all --force --time 0 >/dev/null 2>&1 || true
  if ! $keep; then
    umount "$work/storage/overlay" 2>/dev/null || true
    rm -rf --one-file-system "$work" || echo "container_test.sh: $work is not quite removed" >&2
  fi
}

build_flags=()
if docker info >/dev/null 2>&1; then
  engine=docker
elif command -v podman >/dev/null && ((EUID == 0)); then
  engine=podman
  set_up_podman
  trap remove_podman EXIT
  podman info >"$work/info.log" 2>&1 || { cat "$work/info.log" >&2; skip "podman cannot start here"; }
  build_flags=(--network host)
else
  skip "no Docker engine answers, and podman (scripts/setup.sh --containers) needs root"
fi

base=docker.io/library/debian:trixie-slim
if ! $engine image inspect $base >/dev/null 2>&1 && ! timeout 300 $engine pull -q $base >/dev/null 2>&1; then
  base=lintel-base:trixie
  if ! $engine image inspect $base >/dev/null 2>&1; then
    if ! command -v debootstrap >/dev/null || ((EUID != 0)); then
      skip "debian:trixie-slim cannot be pulled, and debootstrap (scripts/setup.sh --containers) needs root"
    fi
    echo "== base image by debootstrap"
    scripts/bare_root.sh build/bare-root-trixie.tar trixie || skip "debootstrap failed"
    $engine import build/bare-root-trixie.tar "$base" >/dev/null || skip "$engine cannot import an image here"
  fi
fi
if ! $engine run --rm --network none --read-only --cap-drop ALL $base true 2>"$work/run.log"; then
  cat "$work/run.log" >&2
  skip "$engine cannot run a container here"
fi
made=$SECONDS

build() {
  $engine build "${build_flags[@]}" --build-arg "BASE=$base" "$@" -f docker/Dockerfile .
}
if [[ -n $folders ]]; then
  echo "== stage test: $folders"
  build --target test --build-arg "FOLDERS=$folders"
fi
tested=$SECONDS
echo "== image"
build -t lintel \
  --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
  --build-arg "CREATED=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
built=$SECONDS

echo "== container"
status=0
LINTEL_ENGINE=$engine LINTEL_IMAGE=lintel LINTEL_BASE=$base tests/docker/run.sh container_test.py -v || status=$?
echo "container_test.sh: $engine: base $((made - start)) s, stage test $((tested - made)) s, image $((built - tested)) s, container $((SECONDS - built)) s"
exit $status
