#!/usr/bin/env bash
# Fits codes by which TinyLlama's cache becomes the cache of a fine-tune of it: of `reader` (the default), which answers
# questions about passages of up to some 1,000 tokens, into build/models/tinyllama-reader-codec, or of `short`, which learned from
# short passages alone, into build/models/tinyllama-codec. Its work is done where the artifact is there; an interrupted run finds
# its intermediate files again. It took 70 and 78 minutes on two cores that had other work, too, and takes at most three
# hours: what does not fit is left out, and it says what. The decoder for `reader` then learns some texts that are no language
# (base64, numbers, nearly blank lines, symbols, one word again and again): 29 minutes of two busy cores more.
#
#   deploy/demo/tinyllama/calibrate.sh [reader | short] [--all] [--further]
#
#   --all    what the quickstart serves is aludel-codes: nothing recomputed, no side information. This adds the same in half the
#            bytes (aludel-codes-350) and formats of one, two and four recomputed layers, and of none but with side
#            information (aludel-p1, -p2, -p4, -p0); each may take as long. The two of some 340 bytes a token (-p4 and -350)
#            answer questions, and lose what deploy/demo/RESULTS.md says on other texts
#   --further  tunes the decoder of aludel-codes on 660 other passages and 45 texts, each time it is given; two hours of two cores that
#            had other work, too. Until that is done the artifact stays as it was
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/../../.."
models=build/models
base=$models/tinyllama-1.1b-chat
consumer=reader
all=false further=false
for argument in "$@"; do
  case "$argument" in
    reader | short) consumer=$argument ;;
    --all) all=true ;;
    --further) further=true ;;
    *)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$self"
      [[ "$argument" == --help ]] && exit 0 || exit 2
      ;;
  esac
done
declare -A codec=([reader]=tinyllama-reader-codec [short]=tinyllama-codec)
out=$models/${codec[$consumer]}

calibrate() { # FLAG...
  build/release/bin/aludel-calibrate --producer $base --consumer $base+deploy/demo/tinyllama/$consumer \
    --data $models/texts/calibration.jsonl --out $out --compute bf16 --sensitivity-prompts 0 \
    --work $models/tinyllama-states --keep-work "$@"
  fitted=true
}
has() { [[ -f $out/artifact.json ]] && grep -q "\"name\": *\"$1\"" $out/artifact.json; }
fitted=false
fit() { # FORMAT FLAG...
  if has "$1"; then
    echo "calibrate: $out holds $1"
    return
  fi
  calibrate --format "$@" --group-layers 5 --linear --tuning-data $models/texts/tuning.jsonl --budget 3h
}
[[ -f $models/texts/calibration.jsonl && -f $models/texts/odd.jsonl ]] ||
  deploy/demo/tinyllama/texts.py --out $models/texts
if $all; then
  # The most layers first: what the models computed for them serves the others.
  fit aludel-p4 --recomputed-layers 4 --side-rank 512 --bytes-per-token 380
  fit aludel-p0 --recomputed-layers 0 --bytes-per-token 1500
  fit aludel-p1 --recomputed-layers 1 --side-rank 512 --bytes-per-token 1000
  fit aludel-p2 --recomputed-layers 2 --side-rank 512 --bytes-per-token 780
  fit aludel-codes-350 --recomputed-layers -1 --bytes-per-token 370
fi
# Last, so that servers offer it first.
fit aludel-codes --recomputed-layers -1 --bytes-per-token 780
# States are kept until all is done.
if [[ $consumer == reader && -d $models/tinyllama-states ]]; then calibrate --format aludel-codes --retune --tuning-data $models/texts/odd.jsonl; fi
if $further; then calibrate --format aludel-codes --retune --tuning-data $models/texts/further.jsonl; fi
if $fitted; then rm -rf $models/tinyllama-states; fi
