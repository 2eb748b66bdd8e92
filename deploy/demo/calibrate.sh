#!/usr/bin/env bash
# Makes deploy/demo/codec: the formats aludel-p2 (two native layers), aludel-lean (two, with a decoder that costs at most a
# twentieth of the prefill) and aludel-p0 (none), paper and reuse-only, and the zero-byte controls, for base and its two
# consumers. About an hour of one core (measured in parts); the same bytes from the same binary on the same machine. An
# interrupted run finds its intermediate files again.
#
#   deploy/demo/calibrate.sh [OUT]      OUT defaults to deploy/demo/codec
set -euo pipefail
cd "$(dirname "$0")/../.."
out="${1:-deploy/demo/codec}"
mkdir -p build

prompts() { # COUNT
  local file="build/calibration-$1.jsonl"
  python3 deploy/demo/train/questions.py --seed 1001 --count "$1" --min-tokens 150 > "$file"
  echo "$file"
}

calibrate() {
  build/release/bin/aludel-calibrate --producer deploy/demo/base --consumer deploy/demo/chat \
    --consumer deploy/demo/json --out "$out" --threads 1 "$@"
}
calibrate --preset paper --data deploy/demo/calibration.jsonl --max-control 2
calibrate --data "$(prompts 1600)" --work build/calibration --native-layers 0 --bytes-per-token 254 --compute-share 0.445
two_native=(--data "$(prompts 3200)" --work build/calibration --native-layers 2 --steps 10000)
calibrate "${two_native[@]}" --bytes-per-token 9 --compute-share 0.043 --format aludel-lean --keep-work
# Last, so that it comes first: what servers use where nothing else is asked for.
calibrate "${two_native[@]}" --bytes-per-token 32 --compute-share 0.122
