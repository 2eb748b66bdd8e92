#!/usr/bin/env bash
# Fails where clang-format would change one of our C++ files; --fix lets it.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang-format > /dev/null; then
  echo "format: clang-format is not installed (deploy/install_packages.sh --test installs it)" >&2
  exit 77
fi
mode=(--dry-run -Werror)
[[ "${1:-}" == --fix ]] && mode=(-i)
find kernels transport runtime server tests -path '*/node_modules' -prune -o \
  -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 clang-format "${mode[@]}"
