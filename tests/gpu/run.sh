#!/usr/bin/env bash
# Everything that only a GPU machine can say, from a bundle (cmake --build build/PRESET --target gpu_pack) and this source
# tree: tests of kernels and codecs on the device, compute-sanitizer, benchmarks of operations and of a model of an 8B shape
# with random weights, time to first token against the consumer's local prefill, greedy tokens against the CPU's, and peers.
# Writes a results file after every part and prints a table; a part that fails or takes too long is null with the reason.
# Run again with the same device and commit, it measures what the results file lacks.
#
#   tests/gpu/run.sh [--bundle FILE|FOLDER] [--device cuda:0] [--out FILE] [--minutes 8] [--only PART,PART] [--again] [--small]
#
#   --bundle   the tarball, or a folder it was unpacked to; default: bundle/ beside these scripts' tests/ (as gpu_pack's archive
#              has it), else the newest of build/*/aludel-*-linux-x86_64.tar.xz
#   --device   cuda:N, or cpu to rehearse
#   --out      default tests/gpu/results/DEVICE-DATE.json, copied to $OUT with the log where that names a folder
#   --minutes  for all parts together; each has its share, and what those before it left
#   --only     of: unit attention parity quality engine ttft sanitizer peers codec graphs fp8 adapters calibrate ops profile
#   --again    measures what the results file has, too
#   --small    the demo models at small sizes: a rehearsal of seconds
set -euo pipefail
cd "$(dirname "$0")/../.."

bundle= rest=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --bundle) bundle=${2:?--bundle wants a file or folder}; shift ;;
    --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) rest+=("$1") ;;
  esac
  shift
done
[[ -z $bundle && -f bundle/MANIFEST ]] && bundle=bundle
if [[ -z $bundle ]]; then
  # shellcheck disable=SC2012
  bundle=$(ls -t build/*/aludel-*-linux-x86_64.tar.xz 2> /dev/null | head -n 1)
  [[ -n $bundle ]] || { echo "gpu: no bundle: cmake --build build/release --target bundle, or --bundle FILE" >&2; exit 2; }
fi
if [[ -f $bundle ]]; then
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  tar -C "$unpacked" -xf "$bundle" 2> /dev/null || python3 -m tarfile -e "$bundle" "$unpacked"  # tar may lack xz
  bundle=$(echo "$unpacked"/*)
fi
[[ -f $bundle/MANIFEST ]] || { echo "gpu: $bundle is no bundle: it has no MANIFEST" >&2; exit 2; }
needed=$(sed -n 's/^glibc //p' "$bundle/MANIFEST")
found=$(getconf GNU_LIBC_VERSION 2> /dev/null | sed 's/^glibc //')
if [[ $(printf '%s\n' "$needed" "${found:-0}" | sort -V | head -n 1) != "$needed" ]]; then
  echo "gpu: the bundle needs glibc $needed or newer, this machine has ${found:-none}: build it on an older system" >&2
  exit 2
fi
log=/dev/null
if [[ -n ${OUT:-} ]]; then
  mkdir -p "$OUT"
  log=$OUT/gpu.log
fi
python3 tests/gpu/measure.py --bundle "$bundle" ${rest[@]+"${rest[@]}"} 2>&1 | tee -a "$log"
