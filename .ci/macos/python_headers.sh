#!/usr/bin/env bash
# python_headers.sh FOLDER: CPython's headers, of 3.12 or a later version, with the pyconfig.h of arm64 macOS.
#
# They come from Debian's package libpython3.N-dev by apt-get, unprivileged, and nothing is installed. Headers of one version
# are the same on every system but for pyconfig.h. Debian 12 has 3.11, too old; so where apt's own sources have no newer one,
# the release after it is asked at the same mirror.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1
if [[ -e $folder/Python.h ]]; then exit; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{state/lists/partial,cache/archives/partial}

apt() {
  apt-get -q -o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$work/cache" \
    -o Debug::NoLocking=1 -o APT::Sandbox::User= "$@"
}

fetch() {  # further options
  local minor
  apt "$@" update >/dev/null
  for minor in 12 13 14; do
    if (cd "$work" && apt "$@" download "libpython3.$minor-dev" 2>/dev/null); then return; fi
  done
  return 1
}

next_release() {
  apt indextargets --format 'deb $(REPO_URI) $(RELEASE) main' 'Created-By: Packages' |
    sed -n 's/ bookworm main$/ trixie main/p' | sort -u
}

if ! fetch; then
  next_release >"$work/next.list"
  if ! fetch -o Dir::Etc::SourceList="$work/next.list" -o Dir::Etc::SourceParts=/dev/null; then
    echo "no package libpython3.N-dev of 3.12 or later is to be had:" \
      "put the headers of such a Python into $folder, with .ci/macos/pyconfig.h" >&2
    exit 1
  fi
fi
dpkg-deb -x "$work"/libpython3.*-dev_*.deb "$work/package"
mkdir -p "$(dirname "$folder")"
rm -rf "$folder" "$folder.new"
cp -r "$work"/package/usr/include/python3.* "$folder.new"
cp "$here/pyconfig.h" "$folder.new/pyconfig.h"
mv "$folder.new" "$folder"
