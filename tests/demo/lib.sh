# What the demo's scripts share: which cluster, how it is reached, how images get there. Sourced, not run.
# shellcheck shell=bash disable=SC2034
#
# FANOUT_CONTEXT=NAME uses that kubectl context; without it the local cluster of tests/cluster is started and used.

demo=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$demo/../.." && pwd)
. "$root/tests/cluster/lib.sh"

context=${FANOUT_CONTEXT:-}
application_namespace=social
services_namespace=fanout-services
operator_namespace=fanout-system
release=fanout

if [ -n "$context" ]; then
  # lib.sh's kubectl is the local cluster's.
  kubectl() { command kubectl --context "$context" "$@"; }
  command -v kubectl >/dev/null || die "kubectl is missing"
else
  export KUBECONFIG=$kubeconfig
fi

started=$SECONDS
progress() { printf '%4d s  %s\n' $((SECONDS - started)) "$*" >&2; }

helm_cli() {
  local program arguments=()
  program=$("$root/tests/cluster/helm.sh")
  [ -z "$context" ] || arguments=(--kube-context "$context")
  "$program" "${arguments[@]}" "$@"
}

# containerd's client on the local cluster's node.
node_ctr() { in_node ctr --address /run/node/containerd.sock --namespace k8s.io "$@"; }

# load_image REFERENCE ARCHIVE: makes an image known to the cluster's nodes.
load_image() {
  local reference=$1 archive=$2
  case $context in
  '')
    # The tag is a hash of the content.
    [ -n "$(node_ctr images ls --quiet "name==$reference")" ] || node_ctr images import - <"$archive" >/dev/null
    ;;
  kind-*) kind load image-archive --name "${context#kind-}" "$archive" >/dev/null ;;
  minikube*) minikube image load --profile "$context" "$archive" >/dev/null ;;
  *)
    [ "${FANOUT_IMAGES:-}" = loaded ] ||
      die "images get into kind and minikube by themselves; for the context $context load $archive into every node ($reference) and set FANOUT_IMAGES=loaded"
    ;;
  esac
}

# Address ranges of pods and services, for egress.allowedCIDRs; asked of the cluster. Prints them separated by commas.
cluster_ranges() {
  local pods services
  pods=$(kubectl get nodes -o 'jsonpath={range .items[*]}{.spec.podCIDRs[*]} {end}')
  # Kubernetes 1.33 and later; before that the range cannot be asked for, and 16 bits around its first address are the usual size.
  services=$(kubectl get servicecidrs.networking.k8s.io kubernetes -o 'jsonpath={.spec.cidrs[*]}' 2>/dev/null) ||
    services=$(kubectl --namespace default get service kubernetes -o 'jsonpath={.spec.clusterIP}' | sed -E 's/\.[0-9]+\.[0-9]+$/.0.0\/16/')
  printf '%s %s' "$pods" "$services" | xargs -n1 | paste -sd,
}

# Whatever else lives on the cluster is not the demo's to delete.
demo_label=fanout.dev/demo
make_namespace() { printf 'apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {%s: "true"}}\n' "$1" "$demo_label" | kubectl create -f - >/dev/null; }
is_ours() { [ "$(kubectl get namespace "$1" -o "jsonpath={.metadata.labels.fanout\.dev/demo}" 2>/dev/null)" = true ]; }
