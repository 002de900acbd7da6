#!/usr/bin/env bash
# scripts/test-package.sh [--compile]: builds the packages (preset `package`), and tries them where nothing of the build is: the .deb in a fresh
# Debian 12 under build/package/chroot, made by debootstrap, with the packages that it asks for and no others; the .tar.gz moved to another
# place there. With --compile an example of its own is compiled against it there as well, by pkg-config. Needs root and Debian's mirror, MIRROR where that is
# another one, so CI does not run it. The chroot is removed at the end, and left where something fails.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=${1:-}
build=$PWD/build/package root=$PWD/build/package/chroot mirror=${MIRROR:-http://deb.debian.org/debian}
if [[ -n $compile && $compile != --compile ]]; then
  echo "usage: scripts/test-package.sh [--compile]" >&2
  exit 2
fi
[[ $(id -u) -eq 0 ]] || { echo "error: expected to be root, as chroot is root's: sudo scripts/test-package.sh $compile" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "error: expected debootstrap: apt-get install debootstrap" >&2; exit 1; }

# Beside what the build needs, what cpack reads the dependencies with.
tools=()
command -v dpkg-shlibdeps >/dev/null || tools+=(dpkg-dev)
command -v file >/dev/null || tools+=(file)
scripts/install-packages.sh "${tools[@]}"
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}   # so that a build elsewhere, as in scripts/test-docker.sh, finds the objects
scripts/build.sh package all
rm -f "$build"/tern*.deb "$build"/tern*.tar.gz
(cd "$build" && cpack -G DEB && cpack -G TGZ) >"$build/cpack.log" 2>&1 || { cat "$build/cpack.log" >&2; exit 1; }
deb=$(ls "$build"/tern*.deb) archive=$(ls "$build"/tern*.tar.gz)
ls -l "$deb" "$archive"
dpkg-deb --info "$deb" | grep -E 'Version|Installed-Size|Depends'

! mountpoint -q "$root/proc" || umount "$root/proc"   # of a run that was killed
rm -rf "$root"
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$build/debootstrap.log" 2>&1 || { tail -20 "$build/debootstrap.log" >&2; exit 1; }
# The loader asks /proc where a program lies, for its $ORIGIN.
mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT
in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"; }
apt() { in_root apt-get -y --no-install-recommends "$@" >>"$build/apt.log" 2>&1 || { tail -20 "$build/apt.log" >&2; exit 1; }; }
cp "$deb" "$root/tmp/tern.deb"
rm -f "$build/apt.log"
apt update
apt install /tmp/tern.deb
grep -E '^Unpacking|^Setting up' "$build/apt.log" | grep Unpacking | awk '{print "with", $2, $3}'

cp -r data/embedded "$root/tmp/embedded"
cp scripts/check-variants.sh "$root/tmp/"
echo "== The .deb, installed by apt"
in_root ldconfig -p | grep libtern
in_root bash /tmp/check-variants.sh /usr/bin /tmp/embedded
in_root timeout 60 tern-bench --version
in_root timeout 60 tern-recall --version
if [[ $compile == --compile ]]; then
  echo "== An example of the package, compiled there"
  apt install g++ pkg-config
  in_root sh -c 'cd /tmp && g++ -std=c++20 /usr/share/doc/tern/examples/mlp/main.cpp $(pkg-config --cflags --libs tern) -o mlp && ./mlp | diff /usr/share/doc/tern/examples/mlp/expected.txt - &&
    echo "compiled, linked, run"'
fi
echo "== The archive, without the .deb, in another place"
apt remove tern
mkdir -p "$root/opt/elsewhere"
tar -xzf "$archive" -C "$root/opt/elsewhere" --strip-components=1
in_root bash /tmp/check-variants.sh /opt/elsewhere/bin /tmp/embedded
trap - EXIT
umount "$root/proc"
rm -rf --one-file-system "$root"
echo "The packages work in a Debian 12 that has nothing else"
