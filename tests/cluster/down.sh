#!/usr/bin/env bash
# Stops the local cluster and removes everything of it from the machine but the cache; also what a killed one left behind.
#
#   down.sh [--quiet] [--keep-logs]
set -euo pipefail
. "$(dirname "$0")/lib.sh"

quiet='' keep_logs=''
for argument; do
  case $argument in
  --quiet) quiet=yes ;;
  --keep-logs) keep_logs=yes ;;
  *) die "usage: down.sh [--quiet] [--keep-logs]" ;;
  esac
done

[ -d "$state" ] || { [ "$quiet" ] || say "there is no local cluster"; exit 0; }
[ "$(id -u)" = 0 ] || die "stopping the local cluster needs root"
[ "${FANOUT_CLUSTER_LOCKED:-}" ] || lock cluster # up.sh holds it when it calls

# Killing the node's first process makes the kernel kill every other one, and with the last of them go namespaces, mounts, bridge and rules.
if pid=$(node_pid); then
  kill -KILL "$pid"
  ended() { ! identity "$pid" >/dev/null; }
  eventually 20 "the end of the node's processes" ended || die "process $pid of the node does not end"
fi
unplugged() { [ ! -e "/sys/class/net/$host_link" ]; }
if ! unplugged; then
  # The kernel tears a network down a moment after its last process.
  eventually 10 "the end of the node's network" unplugged || ip link delete "$host_link"
fi
nft delete table inet "$guard_table" 2>/dev/null || true

# Pods' groups lie below; an inner one may still be leaving.
cgroups_gone() {
  find /sys/fs/cgroup -depth -type d \( -path "/sys/fs/cgroup/$cgroup*" -o -path "/sys/fs/cgroup/*/$cgroup*" \) -exec rmdir {} + 2>/dev/null
  [ -z "$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$cgroup")" ]
}
eventually 10 "the end of the pods' control groups" cgroups_gone || die "the control groups named $cgroup still hold processes"

if [ "$keep_logs" ]; then find "$state/run" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf {} +; else rm -rf "$state/run"; fi
[ "$quiet" ] || say "the local cluster is gone"
