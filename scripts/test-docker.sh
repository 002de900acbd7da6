#!/usr/bin/env bash
# scripts/test-docker.sh [--ccache]: runs the lines of Dockerfile, one after the other, where there is no Docker: each stage in a Debian 12 of its
# own under build/docker, made by debootstrap (minbase, which has no fewer packages than debian:12-slim). With --ccache the first stage has ccache
# and this machine's cache as well: minutes in place of half an hour, after scripts/test-package.sh. Needs root and Debian's mirror, MIRROR where
# that is another one, so CI does not run it. build/docker is removed at the end, and left where something fails.
set -euo pipefail
cd "$(dirname "$0")/.."
option=${1:-}
root=$PWD/build/docker mirror=${MIRROR:-http://deb.debian.org/debian}
if [[ -n $option && $option != --ccache ]]; then
  echo "usage: scripts/test-docker.sh [--ccache]" >&2
  exit 2
fi
[[ $(id -u) -eq 0 ]] || { echo "error: expected to be root, as chroot is root's: sudo scripts/test-docker.sh $option" >&2; exit 1; }
for program in debootstrap ${option#--}; do
  command -v "$program" >/dev/null || { echo "error: expected $program: apt-get install $program" >&2; exit 1; }
done
mounts=()
cleanup() {
  local place
  for place in "${mounts[@]}"; do umount "$place"; done
  mounts=()
}
trap cleanup EXIT
mount_in() {  # mount_in PLACE OPTION...
  mkdir -p "$1"
  mount "${@:2}" "$1"
  mounts=("$1" "${mounts[@]}")
}
if [[ -e $root ]] && grep -q " $root/" /proc/mounts; then
  echo "error: expected nothing mounted under $root, of a run that was killed: umount it" >&2
  exit 1
fi
rm -rf --one-file-system "$root"   # never into a mounted cache
mkdir -p "$root"
debootstrap --variant=minbase bookworm "$root/base" "$mirror" >"$root/debootstrap.log" 2>&1 || { tail -20 "$root/debootstrap.log" >&2; exit 1; }

stage="" workdir=/ command=""
environment=(PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive)
if [[ $option == --ccache ]]; then
  # The locale is a part of what ccache looks a compilation up by: with another one than this machine's nothing would be found.
  environment+=(CCACHE_BASEDIR=/tern CCACHE_NOHASHDIR=1 CCACHE_DIR=/ccache)
  for name in LANG LC_ALL LC_CTYPE LC_MESSAGES; do
    [[ ! -v $name ]] || environment+=("$name=${!name}")
  done
else
  environment+=(LC_ALL=C)
fi
in_stage() { chroot "$root/$stage" env -i "${environment[@]}" sh -c "cd $workdir && $1"; }
# A line a instruction, continued lines joined.
python3 - >"$root/lines" <<'PY'
import re
text = re.sub(r"\\\n\s*", "", open("Dockerfile").read())
print("\n".join(line for line in text.splitlines() if line and not line.startswith("#")))
PY
while IFS= read -r -u 3 line; do
  echo "== $line"
  read -r kind rest <<<"$line"
  case $kind in
    FROM)
      [[ $rest == "debian:12-slim"* ]] || { echo "error: expected debian:12-slim but got $rest" >&2; exit 1; }
      [[ $rest == *" AS "* ]] && stage=${rest##* AS } || stage=last
      cp -a "$root/base" "$root/$stage"
      workdir=/
      mount_in "$root/$stage/proc" -t proc proc
      if [[ $option == --ccache && $stage == build ]]; then
        mount_in "$root/$stage/ccache" --bind "$(ccache --get-config cache_dir)"
        in_stage "apt-get update && apt-get install -y --no-install-recommends ccache" >"$root/ccache.log" 2>&1 || { tail -20 "$root/ccache.log" >&2; exit 1; }
      fi ;;
    RUN) in_stage "$rest" >>"$root/$stage.log" 2>&1 || { tail -30 "$root/$stage.log" >&2; exit 1; } ;;
    WORKDIR) workdir=$rest ;;
    COPY)
      from=$PWD
      if [[ $rest == --from=* ]]; then
        from=${rest%% *} from=$root/${from#--from=} rest=${rest#* }
      fi
      read -r source target <<<"$rest"
      if [[ $source == . ]]; then   # what git has, as a checkout has no build directory
        mkdir -p "$root/$stage$target"
        git ls-files -z | tar --null -T - -c | tar -x -C "$root/$stage$target"
      else
        mkdir -p "$(dirname "$root/$stage$target")"
        cp -a "$from/$source" "$root/$stage$target"
      fi ;;
    CMD) command=$(python3 -c 'import json, shlex, sys; print(shlex.join(json.loads(sys.argv[1])))' "$rest") ;;
    *) echo "error: scripts/test-docker.sh does not know $kind" >&2; exit 1 ;;
  esac
done 3<"$root/lines"
echo "== $command, and a training"
in_stage "$command" >/dev/null
in_stage "tern-translate train --data /data/embedded --src de --tgt en --preset quick --epochs 1 --out /tmp/quick" | tail -3
ls -l "$root/build/tern.deb"
cleanup
rm -rf --one-file-system "$root"
