#!/usr/bin/env bash
# scripts/test-python.sh [PYTEST ARGUMENT...]: installs the Python package from this tree with pip, in a virtual environment in build/python,
# and runs tests/python with it. pip fetches nanobind, scikit-build-core and what the tests take from the index that the machine is set up for.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build/python
python=$environment/bin/python
if [[ ! -x $python ]]; then
  python3 -m venv "$environment"
fi
pip() {
  if ! log=$("$python" -m pip --disable-pip-version-check install --quiet "$@" 2>&1); then
    printf '%s\n' "$log" >&2
    echo "error: pip could not install ${*: -1}" >&2
    exit 1
  fi
}
pip nanobind scikit-build-core numpy pytest mypy
# Objects of the library are those of the preset ci where ccache has them: by the same compiler's name and flags. Without an isolated
# environment nanobind lies where it lay the last time, and a build goes on where that one ended.
export CXX=${CXX:-/usr/bin/c++} CC=${CC:-/usr/bin/cc} CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
pip --no-build-isolation --no-deps --force-reinstall -C cmake.define.TERN_WERROR=ON .
"$python" -m pytest -q "${@:-tests/python}"
