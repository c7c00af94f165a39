#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# man_pages_test.sh BUILD: the pages of the programs of a build say what --help says, and roff has nothing to say about them.
set -euo pipefail
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
bin=$1/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in lintel lintel-server lintel-convert lintel-bench; do
  SOURCE_DATE_EPOCH=0 "$bin/$program" --man-pages "$work" >/dev/null
  pages=0
  for page in "$work/$program".1 "$work/$program"-*.1; do
    [[ -e $page ]] || continue
    [[ $program != lintel || $page != *lintel-@(server|convert|bench)* ]] || continue
    ((++pages))
    head -n 1 "$page" | grep -qF " 1 1970-01-01 \"$("$bin/$program" --version)\" " || fail "$page: $(head -n 1 "$page")"
    name=$(basename "$page" .1)
    command=${name#"$program"}
    text=$(sed 's/\\-/-/g; s/\\f[BIR]//g' "$page")
    for flag in $("$bin/$program" ${command:+"${command#-}"} --help | grep -oE '^  (-h,)?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+'); do
      grep -qE -- "^(-h, )?$flag( |$)" <<<"$text" || fail "$name has no $flag"
    done
    if command -v groff >/dev/null; then
      warnings=$(groff -man -ww -z -Tutf8 -K utf8 "$page" 2>&1)
      [[ -z $warnings ]] || fail "$warnings"
    fi
  done
  commands=$("$bin/$program" --help | sed -n '/^Subcommands:/,/^$/s/^  [a-z].*/x/p' | wc -l)
  ((pages == commands + 1)) || fail "$program has $pages pages for $commands commands"
  echo "$program: $pages pages"
done
command -v groff >/dev/null || echo "groff is not here (scripts/setup.sh --packages): the pages are not set"
