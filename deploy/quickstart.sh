#!/usr/bin/env bash
# From a fresh clone to streamed answers: installs and builds what the servers need, starts one prefill server
# (base model), two decode servers (fine-tunes of it) and the gateway on loopback with the demo pair, and asks
# questions. The answers come from a decode server whose KV cache arrived as semantic codes; beside each stands
# the answer of the same model with local prefill (the oracle).
#
#   deploy/quickstart.sh [--questions N] [--keep] [--no-install]
#
#   --questions N  questions to ask the chat model (default 6, at most 200); the json model gets a third as many
#   --keep         leave the servers up and print curl lines to try; Ctrl-C stops them
#   --no-install   take the machine as it is
#
# Logs, and nothing else, are left in build/quickstart/.
set -euo pipefail
cd "$(dirname "$0")/.."

questions=6 keep=false install=true
while [[ $# -gt 0 ]]; do
  case "$1" in
    --questions)
      questions=${2:-}
      [[ "$questions" =~ ^[0-9]+$ ]] || { echo "quickstart: --questions wants a number, found \"$questions\"" >&2; exit 2; }
      shift
      ;;
    --keep) keep=true ;;
    --no-install) install=false ;;
    *)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
      [[ "$1" == --help ]] && exit 0 || exit 2
      ;;
  esac
  shift
done

build=build/release
logs=build/quickstart
names=(prefill decode-chat decode-json gateway)
declare -A binary=([prefill]=aludel-prefill [decode-chat]=aludel-decode [decode-json]=aludel-decode
                   [gateway]=aludel-gateway)
declare -A pid=()
mkdir -p "$logs"
say() { printf '\n== %s\n' "$1"; }
die() { printf 'quickstart: %s\n' "$1" >&2; exit 1; }

# The address of a setting ("listen", "admin_listen") in a config.
address() { sed -n "s/^$2: *\"\([^\"]*\)\".*/\1/p" "configs/$1.textproto"; }

stop_servers() {
  trap - EXIT INT TERM HUP
  [[ ${#pid[@]} -eq 0 ]] && return
  kill "${pid[@]}" 2> /dev/null || true
  for _ in $(seq 100); do
    kill -0 "${pid[@]}" 2> /dev/null || break
    sleep 0.1
  done
  kill -9 "${pid[@]}" 2> /dev/null || true
  wait 2> /dev/null || true
  echo "All servers have stopped; their logs are in $logs/."
}
trap 'stop_servers' EXIT
trap 'echo; stop_servers; exit 130' INT TERM HUP

check_ports() {
  for name in "${names[@]}"; do
    for setting in listen admin_listen; do
      at=$(address "$name" "$setting")
      [[ -z "$at" ]] && continue
      if (exec 3<> "/dev/tcp/${at%:*}/${at##*:}") 2> /dev/null; then
        die "${at} is taken, and ${binary[$name]} wants it ($setting in configs/$name.textproto). See who has it with: ss -ltnp 'sport = :${at##*:}'"
      fi
    done
  done
}

# In a session of its own, so that Ctrl-C reaches this script first and the servers through it.
start() {
  setsid "$build/bin/${binary[$1]}" --config "configs/$1.textproto" > "$logs/$1.log" 2>&1 < /dev/null &
  pid[$1]=$!
}

check_alive() {
  for name in "${!pid[@]}"; do
    if ! kill -0 "${pid[$name]}" 2> /dev/null; then
      tail -n 15 "$logs/$name.log" >&2
      die "${binary[$name]} ($name) has ended; its last lines stand above"
    fi
  done
}

# Waits for a command to succeed while all servers live.
await() {
  what=$1
  shift
  for _ in $(seq 300); do
    "$@" > /dev/null 2>&1 && return
    check_alive
    sleep 0.2
  done
  tail -n 5 "$logs"/*.log >&2
  die "$what was not there after 60 s; the last log lines stand above"
}
sees_prefill() {
  curl -fsS -m 2 "http://$(address "$1" admin_listen)/metrics" |
    grep -qE '^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$'
}

if $install; then
  say "Packages"
  deploy/install_packages.sh --build
fi

say "Build"
if [[ ! -f $build/CMakeCache.txt ]]; then
  cmake --preset release -DALUDEL_TESTS=OFF > "$logs/configure.log" 2>&1 ||
    { tail -n 30 "$logs/configure.log" >&2; die "cmake failed; its last lines stand above"; }
fi
# The hungriest of our files take about 1 GB to compile.
jobs=$(awk -v cores="$(nproc)" '/MemAvailable/ { by_memory = int($2 / 1048576) }
       END { print by_memory < 1 ? 1 : by_memory < cores ? by_memory : cores }' /proc/meminfo)
NINJA_STATUS="[%f/%t, %e s] " ninja -C "$build" -j "$jobs" aludel-prefill aludel-decode aludel-gateway

say "Servers"
check_ports
for name in "${names[@]}"; do start "$name"; done
url=http://$(address gateway listen)
await "the prefill server" curl -fsS -m 2 "http://$(address prefill admin_listen)/ready"
echo "prefill  base   on $(address prefill listen)"
for model in chat json; do
  await "a decode server for $model that sees the prefill server" sees_prefill "decode-$model"
  await "the gateway's view of $model" curl -fsS -m 2 "$url/ready?model=$model"
  echo "decode   $model   on $(address "decode-$model" listen)"
done
echo "gateway         on $url"

say "Questions"
if [[ $questions -gt 0 ]]; then
  python3 deploy/demo/ask.py --url "$url" --model chat --questions "$questions"
  python3 deploy/demo/ask.py --url "$url" --model json --questions $(((questions + 2) / 3))
fi

if $keep; then
  say "Try it"
  cat << END
curl -N $url/v1/chat/completions -H 'Content-Type: application/json' -d '{
  "model": "chat", "stream": true, "temperature": 0,
  "messages": [{"role": "user", "content": "The river of Kingley is the Tamsin. Porthaven lies on the river Tavy. Zora Pellson went to Porthaven by ferry.\nby what means did Zora get there"}]}'
curl $url/v1/models
curl -s $url/metrics | grep time_to_first_token
The same through the decode server's local prefill: add "aludel": {"fidelity": "exact"}.

The servers stay up until Ctrl-C.
END
  while true; do
    check_alive
    sleep 1
  done
fi
