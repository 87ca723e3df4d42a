#!/usr/bin/env bash
# release.sh [FOLDER]: writes the files of a release into FOLDER (default dist): for each architecture an archive
# and an SBOM (CycloneDX), and the checksums of all files. The same commit and the same Go always produce the same
# bytes. VERSION is by default the tag at this commit, and SOURCE_DATE_EPOCH the time of the commit.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}

REVISION=${REVISION:-$(git rev-parse HEAD)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
VERSION=${VERSION:-$(git describe --tags --exact-match 2>/dev/null || true)}
export VERSION REVISION
die() { echo "release.sh: $*" >&2; exit 1; }
[ -n "$VERSION" ] || die "there is no tag at this commit: git tag v1.2.3, or give VERSION"
[[ $VERSION =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || die "the version is $VERSION; it must look like v1.2.3"
if [[ $VERSION != *-* ]]; then # a release, unlike a pre-release, must be in CHANGELOG.md and Chart.yaml
  grep -qF "## [${VERSION#v}]" CHANGELOG.md || die "CHANGELOG.md has no section [${VERSION#v}]"
  grep -qF "appVersion: \"${VERSION#v}\"" charts/rlsidecar/Chart.yaml || die "appVersion in charts/rlsidecar/Chart.yaml is not ${VERSION#v}"
fi

rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rlsidecar() { go run -trimpath -buildvcs=false -ldflags "-X 'main.linkedVersion=$VERSION'" ./cmd/rlsidecar "$@"; }
mkdir "$work/common" "$work/common/completions"
scripts/man.sh "$VERSION" >"$work/common/rlsidecar.1"
for shell in bash zsh fish; do rlsidecar completion $shell >"$work/common/completions/rlsidecar.$shell"; done
cp LICENSE README.md CHANGELOG.md packaging/rlsidecar.service "$work/common/"

for arch in amd64 arm64; do
  name=rlsidecar_${VERSION}_linux_$arch
  cp -r "$work/common" "$work/$name"
  GOARCH=$arch scripts/build.sh "$work/$name/rlsidecar"
  go run ./scripts/bom "$work/$name/rlsidecar" "$out/$name.cdx.json" "$work/$name/THIRD_PARTY_LICENSES.txt"
  chmod -R u=rwX,go=rX "$work/$name" # makes the permissions independent of the umask
  tar -C "$work" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$name" |
    gzip -n9 >"$out/$name.tar.gz"
done
(cd "$out" && sha256sum -- * >SHA256SUMS)
cat "$out/SHA256SUMS"
