#!/usr/bin/env bash
# Starts the local cluster: a real single-node Kubernetes on this machine. Prints the path of the kubeconfig.
# A cluster that runs is left alone; over the remains of one that was killed a new one starts.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

if [ "$(id -u)" = 0 ]; then
  lock cluster
  export FANOUT_CLUSTER_LOCKED=yes # for down.sh
fi
deadline=$((SECONDS + 20))
# Its first process may be there and yet be about to end, so it must also answer.
while node_pid >/dev/null; do
  if kubectl get --raw /readyz --request-timeout=2s >/dev/null 2>&1; then
    say "the local cluster runs already"
    printf '%s\n' "$kubeconfig"
    exit 0
  fi
  if [ "$SECONDS" -ge "$deadline" ]; then
    say "the local cluster does not answer: starting it anew"
    "$here/down.sh" --quiet
  fi
done

"$here/preflight.sh"
"$here/../packages.sh" cluster
"$here/build.sh" >/dev/null
pause_image=$("$here/../images/pack.sh" pause | cut -d' ' -f2)
coredns_image=$("$here/../images/pack.sh" coredns | cut -d' ' -f2)

started=$(date +%s%N)
step() { say "  $(printf '%3d.%d s' $((($(date +%s%N) - started) / 1000000000)) $((($(date +%s%N) - started) / 100000000 % 10)))  $1"; }
failed() {
  say "the cluster did not start: $1. The last lines of its logs ($state/run/log):"
  tail -n 5 "$state"/run/log/*.log >&2 2>/dev/null || true
  "$here/down.sh" --keep-logs
  exit 1
}

say "starting the local cluster"
"$here/down.sh" --quiet # what a killed one left behind
"$here/pki.sh"
mkdir -p "$state/run/log"
[ -e /proc/sys/net/bridge ] || modprobe br_netfilter || die "the kernel module br_netfilter is missing"

(
  # Locks and pipes of this shell and of whoever called it shall not stay open as long as the node lives. 255 is this script.
  for descriptor in "/proc/$BASHPID/fd"/*; do
    descriptor=${descriptor##*/}
    if [ "$descriptor" -gt 2 ] && [ "$descriptor" != 255 ]; then exec {descriptor}>&-; fi
  done
  exec setsid nohup unshare --mount --pid --fork --kill-child=KILL --net --ipc --uts "$here/node.sh" </dev/null >"$state/run/log/node.log" 2>&1
) &
eventually 10 "the node's first process" node_pid || failed "the node's namespaces could not be made"
pid=$(node_pid)

# The guard stands before the first packet can flow. The node has no route to the outside, but a machine that forwards packets would
# let a pod use it as a router; and a client on the machine that still knows an address of a cluster that is gone would send to the internet.
nft -f - <<NFT
table inet $guard_table
delete table inet $guard_table
table inet $guard_table {
  chain forward {
    type filter hook forward priority -300; policy accept;
    iifname "$host_link" drop
    oifname "$host_link" drop
  }
  chain postrouting {
    type filter hook postrouting priority 300; policy accept;
    oifname { "lo", "$host_link" } accept
    ip daddr { $node_range, $service_range } drop
    ip saddr { $node_range, $service_range } drop
  }
}
NFT
ip link add "$host_link" type veth peer name uplink netns "$pid"
# A router on the machine's side must not teach the node a route out.
sysctl -qw "net.ipv6.conf.$host_link.disable_ipv6=1" 2>/dev/null || true
ip address add "$host_address/24" dev "$host_link"
ip link set "$host_link" up
ip route add "$service_range" via "$node_address" dev "$host_link"

eventually 30 "containerd" in_node ctr --address /run/node/containerd.sock version || failed "containerd does not answer"
for image in "$pause_image" "$coredns_image"; do import_image "$image" || failed "an image could not be imported"; done
step "containerd runs"
eventually 60 "the API server" kubectl get --raw /readyz || failed "the API server is not ready"
step "the API server is ready"
node_is_ready() { [ "$(kubectl get node "$node_name" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
eventually 60 "the node" node_is_ready || failed "the node is not ready"
step "the node is ready"
# Pods cannot be made before it exists.
eventually 30 "the default service account" kubectl --namespace default get serviceaccount default || failed "the controllers do not work"
kubectl apply -f "$here/conf/coredns.yaml" >/dev/null
kubectl --namespace kube-system rollout status deployment/coredns --timeout=60s >/dev/null || failed "CoreDNS is not ready"
step "CoreDNS is ready: the cluster is up"
say "export KUBECONFIG=$kubeconfig"
printf '%s\n' "$kubeconfig"
