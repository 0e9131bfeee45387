#!/usr/bin/env bash
# Removes everything the demo made: on a foreign cluster its namespaces, the operator and the CRDs, else the local cluster as a whole.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

if [ -z "$context" ]; then
  use_cluster_alone "$0" "$@"
  exec "$root/tests/cluster/down.sh"
fi
for namespace in "$application_namespace" "$services_namespace"; do
  ! is_ours "$namespace" || kubectl delete namespace "$namespace" --timeout=180s
done
for crd in subscriptions.fanout.dev fanouttopics.fanout.dev; do
  # Only those of the demo's release: with a CRD go all of its objects.
  owner=$(kubectl get crd "$crd" -o 'jsonpath={.metadata.annotations.meta\.helm\.sh/release-namespace}' 2>/dev/null) || continue
  [ "$owner" != "$operator_namespace" ] || kubectl delete crd "$crd" --timeout=120s
done
helm_cli uninstall "$release" --namespace "$operator_namespace" --ignore-not-found
kubectl delete namespace --ignore-not-found "$operator_namespace" --timeout=180s
