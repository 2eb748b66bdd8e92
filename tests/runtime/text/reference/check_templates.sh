#!/usr/bin/env bash
# Runs check_templates.mjs with HuggingFace's engine: check_templates.sh BUILD_FOLDER. Exit code 77 says that it could not
# run here, with the reason on its last line.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1/check_templates

skip() {
  echo "skipped: chat_template_javascript: $1"
  exit 77
}
for tool in node npm; do
  command -v "$tool" > /dev/null || skip "$tool is not installed"
done
[[ $(node -p 'process.versions.node.split(".")[0]') -ge 18 ]] || skip "node $(node --version) is older than 18"

mkdir -p "$folder"
version=$(node -p 'require(process.argv[1]).dependencies["@huggingface/jinja"]' "$here/package.json")
if [[ ! -d $folder/node_modules/@huggingface/jinja ]]; then
  (cd "$folder" && timeout 120 npm install --no-audit --no-fund --no-package-lock --prefix . \
    "@huggingface/jinja@$version" > npm.log 2>&1) || {
    rm -rf "$folder/node_modules"  # what is there of it would pass for all of it the next time
    skip "npm could not fetch @huggingface/jinja (see $folder/npm.log)"
  }
fi
cp "$here/check_templates.mjs" "$folder/"
cd "$here"  # the goldens are read from here, the engine from beside the script
exec node "$folder/check_templates.mjs"
