#!/usr/bin/env bash
# Makes deploy/demo/codec: the formats aludel-p2 (two native layers) and aludel-p0 (none), paper and reuse-only, and
# the zero-byte controls, for base and its two consumers. About 45 minutes of one core; the same bytes on the same
# machine. An interrupted run finds its intermediate files again.
#
#   deploy/demo/calibrate.sh [OUT]      OUT defaults to deploy/demo/codec
set -euo pipefail
cd "$(dirname "$0")/../.."
out="${1:-deploy/demo/codec}"
mkdir -p build
prompts=build/calibration-1600.jsonl
python3 deploy/demo/train/questions.py --seed 1001 --count 1600 --min-tokens 150 > "$prompts"

calibrate() {
  build/release/bin/aludel-calibrate --producer deploy/demo/base --consumer deploy/demo/chat \
    --consumer deploy/demo/json --out "$out" --threads 1 "$@"
}
calibrate --preset paper --data deploy/demo/calibration.jsonl --max-control 2
calibrate --data "$prompts" --work build/calibration --keep-work --native-layers 0 --bytes-per-token 254 --compute-share 0.445
calibrate --data "$prompts" --work build/calibration --native-layers 2 --bytes-per-token 63 --compute-share 0.135 \
  --steps 10000
