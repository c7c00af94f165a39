#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh CMAKE BUILD: what `cmake --install` of a build puts under a prefix runs there.
set -euo pipefail
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
"$1" --install "$2" --prefix "$prefix" >/dev/null
programs=(lintel lintel-server lintel-convert lintel-bench)
for program in "${programs[@]}"; do
  "$prefix/bin/$program" --version
  [[ -s $prefix/share/man/man1/$program.1.gz ]] || fail "no man page of $program"
  [[ -s $prefix/share/bash-completion/completions/$program ]] || fail "no completion of $program for bash"
  [[ -s $prefix/share/zsh/site-functions/_$program ]] || fail "no completion of $program for zsh"
done
for model in mnist-linear-small mnist-softmax-small mnist-lsh1-small mnist-lsh4-small text-linear-small text-rwkv7-small; do
  for file in config.json model.safetensors README.md; do
    [[ -s $prefix/share/lintel/models/$model/$file ]] || fail "no $file of $model"
  done
done
for file in lib/systemd/system/lintel.service share/lintel/models/demo-digits.png share/doc/lintel/{LICENSE,NOTICE,CHANGELOG.md,README.md,docs/operations.md,docs/images/length.png}; do
  [[ -s $prefix/$file ]] || fail "no $file"
done
# Links of pages lead to what is installed.
dead=$(cd "$prefix/share" && for page in doc/lintel/*.md doc/lintel/docs/*.md lintel/models/*/README.md; do
  grep -o ']([^)#]*' "$page" | cut -c3- | while read -r target; do
    [[ -z $target || $target == http* || -e $(dirname "$page")/$target ]] || echo "$page: $target"
  done || true
done)
[[ -z $dead ]] || fail "dead links: $dead"
grep -q 'others, \[add it to the service\](docs/models.md#' "$prefix/share/doc/lintel/README.md" || fail "a link that leads somewhere is gone"
# Their places are the prefix's.
grep -qx "ExecStart=$prefix/bin/lintel-server --config $prefix/etc/lintel/lintel.toml" "$prefix/lib/systemd/system/lintel.service" \
  || fail "the unit runs something else"
grep -qx "  \"$prefix/share/lintel/models/mnist-linear-small\"," "$prefix/etc/lintel/lintel.toml" || fail "lintel.toml names another model"
! grep -rI '@[a-z]*@' "$prefix"/{lib,etc} || fail "a place was not filled in"
# Without a flag about models the program serves those beside it, and says where their page is.
numerics=$("$prefix/bin/lintel-server" --print-numerics)
[[ $(wc -l <<<"$numerics") == 6 && $numerics == mnist-linear-small* ]] || fail "without a flag it serves $numerics"
mkfifo "$prefix/out"
"$prefix/bin/lintel-server" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --log-level off >"$prefix/out" &
{ read -r ready && read -r page; } <"$prefix/out" || fail "it does not start"
kill $! && wait $! || fail "it ends with status $?"
[[ $ready == "lintel-server ready on 127.0.0.1:"* && $page == "gRPC on "*", HTTP on "*", page: http://127.0.0.1:"*/ ]] || fail "it says '$ready' and '$page'"
rm "$prefix/out"
# An operator's file stays.
echo 'listen = "127.0.0.1:1"' >"$prefix/etc/lintel/lintel.toml"
"$1" --install "$2" --prefix "$prefix" >/dev/null
[[ $(wc -l <"$prefix/etc/lintel/lintel.toml") == 1 ]] || fail "lintel.toml was written over"
unknown=$(cd "$prefix" && find . -type f | grep -Ev '^./(bin/lintel|share/(man/man1|bash-completion|zsh|lintel/models|doc/lintel)/|etc/lintel/lintel.toml$|lib/systemd/system/lintel.service$)' || true)
[[ -z $unknown ]] || fail "also installed: $unknown"
