#!/usr/bin/env bash
# Installs what Aludel needs from Debian 12, asking for nothing; does nothing (fast) where all of it is present.
#
#   deploy/install_packages.sh --build   what building and running the servers takes (default)
#   deploy/install_packages.sh --test    the same, and what tests/run.sh takes
#   deploy/install_packages.sh --tinyllama  --build, and what quickstart.sh --model tinyllama takes
#   deploy/install_packages.sh --list    prints the --test set, one package a line, and installs nothing
set -euo pipefail

build_packages=(
  ca-certificates ccache cmake curl g++ git ninja-build pkg-config python3
  libgrpc++-dev libc-ares-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev  # control plane
  libucx-dev                                                                          # data plane
  prometheus-cpp-dev libspdlog-dev libboost1.81-dev nlohmann-json3-dev
  libdnnl-dev ocl-icd-opencl-dev libeigen3-dev liblapacke-dev libopenblas-openmp-dev  # oneDNN's CMake package looks for OpenCL
  libpcre2-dev libicu-dev libssl-dev zlib1g-dev libisal-dev libxxhash-dev
  libhiredis-dev                                                                      # the prefix store's remote tier
)
test_packages=(
  libavcodec-dev libx265-dev                                              # packing video: headers to build it, libraries to run it
  libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy nodejs npm
  prometheus redis-server chromium openssl python3-jsonschema python3-numpy python3-yaml
  buildah dpkg-dev file iproute2 libopenblas0 lintian man-db systemd zstd  # image, our own packages, what they depend on, and units
  golang-go golang-github-masterminds-sprig-dev golang-gopkg-yaml.v3-dev  # renders the Helm chart
)
tinyllama_packages=(
  nodejs npm python3-numpy
  debian-faq debian-faq-de debian-faq-fr debian-faq-it debian-faq-ja debian-faq-nl debian-faq-ru debian-faq-zh-cn
)

case "${1:---build}" in
  --build) packages=("${build_packages[@]}") ;;
  --test) packages=("${build_packages[@]}" "${test_packages[@]}") ;;
  --tinyllama) packages=("${build_packages[@]}" "${tinyllama_packages[@]}") ;;
  --list)
    printf '%s\n' "${build_packages[@]}" "${test_packages[@]}"
    exit 0
    ;;
  *)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
    [[ "$1" == --help ]] && exit 0 || exit 2
    ;;
esac

# node of NodeSource's package brings npm along; Debian's npm would conflict with it.
if command -v node > /dev/null && command -v npm > /dev/null; then
  mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -vxE 'nodejs|npm')
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null | grep -qx 'installed.*' || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "packages: all ${#packages[@]} present"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! sudo -n true 2> /dev/null; then
    echo "packages: ${#missing[@]} are missing, and there is neither root nor sudo without a password. Run:" >&2
    echo "  sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo -n env DEBIAN_FRONTEND=noninteractive)
fi
export DEBIAN_FRONTEND=noninteractive
# Another apt may be at work (a machine that just booted updates itself).
apt=("${as_root[@]}" apt-get -o DPkg::Lock::Timeout=500 -q -y)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "packages: installing ${#missing[@]} of ${#packages[@]}: ${missing[*]}"
if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "packages: apt-get failed; its last lines stand above" >&2
  exit 1
fi
echo "packages: installed"
