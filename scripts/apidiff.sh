#!/usr/bin/env bash
# apidiff.sh [COMMIT]: compares the packages below pkg/ with those of COMMIT. Without COMMIT it uses the last
# release, or the main branch if there is no release yet. It lists all changes. For each package with incompatible
# changes, the section Unreleased of CHANGELOG.md must name the package, as pkg/ratelimit/… or as
# ratelimit.Config. Otherwise the script fails.
set -euo pipefail
cd "$(dirname "$0")/.."

module=$(go list -m)
base=${1:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)}
[ "$(git rev-parse "$base^{commit}")" != "$(git rev-parse HEAD)" ] || base=HEAD^ # HEAD is the tip of the main branch
scripts/install-tools.sh api
apidiff=$PWD/.tools/bin/apidiff

work=$(mktemp -d)
trap 'git worktree remove --force "$work/old" 2>/dev/null; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/old" "$base"

# export_data FOLDER OUT: writes a file into OUT for each package below pkg/ of FOLDER.
export_data() {
  local package
  mkdir "$2"
  (cd "$1" && for package in $(go list ./pkg/...); do
    "$apidiff" -w "$2/$(tr / : <<<"${package#"$module/"}")" "$package"
  done)
}
export_data "$work/old" "$work/before"
export_data "$PWD" "$work/after"

unreleased=$(awk '/^## / { on = /Unreleased/ } on' CHANGELOG.md)
missing=()
for file in "$work"/before/* "$work"/after/*; do
  name=${file##*/} package=$(tr : / <<<"${file##*/}")
  if [ ! -e "$work/after/$name" ]; then
    changes="Incompatible changes:
- the package was removed"
  elif [ ! -e "$work/before/$name" ]; then
    echo "$package is new"
    continue
  elif [ "${file%/*}" = "$work/after" ]; then
    continue
  else
    changes=$("$apidiff" "$work/before/$name" "$work/after/$name")
  fi
  [ -n "$changes" ] || continue
  printf '%s\n%s\n\n' "$package" "$changes"
  grep -q '^Incompatible changes:' <<<"$changes" || continue
  grep -qE "$package\b|\b${package##*/}\.[A-Z]" <<<"$unreleased" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "incompatible since $base, and not named in the section Unreleased of CHANGELOG.md: ${missing[*]}" >&2
  exit 1
fi
echo "compared with $base"
