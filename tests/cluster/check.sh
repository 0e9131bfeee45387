#!/usr/bin/env bash
# Proves that the local cluster works, that it survives and cleans up after being killed, and that nothing of it stays on the machine.
# Starts and stops the cluster, so it refuses while one runs. About a minute.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[ "$(id -u)" = 0 ] || die "this check needs root"
! node_pid >/dev/null || die "the local cluster runs; this check starts and stops it (make cluster-down first)"

# What a cluster could change on a machine, without what other programs change all the time.
machine() {
  nft list ruleset
  ip -oneline link show | sed 's/^[0-9]*: //'
  ip -oneline address show | sed 's/^[0-9]*: //; s/ *valid_lft.*//'
  ip route show table all
  ip netns list
  find /sys/fs/cgroup -type d -name "*$cgroup*" -o -type d -name '*kubepods*'
  grep -F "$state" /proc/mounts || true
  sysctl -a 2>/dev/null | grep -E '^(vm\.(overcommit|panic)|kernel\.(panic|keys)|net\.(ipv4|ipv6)\.(conf|ip_forward)|net\.bridge|net\.netfilter\.nf_conntrack_max)'
  ls -d /run/containerd /run/mount /run/netns /run/node /opt/* /etc/cni /etc/kubernetes /usr/libexec/kubernetes /var/lib/* /var/log/* 2>/dev/null || true
  ls -A /run/netns /var/lib/cni /var/lib/kubelet /var/log/containers /var/log/pods 2>/dev/null || true
  for cmdline in /proc/[0-9]*/cmdline; do { tr '\0' ' ' <"$cmdline"; } 2>/dev/null | grep -E '/run/node/|node\.sh' || true; done
}
nothing_stays() {
  machine >"$work/after"
  diff "$work/before" "$work/after" >&2 || die "$1: the machine is not as it was (< before, > after)"
  say "ok: $1: nothing stays on the machine"
}
# run_pod NAME: a pod is scheduled, gets a network and runs.
run_pod() {
  kubectl run "$1" --image=localhost/pause:local --image-pull-policy=Never --restart=Never >/dev/null
  kubectl wait "pod/$1" --for=condition=Ready --timeout=30s >/dev/null || die "the pod $1 does not run"
}

work=$(mktemp -d)
trap 'rm -rf "$work"; "$here/down.sh" --quiet' EXIT
"$here/down.sh" --quiet
machine >"$work/before"

"$here/up.sh" >/dev/null 2>&1 || die "the cluster does not start"
run_pod first
say "ok: a pod runs"
[ "$("$here/up.sh" 2>/dev/null)" = "$kubeconfig" ] || die "a second start does not leave the running cluster alone"
say "ok: a second start leaves the running cluster alone"

# Nothing may leave: not from a pod's network, not from the node.
pod=$(in_node ctr --address /run/node/containerd.sock --namespace k8s.io tasks ls | awk '/RUNNING/ {print $2}' | tail -n1)
outside=$(ip -4 route get 1.1.1.1 2>/dev/null | sed -n 's/.*via \([0-9.]*\).*/\1/p')
for address in 1.1.1.1 $outside; do
  for where in "in_node" "in_node nsenter -t $pod -n"; do
    ! $where timeout 2 bash -c "exec 3<>/dev/tcp/$address/53" 2>/dev/null || die "$address was reached from the cluster ($where)"
  done
done
say "ok: neither a pod nor the node reaches an address outside"
! kubectl run pulls --image=docker.io/library/busybox:1 --restart=Never >/dev/null || true
pull_failed() { kubectl get pod pulls -o 'jsonpath={.status.containerStatuses[0].state.waiting.reason}' | grep -qE 'ErrImagePull|ImagePullBackOff'; }
eventually 20 "the refusal of an image that is not there" pull_failed || die "an image that is not there is looked for"
say "ok: an image that is not there fails at once"

# A component that is killed comes back.
in_node pkill -KILL -x kube-apiserver || die "the API server does not run"
eventually 30 "the API server after it was killed" kubectl get --raw /readyz || die "the API server did not come back"
run_pod second
say "ok: a killed API server comes back"

"$here/down.sh" --quiet
nothing_stays "after a stop"

"$here/up.sh" >/dev/null 2>&1 || die "the cluster does not start again"
run_pod third
kill -KILL "$(node_pid)"
"$here/up.sh" >/dev/null 2>&1 || die "the cluster does not start over the remains of a killed one"
run_pod fourth
say "ok: it starts over the remains of a killed one"
"$here/down.sh" --quiet
nothing_stays "after a kill, a start and a stop"

"$here/up.sh" >/dev/null 2>&1 || die "the cluster does not start again"
first=$(node_pid)
for process in /proc/[0-9]*; do
  [ "$(readlink "$process/ns/pid" 2>/dev/null)" = "$(readlink "/proc/$first/ns/pid")" ] && [ "${process#/proc/}" != "$first" ] || continue
  kill -KILL "${process#/proc/}" 2>/dev/null || true
done
"$here/down.sh" --quiet
nothing_stays "after every process but the first was killed, and a stop"
