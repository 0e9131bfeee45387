#!/usr/bin/env bash
# Says what starting the local cluster changes on this machine and how long it takes, and refuses where it cannot or should not run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

instead="use a cluster you have instead: FANOUT_CONTEXT=NAME make demo (kind, minikube)"
refuse() { die "$1; $instead"; }

[ "$(uname -s)" = Linux ] || refuse "the local cluster needs Linux"
[ "$(id -u)" = 0 ] || refuse "the local cluster needs root, for namespaces, mounts and control groups"
unshare --mount --pid --fork --net --ipc --uts true 2>/dev/null || refuse "this machine does not let root make namespaces (an unprivileged container?)"
[ -w /sys/fs/cgroup ] || refuse "control groups cannot be written here (an unprivileged container?)"
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || refuse "this kernel has no overlay file system"

for comm in /proc/[0-9]*/comm; do
  name=$(cat "$comm" 2>/dev/null) || continue
  process=${comm//[!0-9]/}
  case $name in
  # identity fails for what has ended and only waits for its parent.
  kubelet | kubelite | k3s | k3s-* | k0s | rke2) ! identity "$process" >/dev/null || refuse "this machine already runs Kubernetes ($name, process $process)" ;;
  esac
done
# The machine's end of the cable exists only as long as a node does.
[ ! -e "/sys/class/net/$host_link" ] || die "another local cluster of this project runs on this machine, with another cache folder than $cache"

for range in $node_range $service_range; do
  # Routes inside the range, and those around it; the cluster's would win over either.
  overlap=$(ip -4 route show table all root "$range"; ip -4 route show table all match "$range")
  overlap=$(grep -v ^default <<<"$overlap" | head -n1) || continue
  [ -z "$overlap" ] || refuse "this machine has a route that overlaps with $range, which the cluster uses: $overlap"
done

missing=$("$here/../packages.sh" --list cluster)
building=()
minutes=0
[ -x "$bin/pause" ] && [ -x "$bin/coredns" ] || { building+=(CoreDNS); minutes=$((minutes + 1)); }
[ -x "$bin/kube" ] || { building+=("Kubernetes $kubernetes_version"); minutes=$((minutes + 9)); }
[ ${#building[@]} = 0 ] && needed=4 || needed=9
mkdir -p "$cache"
free=$(($(df --output=avail -k "$cache" | tail -n1) / 1048576))
[ "$free" -ge "$needed" ] || refuse "$needed GB of free disk are needed under $cache, $free GB are there"

say "The local cluster changes on this machine, until 'make cluster-down':"
say "  processes   one Kubernetes node in namespaces of its own: about 600 MB of memory, no open port on the machine's addresses"
say "  network     the interface $host_link with $host_address, routes to $node_range (pods) and $service_range (services),"
say "              the nftables table inet $guard_table: nothing of the cluster leaves the machine"
say "  cgroups     $cgroup"
say "  files       $state; in $HOME/.kube nothing"
say "and for good:"
say "  packages    ${missing:-none}"
say "  files       the cache $cache$([ ${#building[@]} = 0 ] || echo ", about 5 GB")"
[ -d /sys/module/br_netfilter ] || [ -e /proc/sys/net/bridge ] || say "  kernel      the module br_netfilter is loaded"
if [ ${#building[@]} = 0 ]; then
  say "Time: about 15 seconds."
else
  list=$(printf '%s and ' "${building[@]}")
  say "Time: about $minutes minutes on 2 cores, to build ${list% and }; the next start takes about 15 seconds."
fi
