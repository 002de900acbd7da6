#!/usr/bin/env bash
# scripts/test-package.sh [--compile]: builds the packages (preset `package`), and tries them where nothing of the build is: the .deb in a fresh
# Debian 12 under build/package/chroot, made by debootstrap, with the packages that it asks for and no others; the .tar.gz moved to another
# place there. With --compile a program is compiled against it there as well, by pkg-config. Needs root and Debian's mirror, so CI does not run it.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=${1:-}
build=$PWD/build/package root=$PWD/build/package/chroot mirror=${MIRROR:-http://deb.debian.org/debian}
if [[ -n $compile && $compile != --compile ]]; then
  echo "usage: scripts/test-package.sh [--compile]" >&2
  exit 2
fi
if [[ $(id -u) -ne 0 ]] || ! command -v debootstrap >/dev/null; then
  echo "error: expected to be root, with debootstrap installed" >&2
  exit 1
fi

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
cp "$deb" "$root/tmp/tern.deb"
in_root sh -c 'apt-get update && apt-get install -y --no-install-recommends /tmp/tern.deb' >"$build/apt.log" 2>&1 || { tail -20 "$build/apt.log" >&2; exit 1; }
grep -E '^Unpacking|^Setting up' "$build/apt.log" | grep Unpacking | awk '{print "with", $2, $3}'

cp -r data/embedded "$root/tmp/embedded"
cp scripts/check-variants.sh "$root/tmp/"
echo "== The .deb, installed by apt"
in_root ldconfig -p | grep libtern
in_root bash /tmp/check-variants.sh /usr/bin /tmp/embedded
in_root timeout 60 tern-bench --version
in_root timeout 60 tern-recall --version
if [[ $compile == --compile ]]; then
  echo "== A program compiled there"
  cp tests/install/components/small.cpp "$root/tmp/"
  in_root apt-get install -y --no-install-recommends g++ pkg-config >>"$build/apt.log" 2>&1
  in_root sh -c 'cd /tmp && g++ -std=c++20 small.cpp $(pkg-config --cflags --libs tern) -o small && ./small && echo "compiled, linked, run"'
fi
echo "== The archive, without the .deb, in another place"
in_root apt-get remove -y tern >>"$build/apt.log" 2>&1
mkdir -p "$root/opt/elsewhere"
tar -xzf "$archive" -C "$root/opt/elsewhere" --strip-components=1
in_root bash /tmp/check-variants.sh /opt/elsewhere/bin /tmp/embedded
echo "The packages work in a Debian 12 that has nothing else"
