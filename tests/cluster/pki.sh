#!/usr/bin/env bash
# Makes the certificate authority, the certificates and the kubeconfigs of the local cluster, once; a second run changes nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

pki=$state/pki
[ -e "$pki/.complete" ] && [ "$(cat "$pki/.complete")" = "$(input_hash "$0" "$here/lib.sh")" ] && exit 0
rm -rf "$pki"
umask 077 # keys, and kubeconfigs that hold keys
mkdir -p "$pki"
cd "$pki"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

authority() {
  key "$1"
  openssl req -x509 -new -key "$1.key" -days 3650 -subj "/CN=$1" -out "$1.crt" \
    -addext keyUsage=critical,keyCertSign,digitalSignature,cRLSign
}

# certificate NAME AUTHORITY SUBJECT [SUBJECT-ALTERNATIVE-NAMES]
certificate() {
  key "$1"
  local extensions=$'keyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n'
  [ -z "${4:-}" ] || extensions+="subjectAltName=$4"$'\n'
  openssl req -new -key "$1.key" -subj "$3" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA "$2.crt" -CAkey "$2.key" -set_serial "0x$(openssl rand -hex 8)" -days 3650 \
    -extfile <(printf '%s' "$extensions") -out "$1.crt" 2>/dev/null
  rm "$1.csr"
}

# kubeconfig USER FILE: with everything in one file, so that it can be copied.
kubeconfig_of() {
  cat >"$2" <<YAML
apiVersion: v1
kind: Config
clusters:
  - name: fanout
    cluster:
      server: https://$node_address:6443
      certificate-authority-data: $(base64 -w0 <ca.crt)
users:
  - name: $1
    user:
      client-certificate-data: $(base64 -w0 <"$1.crt")
      client-key-data: $(base64 -w0 <"$1.key")
contexts:
  - name: fanout
    context: {cluster: fanout, user: $1}
current-context: fanout
YAML
}

api_names=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
authority ca
authority front-proxy-ca # of requests that the API server passes on to aggregated API servers
certificate apiserver ca "/CN=kube-apiserver" "$api_names,IP:$node_address,IP:${service_range%.*}.1,IP:127.0.0.1"
certificate apiserver-kubelet-client ca "/O=system:masters/CN=kube-apiserver-kubelet-client"
certificate front-proxy-client front-proxy-ca "/CN=front-proxy-client"
certificate admin ca "/O=system:masters/CN=admin"
certificate controller-manager ca "/CN=system:kube-controller-manager"
certificate scheduler ca "/CN=system:kube-scheduler"
certificate kube-proxy ca "/CN=system:kube-proxy"
certificate kubelet ca "/O=system:nodes/CN=system:node:$node_name" "DNS:$node_name,IP:$node_address"
# Service account tokens are checked by key alone.
key service-account
openssl ec -in service-account.key -pubout -out service-account.pub 2>/dev/null

for user in controller-manager scheduler kube-proxy kubelet; do kubeconfig_of "$user" "$user.kubeconfig"; done
kubeconfig_of admin "$kubeconfig"
input_hash "$0" "$here/lib.sh" >.complete
