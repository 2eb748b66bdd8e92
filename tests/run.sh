#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests; ends with a summary that also says what was
# skipped and why. No question is asked.
#
#   tests/run.sh [--long] [--preset release|asan|tsan] [--filter REGEX] [--tidy] [--no-install] [-j N]
#
#   --long        the long tests (ctest's label `long`), too: models on the simulated GPU, races and mutants of its kernels,
#                 packages that are installed, servers of the commit before
#   --preset      release (default), asan (AddressSanitizer and UBSan) or tsan; built in build/PRESET
#   --filter      only tests whose ctest name matches
#   --tidy        clang-tidy and clang's -Wthread-safety over our sources as well (minutes)
#   --no-install  take the machine as it is
#   -j            parallel compilations; default: as many as cores and memory allow
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/.."

preset=release filter=. long=false tidy=false install=true jobs=
while [[ $# -gt 0 ]]; do
  case "$1" in
    --preset) preset=$2; shift ;;
    --filter) filter=$2; shift ;;
    --long) long=true ;;
    --tidy) tidy=true ;;
    --no-install) install=false ;;
    -j) jobs=$2; shift ;;
    *)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$self"
      [[ "$1" == --help ]] && exit 0 || exit 2
      ;;
  esac
  shift
done
build=build/$preset
started=$SECONDS
step() { printf '\n== %s (%d s)\n' "$1" $((SECONDS - started)); }

if $install; then
  step "Packages"
  deploy/install_packages.sh --test
fi
if [[ -z "$jobs" ]]; then
  # The hungriest of our files take about 1 GB to compile.
  jobs=$(awk -v cores="$(nproc)" '/MemAvailable/ { by_memory = int($2 / 1048576) }
         END { print by_memory < 1 ? 1 : by_memory < cores ? by_memory : cores }' /proc/meminfo)
fi

step "Format"
format="clang-format agrees"
tests/check_format.sh || { [[ $? -eq 77 ]] && format="not checked: clang-format is missing" || exit 1; }
echo "$format"

step "Configure $build"
mkdir -p "$build"
unity=ON
if $tidy; then unity=OFF; fi  # clang-tidy wants a command of each file's own
if ! cmake --preset "$preset" -DALUDEL_TESTS=ON -DALUDEL_UNITY=$unity > "$build/configure.log" 2>&1; then
  tail -n 30 "$build/configure.log"
  exit 1
fi
grep -E -- '-- CUDA|packing video' "$build/configure.log" || true

step "Build with $jobs jobs"
NINJA_STATUS="[%f/%t, %e s] " ninja -C "$build" -j "$jobs"

if $tidy; then
  step "clang-tidy"
  # clang 14 cannot read this CUDA toolkit's headers; nvcc warns about kernels/cuda itself.
  find kernels transport runtime server -name '*.cc' -not -path 'kernels/cuda/*' -print0 |
    xargs -0 -n 1 -P "$jobs" clang-tidy --quiet -p "$build" --extra-arg=-Wthread-safety 2> >(grep -v 'warnings generated' >&2)
fi

step "Tests"
log=$build/ctest.log
failed=false
chosen=(-R "$filter")
if ! $long; then chosen+=(-LE '^long$'); fi
ctest --test-dir "$build" "${chosen[@]}" --output-on-failure --no-tests=error -j "$(nproc)" | tee "$log" || failed=true

step "Summary"
grep -E 'tests passed|Total Test time' "$log" || true
echo "format: $format"
details=$build/Testing/Temporary/LastTest.log
# What GoogleTest itself skipped, with the reason that the test states.
if [[ -f $details ]] && grep -q '\[  SKIPPED \]' "$details"; then
  echo "skipped:"
  grep -A 1 -E ': Skipped$' "$details" | grep -vE ': Skipped$|^--$' | sort | uniq -c | sed 's/^/  /' || true
fi
grep -E '\*\*\*(Skipped|Not Run)' "$log" | sed 's/^/skipped: /' || true
grep -hE '^skipped: ' "$details" | sort -u || true
if grep -q 'CUDA not found or switched off' "$build/configure.log"; then
  echo "skipped: everything of kernels/cuda, because no CUDA toolkit was found or it is switched off"
fi
if grep -q 'building without packing video' "$build/configure.log"; then
  echo "skipped: all of packing video (hevc_test, video_coder_test, video_handoff_test), because libx265-dev or libavcodec-dev was not found or it is switched off"
fi
if ! $long; then
  echo "not run: $(ctest --test-dir "$build" -N -R "$filter" -L '^long$' -FA . | sed -n 's/^Total Tests: //p') long tests; tests/run.sh --long runs them, too"
fi
if $failed; then
  # What GoogleTest found in each, and its last lines: what stands far above is cut off where only an end is kept.
  awk '/^[0-9]+\/[0-9]+ Testing: / { name = $3; count = found = 0; next } /^<end of output>$/ { end = count; next }
       { line = substr($0, 1, 300); lines[count++] = line }
       /: Failure$/ { after = 8 } after > 0 && found < 20 { findings[found++] = line } after > 0 { --after }
       /^Test (Failed\.|Fail Reason:|timeout)/ || /^Test Timeout/ {
         print "of " name ":"; for (i = 0; i < found; ++i) print "  " findings[i]
         for (i = end > 12 ? end - 12 : 0; i < end; ++i) print "  " lines[i] }' \
    "$details" || true
  grep -E '\*\*\*(Failed|Timeout|Exception)|\(Failed\)|\(Timeout\)' "$log" | sort -u | sed 's/^/failed: /' || true
  echo "RESULT: failed after $((SECONDS - started)) s; details in $details"
  exit 1
fi
echo "RESULT: passed in $((SECONDS - started)) s"
