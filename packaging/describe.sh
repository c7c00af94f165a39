#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# describe.sh PROGRAM DIRECTORY: the program's man pages and completions, as they are installed.
set -eu
program=$1 out=$2 name=$(basename "$1")
mkdir -p "$out/man1" "$out/bash" "$out/zsh"
"$program" --man-pages "$out/man1" | xargs gzip -9nf
"$program" --completion bash >"$out/bash/$name"
"$program" --completion zsh >"$out/zsh/_$name"
