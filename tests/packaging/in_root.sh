#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# in_root.sh STEP: a step of scripts/package_test.sh, inside a bare Debian.
set -euo pipefail
cd /root

fail() {
  echo "FAILED: $1" >&2
  exit 1
}
tree() {
  find / -xdev \( -path /proc -o -path /dev -o -path /sys -o -path /tmp -o -path /root -o -path /var/cache -o -path /var/log \
    -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /run \) -prune -o -print | sort
}
# The VALUE of a unit's line KEY=VALUE.
unit() {
  sed -n "s/^$1=//p" /usr/lib/systemd/system/lintel.service
}

enter() { true; }

# The archive in a root that has none of its libraries: programs and libraries load those of the archive, and glibc.
archive() {
  mkdir -p "/srv/else where"
  tar -C "/srv/else where" -xzf lintel-*.tar.gz
  local there file name arrow path checked=0
  there=$(echo "/srv/else where"/lintel-*)
  ! ldconfig -p | grep -E 'libgrpc|libprotobuf|libdnnl' || fail "the root has libraries of its own"
  for file in "$there"/bin/* "$there"/lib/lintel/*; do
    while read -r name arrow path; do
      [[ $arrow == "=>" ]] || continue
      case $name in
        libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libresolv.so.2 | libmvec.so.1) continue ;;
      esac
      # A library of the archive, loaded by itself, is not beside a program.
      [[ $path == "$there"/* ]] || fail "${file##*/} takes $name from $path"
    done < <(LD_TRACE_LOADED_OBJECTS=1 /lib64/ld-linux-x86-64.so.2 "$file")
    ((++checked))
  done
  for file in "$there"/bin/*; do
    "$file" --version
  done
  local server
  : >archive.log
  "$there/bin/lintel-server" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 >archive.log 2>&1 &
  server=$!
  ready archive.log
  PATH="$there/bin:$PATH" complete_digits archive "$there/share/lintel/models" --address "$(sed -n 's/^lintel-server ready on //p' archive.log)"
  kill $server
  wait $server || fail "the archive's server ended with status $?"
  ls "$there/share/doc/lintel/libraries" | wc -l >notices
  [[ $(<notices) -ge 40 ]] || fail "only $(<notices) packages have their copyright in the archive"
  echo "$checked programs and libraries load nothing of the system but glibc"
  rm -rf /srv/*
}

# Installs programs that the checks below need; the package brings those that it needs itself.
prepare() {
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends bash-completion iproute2 man-db python3-minimal systemd zsh >/dev/null 2>&1
  tree >before
  getent passwd >users
}

install() {
  apt-get install -y -qq ./lintel_*.deb >apt.log 2>&1 || { cat apt.log; fail "apt cannot install the package"; }
  [[ $(dpkg-query -W -f='${db:Status-Abbrev}' lintel) == "ii " ]] || fail "it is not installed"
  dpkg --verify lintel || fail "files differ from the package's"
  dpkg-query -W -f='${Conffiles}\n' lintel | grep -q '^ /etc/lintel/lintel.toml ' || fail "lintel.toml is no conffile"
  dpkg-query -W -f='${Version} ${Installed-Size} KiB: ${Depends}\n' lintel
  for program in lintel lintel-server lintel-convert lintel-bench; do
    "$program" --version
  done
  # An operator's change outlives the same package once more.
  echo '# ours' >>/etc/lintel/lintel.toml
  apt-get install -y -qq --reinstall ./lintel_*.deb >apt.log 2>&1 </dev/null || { cat apt.log; fail "apt cannot install the package again"; }
  grep -qx '# ours' /etc/lintel/lintel.toml || fail "the operator's lintel.toml is gone"
}

# ready FILE: waits for a server's ready line.
ready() {
  for ((i = 0; i < 600; ++i)); do
    ! grep -q '^lintel-server ready on ' "$1" || return 0
    sleep 0.1
  done
  cat "$1"
  fail "the server is not ready"
}

complete_digits() {  # NAME MODELS-FOLDER ARGUMENT...
  lintel complete --model mnist-linear-small --images "$2/demo-digits.png" --index 0-1 --occlude bottom:14 --samples 2 --seed 3 \
    --out "$1.png" --json "$1.json" "${@:3}"
  [[ $(head -c 4 "$1.png" | tail -c 3) == PNG ]] || fail "$1.png is no picture"
}

use() {
  # `ip` comes with the root: what is outside may have none.
  ip link set lo up

  echo "-- the unit"
  SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no lintel.service
  local exposure
  exposure=$(systemd-analyze security --offline=true --threshold=20 --no-pager lintel.service | tail -n 1) || fail "$exposure"
  echo "$exposure"
  [[ $(unit TimeoutStopSec) -gt 30 ]] || fail "TimeoutStopSec is not above --drain-timeout"

  systemctl enable lintel 2>/dev/null
  [[ -e /etc/systemd/system/multi-user.target.wants/lintel.service ]] || fail "it cannot be enabled"

  echo "-- the server as the unit runs it"
  local server
  : >server.log
  setpriv --reuid "$(unit User)" --regid "$(unit Group)" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
    $(unit ExecStart) >server.log 2>&1 &
  server=$!
  ready server.log
  [[ $(ps_user $server) == "$(id -u lintel)" ]] || fail "the server is not the user lintel"
  [[ $(lintel health) == serving ]] || fail "the server is not healthy"
  exec 3<>/dev/tcp/127.0.0.1/8080
  printf 'GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n' >&3
  [[ $(tr -d '\r' <&3) == "HTTP/1.1 200 OK"*"<html"* ]] || fail "there is no page"
  exec 3>&-
  complete_digits first /usr/share/lintel/models
  complete_digits second /usr/share/lintel/models
  cmp first.png second.png || fail "the same seed gives another picture"
  kill "-$(unit KillSignal)" $server
  wait $server || { cat server.log; fail "the server ended with status $?"; }

  echo "-- the archive, elsewhere"
  mkdir -p "/srv/else where"
  tar -C "/srv/else where" -xzf lintel-*.tar.gz
  local there
  there=$(echo "/srv/else where"/lintel-*)
  : >archive.log
  "$there/bin/lintel-server" --listen 127.0.0.1:0 >archive.log 2>&1 &  # without a model's flag: those beside it
  server=$!
  ready archive.log
  PATH="$there/bin:$PATH" complete_digits third /usr/share/lintel/models --address "$(sed -n 's/^lintel-server ready on //p' archive.log)"
  cmp first.png third.png || fail "the archive's picture is another"
  grep -q ', page: http://127.0.0.1:8080/$' archive.log || fail "the archive's server does not say where the page is"
  kill $server
  wait $server || fail "the archive's server ended with status $?"
  rm -rf /srv/*

  echo "-- man pages"
  local page pages=0
  for page in lintel lintel-server lintel-convert lintel-bench lintel-{generate,complete,score,session,model,health,admin,token}; do
    man -w "$page" >/dev/null || fail "there is no page $page"
    man "$page" 2>/dev/null | col_plain >page.txt
    grep -q "^SYNOPSIS" page.txt || fail "$page has no synopsis"
    ((++pages))
  done
  echo "$pages pages"

  echo "-- completions"
  local words
  words=$(bash -c '. /usr/share/bash-completion/bash_completion
    _completion_loader lintel
    COMP_WORDS=(lintel comp) COMP_CWORD=1
    _lintel
    echo "${COMPREPLY[@]}"')
  [[ $words == complete ]] || fail "bash offers '$words' for lintel comp"
  words=$(zsh -fc 'autoload -Uz compinit; compinit -u -D; echo $_comps[lintel] $_comps[lintel-server]')
  [[ $words == "_lintel _lintel-server" ]] || fail "zsh knows '$words' of lintel and lintel-server"
  echo "bash and zsh find them"
}

# The user that runs a process.
ps_user() {
  awk '/^Uid:/ { print $2 }' "/proc/$1/status"
}
# Without a terminal's bold and underlined.
col_plain() {
  sed -e 's/.\x08//g' -e 's/\x1b\[[0-9;]*m//g'
}

purge() {
  apt-get remove -y -qq lintel >/dev/null 2>&1
  [[ -e /etc/lintel/lintel.toml ]] || fail "a removal takes the configuration away"
  apt-get purge -y -qq --autoremove lintel >/dev/null 2>&1
  tree >after
  comm -13 before after >left
  getent passwd | comm -13 <(sort users) <(sort) >>left
  ! grep -i lintel left || fail "that is left of the package"
  echo "nothing is left"
}

"$1"
