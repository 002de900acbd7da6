#!/usr/bin/env bash
# scripts/reference-packages.sh PACKAGE...: a throw-away virtual environment with the reference packages, in build/reference. Prints the
# path of its Python. pip fetches them from the index that the machine is set up for; nothing is installed outside the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build/reference
if [[ ! -x $environment/bin/python ]]; then
  python3 -m venv "$environment" >&2
fi
if ! "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2; then
  echo "error: pip could not install $*" >&2
  exit 1
fi
echo "$PWD/$environment/bin/python"
