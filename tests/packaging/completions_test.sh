#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# completions_test.sh BUILD: what bash and zsh offer for the programs of a build.
set -euo pipefail
export LC_ALL=C  # as sort has it
bin=$1/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/here/models"
cd "$work/here"
touch picture.png model.safetensors

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

# offered FUNCTION WORD...: what bash offers for the last word, sorted. Made of words as bash makes them: "=" and ":" are some.
offered() {
  local function=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  "$function"
  words=$(printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' ')
  words=${words% }
}
# expect WORDS FUNCTION WORD...
expect() {
  local expected=$1
  shift
  offered "$@"
  [[ $words == "$expected" ]] || fail "'${*:2}' offers '$words' rather than '$expected'"
}

for program in lintel lintel-server lintel-convert lintel-bench; do
  "$bin/$program" --completion bash >"$work/$program.bash"
  . "$work/$program.bash"
  [[ $(complete -p "$program") == "complete -F _${program//-/_} $program" ]] || fail "$program is not completed"
done
expect "generate" _lintel lintel gen
expect "complete" _lintel lintel comp
expect "continue" _lintel lintel session con
expect "--prompt --prompt-file --prompt-tokens" _lintel lintel session continue --prompt
expect "--images" _lintel lintel complete --deadline 3 --im
expect "picture.png" _lintel lintel complete --images pic
expect "picture.png" _lintel lintel complete --images = pic
expect "model.safetensors models picture.png" _lintel lintel score --input ""
expect "jsonl text tokens" _lintel lintel generate --format ""
expect "jsonl" _lintel lintel generate --format = j
expect "" _lintel lintel generate --seed ""
expect "delete" _lintel lintel --version session del
expect "" _lintel lintel generate session del  # the argument of another command is no command
expect "debug" _lintel lintel admin log-level --address 127.0.0.1 : 50051 deb
expect "bash zsh" _lintel lintel --completion ""
expect "auto bf16 f32 int4 int4-all int4-ffn int8" _lintel_server lintel-server --weight-type ""
expect "auto off on" _lintel_server lintel-server --model x --speculation ""
expect "model.safetensors models" _lintel_server lintel-server --model m
expect "model.safetensors models" _lintel_server lintel-server --model name = m
expect "models" _lintel_convert lintel-convert m
expect "bf16" _lintel_convert lintel-convert a b --weight-type b
expect "paper" _lintel_bench lintel-bench p

# flags HELP: those that a help text shows.
flags() {
  grep -oE '^  (-h,)?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort
}
# Every flag of every command is offered, and none that is not there.
for program in lintel lintel-server lintel-convert lintel-bench; do
  function=_${program//-/_}
  commands=("")
  count=0
  for ((i = 0; i < ${#commands[@]}; ++i)); do
    read -ra path <<<"${commands[i]}" || true
    all=--help
    [[ $program != lintel-server ]] || all=--help-all
    help=$("$bin/$program" "${path[@]}" $all)
    offered "$function" "$program" "${path[@]}" --
    diff <(flags <<<"$help") <(tr ' ' '\n' <<<"$words" | sort) || fail "flags of $program ${commands[i]}"
    count=$((count + $(wc -w <<<"$words")))
    offered "$function" "$program" "${path[@]}" ""
    if grep -q '^Subcommands:' <<<"$help"; then
      for word in $words; do commands+=("${commands[i]} $word"); done
      diff <(sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$help" | sort) <(tr ' ' '\n' <<<"$words" | sort) \
        || fail "commands of $program ${commands[i]}"
    fi
  done
  echo "$program: $count flags of ${#commands[@]} commands"
done

# Values that are offered are accepted: the flag after them is what is complained of.
while read -r flag words; do
  for word in $words; do
    error=$("$bin/lintel-server" "$flag" "$word" --no-such-flag 2>&1) && fail "--no-such-flag is accepted"
    [[ $error == *no-such-flag* && $error != *"$flag"* ]] || fail "$flag $word: $error"
  done
done < <(for flag in $("$bin/lintel-server" --help-all | flags); do
  offered _lintel_server lintel-server "$flag" ""
  [[ $flag == --completion || -z $words || $words == *model* ]] || echo "$flag $words"
done)

if ! command -v zsh >/dev/null; then
  echo "zsh is not here (scripts/setup.sh --packages): its completions are not tried"
  exit 0
fi
for program in lintel lintel-server lintel-convert lintel-bench; do
  "$bin/$program" --completion zsh >"$work/_$program"
  zsh -n "$work/_$program" || fail "zsh cannot read the completions of $program"
done
# Lists zsh's completions of a line, by a terminal of its own.
cat >"$work/list.zsh" <<'EOT'
zmodload zsh/zpty
zpty shell zsh -fi
zpty -w shell "PROMPT=; unsetopt prompt_cr prompt_sp; LISTMAX=10000; COLUMNS=200; fpath=(${PWD:h} \$fpath); cd $PWD"
zpty -w shell "autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' list-colors ''; bindkey '^I' complete-word; bindkey '^D' list-choices; PROMPT=RE''ADY"
zpty -r shell text '*READY*'  # the prompt: from here on keys are zle's; the echo of the line above does not hold it
zpty -n -w shell "$1"$'\C-D'
zpty -n -w shell $'\C-U'"print E''ND"$'\n'
while zpty -r shell text; do
  listed+=$text
  [[ $listed != *END* ]] || break
done
print -rn -- "$listed"
zpty -d shell
EOT
expect_listed() {
  local listed
  listed=$(timeout 60 zsh -f "$work/list.zsh" "$1" </dev/null | tr -d '\r')
  for word in "${@:2}"; do
    [[ $listed == *"$word"* ]] || fail "zsh lists for '$1', without $word: $listed"
  done
}
expect_listed "lintel " generate complete "Generate from a prompt"
expect_listed "lintel complete --im" --images
expect_listed "lintel session continue --prompt-" --prompt-tokens --prompt-file
expect_listed "lintel generate --format " jsonl tokens
expect_listed "lintel-server --weight-type " int8 bf16
