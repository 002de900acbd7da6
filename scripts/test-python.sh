#!/usr/bin/env bash
# scripts/test-python.sh [PYTEST ARGUMENT...]: installs the Python package from this tree with pip, in the environment of
# scripts/reference-packages.sh, and runs tests/python with it.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! python3 -c 'import ensurepip, pathlib, sysconfig; (pathlib.Path(sysconfig.get_path("include")) / "Python.h").stat()' 2>/dev/null; then
  scripts/install-packages.sh python3-venv python3-dev
fi
python=$(scripts/reference-packages.sh 'nanobind>=3.1,<4' scikit-build-core numpy pytest mypy)
# Objects of the library are those of the preset ci where ccache has them: by the same compiler's name and flags. Without an isolated
# environment nanobind lies where it lay the last time, and a build goes on where that one ended.
export CXX=${CXX:-/usr/bin/c++} CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
log=build/pip.log
if ! "$python" -m pip --disable-pip-version-check install --no-build-isolation --no-deps --force-reinstall \
  -C cmake.define.TERN_WERROR=ON . >"$log" 2>&1; then
  cat "$log" >&2
  echo "error: pip install . failed" >&2
  exit 1
fi
"$python" -m pytest -q "${@:-tests/python}"
