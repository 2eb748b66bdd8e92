#!/usr/bin/env bash
# Makes deploy/demo/codec: the formats aludel-p2 (two recomputed layers) and aludel-p0 (none), scd and reuse-only, and the
# zero-byte controls, for base and its two consumers. About two hours of two cores (measured in parts); the same
# bytes from the same binary on the same machine. An interrupted run finds its intermediate files again.
#
#   deploy/demo/calibrate.sh [OUT]      OUT defaults to deploy/demo/codec
set -euo pipefail
cd "$(dirname "$0")/../.."
out="${1:-deploy/demo/codec}"
mkdir -p build

prompts() { # NAME SEED COUNT
  local file="build/$1-$3.jsonl"
  python3 deploy/demo/train/questions.py --seed "$2" --count "$3" --min-tokens 150 > "$file"
  echo "$file"
}

# The committed artifact was fitted before there was packing rans, which its last line gives it.
calibrate() {
  build/release/bin/aludel-calibrate --producer deploy/demo/base --consumer deploy/demo/chat --out "$out" --store int8 --packing deflate "$@"
}
calibrate_both() {
  calibrate --consumer deploy/demo/base+deploy/demo/json "$@"
}
# What only tables compare with is fitted for one consumer, and of the controls the repository has control-p0 alone: it stays
# small.
calibrate --preset scd --data "$(prompts calibration 1001 400)" --max-control 2 --threads 1
calibrate --data "$(prompts calibration 1001 1600)" --work build/calibration --recomputed-layers 0 --bytes-per-token 254 \
  --compute-share 0.445 --tuning 0 --threads 1
# Last, so that it comes first: what servers use where nothing else is asked for. The committed encoder was fitted when json was a
# full fine-tune; the decoder of the adapter that it is now was added to it, in 24 minutes of a busy core, by
#   aludel-calibrate --producer deploy/demo/base --consumer deploy/demo/base+deploy/demo/json --out "$out" --store int8 --add \
#     --format aludel-p2 --data "$(prompts calibration 1001 1600)" --tuning-data "$(prompts tuning 3003 6400)" \
#     --recomputed-layers 2 --compute-share 0.056 --steps 8000 --tuning 1 --threads 1
calibrate_both --data "$(prompts calibration 1001 3200)" --tuning-data "$(prompts tuning 3003 6400)" --work build/calibration \
  --recomputed-layers 2 --bytes-per-token 9 --compute-share 0.056 --steps 8000 --tuning 1 --threads 2
# chat gains more from more prompts than json does, which loses a third of it. --data: measures, on unseen prompts.
calibrate --threads 2 --data "$(prompts unseen 9002 400)" --held-out 0.5 --work build/calibration --retune --format aludel-p2 --tuning 0 \
  --tuning-data "$(prompts tuning 9001 20000)"
build/release/bin/aludel-calibrate --producer deploy/demo/base --consumer deploy/demo/chat --out "$out" --store int8 --repack \
  --data deploy/demo/calibration.jsonl --threads 1
