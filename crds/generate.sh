#!/usr/bin/env bash
# Writes what is generated from the code and the chart: the CRDs, their copies in the chart, manifests/*.yaml, and
# docs/reference.
#
#   crds/generate.sh            writes the files
#   crds/generate.sh FOLDER     renders manifests into FOLDER instead and changes nothing else; tests compare the two
set -euo pipefail
cd "$(dirname "$0")/.."

chart=charts/fanout-operator
out=${1:-manifests}
helm=$(bash tests/cluster/helm.sh)

if [ $# -eq 0 ]; then
  cargo run --quiet -p fanout-crds --bin crdgen
  cp crds/*.yaml "$chart/files/crds/"
fi

# What only Helm has a use for is left out: who applies these files has no release.
render() {
  "$helm" template fanout-operator "$chart" --namespace fanout-system --skip-tests --set crds.keep=false "$@" |
    grep -v -e '^ *helm.sh/chart: ' -e '^ *app.kubernetes.io/managed-by: Helm$' -e '^# Source: '
}

namespace() {
  cat <<'YAML'
apiVersion: v1
kind: Namespace
metadata:
  name: fanout-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
YAML
}

header='# Rendered from charts/fanout-operator by `make generate`. Do not edit.'
{ echo "$header" && render --show-only templates/crds.yaml; } >"$out/crds.yaml"
{ echo "$header" && namespace && render; } >"$out/install.yaml"

if [ $# -eq 0 ]; then
  cargo run --quiet -p fanout-tests --bin fanout-reference
fi
