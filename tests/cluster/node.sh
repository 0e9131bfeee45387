#!/usr/bin/env bash
# The first process of the cluster's node: prepares the node from the inside and keeps its components running.
#
# The node lives in PID, mount, network, UTS and IPC namespaces of its own (up.sh makes them). That is what keeps the machine clean:
# when this process ends, however it ends, the kernel ends every process of the cluster with it, and the mounts, the bridge, the
# firewall rules and the pods' networks disappear. Nothing is left but files under the state folder and empty control groups.
#
# Paths inside the node are fixed ones under /run/node, which conf/ names; they are short, because a socket's path may have 108 characters.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# /proc is still the machine's, so this is the number that the machine knows this process by.
read -r pid _ </proc/self/stat
printf '%s %s\n' "$pid" "$(identity "$pid")" >"$state/run/node.pid.new"
mv "$state/run/node.pid.new" "$state/run/node.pid"

# --- Files. Without --no-mtab mount would note them in the machine's /run.
mount() { command mount --no-mtab "$@"; }
mount --make-rprivate /
plugins=$(cni_plugins) || die "the CNI plugins bridge, host-local and loopback are missing"
# Bound before /run is hidden, because the cache may lie under a folder that is hidden below.
staging=$state/run/staging
mkdir "$staging"
mount -t tmpfs -o mode=755 node "$staging"
mkdir -p "$staging"/node/{state,bin,conf,cni,sysctl,containerd}
mount --bind "$state" "$staging/node/state"
mount --bind "$bin" "$staging/node/bin"
mount --bind "$here/conf" "$staging/node/conf"
mount --bind "$plugins" "$staging/node/cni"
# Components write to folders that cannot be configured: /run/containerd, /run/netns, /var/lib/cni, /var/lib/kubelet, /var/log/containers.
# A hidden /run also hides the machine's systemd and name service from them.
mount --move "$staging" /run
for hidden in /var/lib /var/log; do mount -t tmpfs -o mode=755 node "$hidden"; done
mount -t proc proc /proc
# Pods see what is mounted below / later (volumes need that); the machine does not.
mount --make-rshared /
state=/run/node/state bin=/run/node/bin kubeconfig=/run/node/state/kubeconfig
export PATH=/run/node/bin:$PATH
# An overlay file system cannot lie on another one; plain copies can (the machine is itself a container).
snapshotter=overlayfs
case $(stat --file-system --format=%T "$state/run") in overlayfs | *794c7630*) snapshotter=native ;; esac
sed "s/@SNAPSHOTTER@/$snapshotter/" /run/node/conf/containerd.toml >/run/node/containerd.toml
: >/run/node/resolv.conf

# The kubelet sets these for the whole machine, and ends if it cannot. It finds the values it wants, in files that are not the machine's.
while read -r key value; do
  [ -e "/proc/sys/$key" ] || continue
  file=/run/node/sysctl/${key//\//.}
  printf '%s\n' "$value" >"$file"
  mount --bind "$file" "/proc/sys/$key"
done <<'SYSCTLS'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SYSCTLS

# --- Control groups: one parent for all pods, in every hierarchy.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  # Version 2: a controller reaches a group only if its parent hands it down.
  for controller in cpuset cpu io memory hugetlb pids; do echo "+$controller" 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control || true; done
  for controller in cpu memory pids; do
    grep -qw "$controller" /sys/fs/cgroup/cgroup.subtree_control || die "the $controller controller of control groups cannot be used (inside a container?)"
  done
  mkdir -p "/sys/fs/cgroup/$cgroup"
else
  for hierarchy in /sys/fs/cgroup/*/; do [ ! -e "$hierarchy/cgroup.procs" ] || mkdir -p "$hierarchy/$cgroup"; done
fi

# --- Network. There is no default route, so nothing can leave the node but towards the machine's own end of the cable.
ip link set lo up
# With no address of its own a bridge takes that of a port, and changes it as pods come and go: the machine would talk to nobody.
ip link add fanout0 address 02:fa:00:00:00:01 type bridge
ip address add "$node_address/24" dev fanout0
ip link set fanout0 up
# Service addresses exist only in firewall rules; a route makes the kernel accept them as destinations.
ip route add "$service_range" dev fanout0 src "$node_address"
eventually 10 "the cable to the machine" ip link show uplink
ip link set uplink master fanout0 up
# Per network namespace, so the machine's own values stay.
sysctl -qw net.ipv4.ip_forward=1
# A pod that calls a service whose pod sits on the same bridge gets its answer over the bridge: it must pass the firewall to be translated back.
sysctl -qw net.bridge.bridge-nf-call-iptables=1

# --- Components. One that ends is started again, as a service manager would.
supervise() {
  local name=$1
  shift
  (
    while :; do
      status=0
      "$@" </dev/null >>"$state/run/log/$name.log" 2>&1 || status=$?
      echo "$(date -u +%FT%TZ) $name ended with status $status, starting it again" >>"$state/run/log/node.log"
      sleep 1
    done
  ) &
}

# An image that is not there shall fail at once, not be looked for on the internet: the proxy does not exist.
supervise containerd env HTTP_PROXY=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 containerd --config /run/node/containerd.toml

# The data is thrown away with the cluster, so it need not reach the disk.
supervise etcd etcd --name node --data-dir "$state/run/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster node=http://127.0.0.1:2380

pki=$state/pki
supervise kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
  --bind-address="$node_address" --advertise-address="$node_address" --secure-port=6443 --service-cluster-ip-range="$service_range" \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
  --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
  --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
  --kubelet-client-certificate="$pki/apiserver-kubelet-client.crt" --kubelet-client-key="$pki/apiserver-kubelet-client.key" \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local \
  --service-account-key-file="$pki/service-account.pub" --service-account-signing-key-file="$pki/service-account.key" \
  --requestheader-client-ca-file="$pki/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
  --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
  --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key" --enable-aggregator-routing=true \
  --audit-policy-file=/run/node/conf/audit.yaml --audit-log-path="$state/run/log/audit.log" --audit-log-maxsize=100000

# Each of the rest waits for the API server itself, but would log an error a second until it is there.
eventually 60 "the API server" kubectl get --raw /readyz || true

supervise kubelet kubelet --config=/run/node/conf/kubelet.yaml --kubeconfig="$pki/kubelet.kubeconfig" \
  --root-dir="$state/run/kubelet" --cert-dir="$state/run/kubelet-pki" --hostname-override="$node_name" --node-ip="$node_address"

config=$pki/controller-manager.kubeconfig
# With the default of 20 requests a second a new namespace waits 5 s for its service account. There is nobody to elect a leader among.
supervise kube-controller-manager kube-controller-manager --kubeconfig="$config" --authentication-kubeconfig="$config" --authorization-kubeconfig="$config" \
  --flex-volume-plugin-dir=/run/node/volume-plugins \
  --bind-address=127.0.0.1 --leader-elect=false --kube-api-qps=500 --kube-api-burst=1000 \
  --use-service-account-credentials=true --service-account-private-key-file="$pki/service-account.key" --root-ca-file="$pki/ca.crt" \
  --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
  --allocate-node-cidrs=true --cluster-cidr="$pod_range" --service-cluster-ip-range="$service_range"

config=$pki/scheduler.kubeconfig
supervise kube-scheduler kube-scheduler --kubeconfig="$config" --authentication-kubeconfig="$config" --authorization-kubeconfig="$config" \
  --bind-address=127.0.0.1 --leader-elect=false

supervise kube-proxy kube-proxy --config=/run/node/conf/kube-proxy.yaml

# Bash collects the processes that lose their parent while it waits. It waits for ever: the components are started again.
wait
die "every component has been stopped from outside"
