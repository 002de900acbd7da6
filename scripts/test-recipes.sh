#!/usr/bin/env bash
# scripts/test-recipes.sh [conan] [conan-shared] [vcpkg] [workflow]: runs the recipes in packaging/ and reads the workflow, all of them by default,
# with the system's packages: neither Conan's server nor vcpkg's sources are asked for anything. PyPI gives conan and the checker of the workflow.
# docs/packages.md says what this leaves out. It works in build/recipes, with JOBS jobs. CMAKE_OPTIONS has
# further options of CMake, one a line: -DTERN_NATIVE=ON, for instance, where ccache has the objects of another build with it.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
known="conan conan-shared vcpkg workflow"
[[ ${#parts[@]} -gt 0 ]] || read -ra parts <<<"$known"
for part in "${parts[@]}"; do
  if [[ " $known " != *" $part "* ]]; then
    echo "usage: scripts/test-recipes.sh [conan] [conan-shared] [vcpkg] [workflow]" >&2
    exit 2
  fi
done
work=$PWD/build/recipes
mkdir -p "$work"
CMAKE_OPTIONS=${CMAKE_OPTIONS:-}
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
wants() { [[ " ${parts[*]} " == *" $1 "* ]]; }
# python PACKAGE...: a Python with these packages, kept.
python() {
  [[ -x $work/python/bin/python ]] || python3 -m venv "$work/python"
  "$work/python/bin/pip" -q install "$@"
}

if wants workflow; then
  echo "== The workflow, by its schema"
  python check-jsonschema
  "$work/python/bin/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*.yml
fi

if wants vcpkg; then
  echo "== The port of vcpkg, step by step"
  rm -rf "$work/vcpkg" build/vcpkg-steps "$work/vcpkg-user"
  python3 - packaging/vcpkg/tern/vcpkg.json CMakeLists.txt <<'PY'
import json, re, sys
port = json.load(open(sys.argv[1]))
known = {"name", "version", "description", "license", "supports", "dependencies", "features"}
assert set(port) <= known, f"vcpkg.json: expected keys among {sorted(known)} but got {sorted(set(port) - known)}"
version = re.search(r"project\(tern VERSION ([0-9.]+)", open(sys.argv[2]).read())[1]
assert port["version"] == version, f"vcpkg.json: expected version {version} of CMakeLists.txt but got {port['version']}"
PY
  cmake "-DPREFIX=$work/vcpkg" "-DBUILD=$PWD/build/vcpkg-steps" "-DOPTIONS=${CMAKE_OPTIONS//$'\n'/;}" -P packaging/vcpkg/steps.cmake >"$work/vcpkg.log" 2>&1 || { tail -30 "$work/vcpkg.log" >&2; exit 1; }
  cmake -G Ninja -S tests/install/components -B "$work/vcpkg-user" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$work/vcpkg" >"$work/vcpkg-user.log"
  cmake --build "$work/vcpkg-user" >>"$work/vcpkg-user.log"
  "$work/vcpkg-user/small"
  grep -q "^$work/vcpkg/share/tern" <(sed -n 's/^tern_DIR:PATH=//p' "$work/vcpkg-user/CMakeCache.txt")
  [[ -s $work/vcpkg/share/tern/copyright ]]
  echo "configured, built, installed, found, linked, run"
fi

# conan_create NAME OPTION...: the command of docs/packages.md with these options, without a server.
conan_create() {
  echo "== The recipe of Conan, ${*:2}"
  python conan
  export CONAN_HOME=$work/conan
  # Sources lie elsewhere under Conan's home at each run, so ccache is told to look at relative paths.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  local conan=$work/python/bin/conan log=$work/$1.log pair package version name value
  "$conan" profile detect --force >"$log" 2>&1
  # The recipe's requirements are taken for given in the versions that the system has, which its ranges must admit.
  printf '%s\n' 'include(default)' '[platform_requires]' >"$work/profile"
  for pair in fmt=libfmt-dev nlohmann_json=nlohmann-json3-dev pcre2=libpcre2-dev utf8proc=libutf8proc-dev zlib=zlib1g-dev zstd=libzstd-dev eigen=libeigen3-dev; do
    package=${pair#*=}
    if ! version=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null); then
      echo "error: expected the system to have $package: apt-get install $package" >&2
      exit 1
    fi
    sed 's,/[0-9]*:,/,; s/[-+].*//' <<<"${pair%%=*}/$version" >>"$work/profile"
  done
  local flags=(-c "tools.build:jobs=$CMAKE_BUILD_PARALLEL_LEVEL" -c "tools.cmake.cmake_layout:test_folder=$work/$1-test")
  while IFS== read -r name value; do
    [[ -z $name ]] || flags+=(-c "tools.cmake.cmaketoolchain:extra_variables*={'${name#-D}': '$value'}")
  done <<<"$CMAKE_OPTIONS"
  "$conan" create packaging/conan -pr:a "$work/profile" "${@:2}" "${flags[@]}" --no-remote >>"$log" 2>&1 || { tail -40 "$log" >&2; exit 1; }
  grep -E 'Package .* created|Created package|small$' "$log" | tail -3
  echo "exported, built, packaged, found, linked, run"
}
if wants conan; then conan_create conan -s compiler.cppstd=20; fi
if wants conan-shared; then conan_create conan-shared -s compiler.cppstd=20 -o '&:shared=True'; fi
