#!/usr/bin/env bash
# Installs the Debian 12 packages that every build and test needs, or with `--program` those of the
# preset `release`, which has no tests, or with `--python` those of `pip install .`. Installs
# nothing, and needs neither root nor a network, when all of them are there. The fuzz preset needs
# three more: see CONTRIBUTING.md.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache            # g++ 12 with OpenMP and sanitizers
  libeigen3-dev libfmt-dev                            # arithmetic, text
  libnlopt-cxx-dev                                    # fits of measured servers
  libcli11-dev libtomlplusplus-dev                    # flags, and files of them
  libsimdjson-dev nlohmann-json3-dev                  # JSON: reading fast, writing
  libpcre2-dev                                        # patterns of adapters
  zlib1g-dev libzstd-dev                              # .gz and .zst traces
  libxxhash-dev librandom123-dev                      # XXH3, counter-based random numbers
  libbenchmark-dev                                    # bench/
)
if [[ "${1:-}" != --program ]]; then
  packages+=(python3-dev python3-venv)                # the Python package
fi
if [[ "${1:-}" != --program && "${1:-}" != --python ]]; then
  packages+=(
    libgtest-dev libgmock-dev librapidcheck-dev       # tests and properties
    clang-tidy                                        # a test
  )
  # A test lets it read our metrics. As a package it is also a server on port 9090, which starts
  # where there is a systemd; in a container there is none.
  [[ -d /run/systemd/system ]] || packages+=(prometheus)
fi

is_installed() {
  [[ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi

as_root=()
if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "packages: run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "packages: installing ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
"${apt[@]}" update
"${apt[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null
