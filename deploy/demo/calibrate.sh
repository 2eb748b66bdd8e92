#!/usr/bin/env bash
# Makes deploy/demo/codec: one encoder for base, a decoder each for chat and json, in the formats paper and
# reuse-only, and the zero-byte control. Takes about four minutes of one core; the same bytes on the same machine.
#
#   deploy/demo/calibrate.sh [OUT]      OUT defaults to deploy/demo/codec
set -euo pipefail
cd "$(dirname "$0")/../.."
exec build/release/bin/aludel-calibrate \
  --producer deploy/demo/base --consumer deploy/demo/chat --consumer deploy/demo/json \
  --data deploy/demo/calibration.jsonl --out "${1:-deploy/demo/codec}" --threads 1
