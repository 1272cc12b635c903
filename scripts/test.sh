#!/usr/bin/env bash
# Installs the packages, builds everything with warnings as errors, and runs every test.
# The exit status is that of ctest: 0 when all tests passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/dev

scripts/packages.sh
scripts/python_wheel.sh environment
echo "build: everything, into $build"
cmake --preset dev --log-level=WARNING -DLORATORY_BUILD_PYTHON=ON \
  -DPython_EXECUTABLE="$PWD/build/python/bin/python"
cmake --build --preset dev
scripts/python_wheel.sh install

echo "test: every test of $build"
status=0
ctest --preset dev --parallel "$(nproc)" --progress --output-junit "$PWD/$build/junit.xml" ||
  status=$?
echo
echo "log:   $PWD/$build/Testing/Temporary/LastTest.log"
echo "junit: $PWD/$build/junit.xml"
exit "$status"
