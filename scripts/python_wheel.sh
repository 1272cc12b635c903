#!/usr/bin/env bash
# Makes the virtual environment build/python with what building and testing the Python package
# needs, at pinned versions, and installs the package there: `scripts/python_wheel.sh environment`
# does the first half, `scripts/python_wheel.sh install` the second, with the objects of build/dev.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$PWD/build/python/bin/python"
packages=(
  scikit-build-core==1.1.2 nanobind==3.1.0 nanobind-backend==1.0.0   # building
  numpy==2.4.6 ml_dtypes==0.6.0                                      # running
  pytest==9.2.0                                                      # testing
)

make_environment() {
  if [[ "$(cat build/python/packages.txt 2>/dev/null)" == "${packages[*]}" ]]; then
    echo "python: build/python has all ${#packages[@]} packages"
    return
  fi
  echo "python: installing ${#packages[@]} packages from PyPI into build/python"
  /usr/bin/env python3 -m venv build/python
  if ! "$python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"; then
    echo "python: PyPI cannot be reached, or lacks one of: ${packages[*]}" >&2
    exit 1
  fi
  echo "${packages[*]}" >build/python/packages.txt
}

# The wheel is built in build/dev, where the libraries were compiled: the settings are those of the
# preset, so that nothing is compiled twice.
install_wheel() {
  "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
    --force-reinstall --config-settings=build-dir=build/dev \
    --config-settings=cmake.build-type=RelWithDebInfo \
    --config-settings=cmake.define.LORATORY_BUILD_TESTS=ON \
    --config-settings=cmake.define.LORATORY_BUILD_BENCH=ON \
    --config-settings=install.strip=false .
  echo "python: installed into build/python: $("$python" -m pip show loratory | sed -n 2p)"
}

case "${1:-all}" in
  environment) make_environment ;;
  install) install_wheel ;;
  all) make_environment && install_wheel ;;
  *) echo "python_wheel.sh: environment, install, or nothing for both" >&2 && exit 2 ;;
esac
