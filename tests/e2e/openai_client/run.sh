#!/usr/bin/env bash
# Runs client libraries against real servers: run.sh BINARIES BUILD_FOLDER [TESTS], where TESTS is a folder beside this
# one with a package.json and *_test.mjs; without it, this one, the official OpenAI client. Exit code 77 says that it
# could not run here, with the reason on its last line.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binaries=$1 name=${3:-openai_client}
folder=$2/$name source=$here/../$name

skip() {
  echo "skipped: $name: $1"
  exit 77
}
for tool in node npm; do
  command -v "$tool" > /dev/null || skip "$tool is not installed"
done
[[ $(node -p 'process.versions.node.split(".")[0]') -ge 18 ]] || skip "node $(node --version) is older than 18"

mkdir -p "$folder"
rm -f "$folder"/*.mjs
cp "$source"/*.mjs "$folder/"
# Packages of another list are not these.
cmp -s "$source/package.json" "$folder/package.json" || rm -rf "$folder/node_modules"
cp "$source/package.json" "$folder/"
[[ ! -f $source/.npmrc ]] || cp "$source/.npmrc" "$folder/"
if [[ ! -f $folder/node_modules/.complete ]]; then
  (cd "$folder" && timeout 240 npm install --no-audit --no-fund --no-package-lock > npm.log 2>&1 &&
    touch node_modules/.complete) || {
    rm -rf "$folder/node_modules"  # what is there of it would pass for all of it the next time
    skip "npm could not fetch the clients (see $folder/npm.log)"
  }
fi
export BINARIES=$binaries  # for servers that a test starts itself
# One file after the other: the servers admit sixteen sequences. Answers to one question are compared, which libraries ask
# without saying how its cache may come: codes, what they left here and local prefill need not agree in the last bits.
exec python3 "$here/../stack.py" --bin "$binaries" --chat-template "$here/chat_template.jinja" \
  --replace 'fidelity: "fast"=fidelity: "exact"' -- \
  bash -c 'failed=0; for file in "$0"/*_test.mjs; do node --test "$file" || failed=1; done; exit $failed' "$folder"
