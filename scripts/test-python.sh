#!/usr/bin/env bash
# scripts/test-python.sh [--wheel] [PYTEST ARGUMENT...]: installs the Python package from this tree with pip, in the environment of
# scripts/reference-packages.sh, and runs tests/python with it. With --wheel it makes the wheel to be handed on (docs/python.md, Processors) in
# build/wheel instead, installs that in a fresh environment outside of this tree, trains there with each level of x86-64 that the processor has
# (scripts/check-wheel.py), and runs tests/python with what it has installed.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=""
if [[ ${1:-} == --wheel ]]; then wheel=yes; shift; fi
if ! python3 -c 'import ensurepip, pathlib, sysconfig; (pathlib.Path(sysconfig.get_path("include")) / "Python.h").stat()' 2>/dev/null; then
  scripts/install-packages.sh python3-venv python3-dev
fi
python=$(scripts/reference-packages.sh 'nanobind>=3.1,<4' scikit-build-core numpy pytest mypy)
# Objects of the library are those of the preset ci, or package, where ccache has them: by the same compiler's name and flags. Without an isolated
# environment nanobind lies where it lay the last time, and a build goes on where that one ended.
export CXX=${CXX:-/usr/bin/c++} CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
log=build/pip.log
# pip COMMAND ARGUMENT...: pip of this tree, whose log is shown only where it fails.
pip() {
  if ! "$python" -m pip --disable-pip-version-check "$1" --no-build-isolation --no-deps "${@:2}" . >"$log" 2>&1; then
    cat "$log" >&2
    echo "error: pip $1 . failed" >&2
    exit 1
  fi
}
if [[ -z $wheel ]]; then
  pip install --force-reinstall -C cmake.define.TERN_WERROR=ON
  "$python" -m pytest -q "${@:-tests/python}"
  exit
fi

# A build directory of its own, so that neither build has the other's options.
rm -rf build/wheel
pip wheel --wheel-dir build/wheel -C build-dir=build/pip-wheel -C cmake.define.TERN_NATIVE=OFF -C cmake.define.BUILD_SHARED_LIBS=ON \
  -C cmake.define.TERN_CPU_VARIANTS=ON
ls -l build/wheel/tern-*.whl
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
python3 -m venv "$fresh"
python=$fresh/bin/python
"$python" -m pip --disable-pip-version-check install -q build/wheel/tern-*.whl numpy pytest mypy
echo "== Each level, trained with"
"$python" scripts/check-wheel.py
echo "== tests/python, by the wheel"
"$python" -m pytest -q -p no:cacheprovider "${@:-tests/python}"
