#!/usr/bin/env bash
# Does what a user of the chart does, with Helm 3 and with Helm 4: lint, render and package the chart, and render
# the chart of an application that depends on it. Both versions of Helm must render the same objects. The tests in
# test/chart check the objects. The script then installs the chart into a real API server. The API server and Helm
# are built from source, so the first run takes a quarter of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-tools.sh helm
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/test/chart/testdata"
cp -r charts "$dir/"
cp -r test/chart/testdata/app "$dir/test/chart/testdata/" # helm dependency build copies the chart of rlsidecar into it

for helm in helm3 helm4; do
  for values in charts/rlsidecar/ci/*-values.yaml; do
    .tools/bin/$helm lint --strict --quiet charts/rlsidecar --values "$values"
    # grep removes blank lines, because the two versions put different ones between documents.
    .tools/bin/$helm template x charts/rlsidecar --kube-version 1.34.0 --values "$values" | grep . >>"$dir/$helm.yaml"
  done
  .tools/bin/$helm package --destination "$dir" charts/rlsidecar >/dev/null
  .tools/bin/$helm dependency build "$dir/test/chart/testdata/app" >/dev/null
  .tools/bin/$helm template x "$dir/test/chart/testdata/app" --kube-version 1.34.0 | grep . >>"$dir/$helm.yaml"
  echo "$helm: $(grep -c '^kind:' "$dir/$helm.yaml") objects"
done
diff "$dir/helm3.yaml" "$dir/helm4.yaml"

cd test/cluster
kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${kubernetes#v}"
version=k8s.io/component-base/version
echo "Kubernetes $kubernetes: install, upgrade, uninstall"
go vet ./...
go test -count=1 -ldflags "-X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=$minor" ./...
