#!/usr/bin/env bash
# What a user of the chart does, with Helm 3 and 4: lint, render, package, and the chart of an application
# that depends on it. Both must make the same. What is made is looked at by the tests in test/chart.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-tools.sh helm
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/test/chart/testdata"
cp -r charts "$dir/"
cp -r test/chart/testdata/app "$dir/test/chart/testdata/" # it gets a copy of the other one

for helm in helm3 helm4; do
  for values in charts/rlsidecar/ci/*-values.yaml; do
    .tools/bin/$helm lint --strict --quiet charts/rlsidecar --values "$values"
    # Blank lines between documents differ.
    .tools/bin/$helm template x charts/rlsidecar --kube-version 1.34.0 --values "$values" | grep . >>"$dir/$helm.yaml"
  done
  .tools/bin/$helm package --destination "$dir" charts/rlsidecar >/dev/null
  .tools/bin/$helm dependency build "$dir/test/chart/testdata/app" >/dev/null
  .tools/bin/$helm template x "$dir/test/chart/testdata/app" --kube-version 1.34.0 | grep . >>"$dir/$helm.yaml"
  echo "$helm: $(grep -c '^kind:' "$dir/$helm.yaml") objects"
done
diff "$dir/helm3.yaml" "$dir/helm4.yaml"
