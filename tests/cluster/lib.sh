# What the scripts of the local cluster share: where things are kept, names and addresses, progress and errors, locks. Sourced, not run.
# shellcheck shell=bash disable=SC2034

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FANOUT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fanout-operator}

kubernetes_version=v1.34.4
coredns_version=v1.14.7
bin=$cache/kube/$kubernetes_version/bin
state=$cache/cluster
kubeconfig=$state/kubeconfig

# One bridge inside the node carries the node's address, the API server's and the pods' gateway, because none of them may be a loopback address.
# The same addresses stand in conf/.
node_name=fanout-node
node_address=10.244.0.1
host_address=10.244.0.254 # the machine, as pods see it
pod_range=10.244.0.0/16
node_range=10.244.0.0/24
service_range=10.96.0.0/16
host_link=fanout-host # the machine's end of the cable to the node
guard_table=fanout-cluster
cgroup=fanout-cluster

# Progress goes to stderr: stdout belongs to what a script answers, a path for instance.
say() { printf '%s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# input_hash FILE-OR-STRING...: one hash over the content of the files and over the strings that are no files.
input_hash() {
  local input
  for input in "$@"; do
    if [ -f "$input" ]; then sha256sum <"$input"; else printf '%s' "$input" | sha256sum; fi
  done | sha256sum | cut -d' ' -f1
}

# lock NAME: holds the lock until unlock or until this shell ends, so that two runs at the same time do the work once.
lock() {
  mkdir -p "$cache/locks"
  exec {lock_fd}>"$cache/locks/$1"
  flock -n "$lock_fd" && return 0
  say "waiting for another run that holds $cache/locks/$1"
  flock "$lock_fd"
}
unlock() { exec {lock_fd}>&-; }

# use_cluster_alone SCRIPT ARGUMENT...: starts this script again as the only user of the local cluster until it ends. Two runs would
# exchange each other's operator. Called at a script's top with "$0" "$@".
use_cluster_alone() {
  [ -z "${FANOUT_CLUSTER_USE:-}" ] || return 0
  local file=$cache/locks/cluster-use
  mkdir -p "$cache/locks"
  flock -n "$file" true || say "waiting for another run that uses the local cluster"
  # Closed in the script and in all it starts: the cluster outlives them.
  FANOUT_CLUSTER_USE=yes exec flock --close "$file" bash "$@"
}

# eventually SECONDS WHAT COMMAND...: runs the command until it succeeds.
eventually() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || { say "timed out: $what"; return 1; }
    sleep 0.1
  done
}

# identity PID: what tells this process from a later one with the same number: boot and start time. Fails if it runs no more.
identity() {
  local line fields
  line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The second field, the name in parentheses, may hold spaces: count from behind it.
  read -ra fields <<<"${line##*) }"
  # A zombie has ended; its parent has just not asked yet.
  case ${fields[0]} in Z | X) return 1 ;; esac
  printf '%s-%s' "$(cat /proc/sys/kernel/random/boot_id)" "${fields[19]}"
}

# node_pid: prints the process id of the node's first process; fails if the cluster does not run.
node_pid() {
  local pid known
  read -r pid known 2>/dev/null <"$state/run/node.pid" || return 1
  [ "$(identity "$pid")" = "$known" ] && printf '%s' "$pid"
}

# in_node COMMAND...: runs a command inside the node.
in_node() {
  local pid
  pid=$(node_pid) || die "the local cluster does not run (make cluster-up starts it)"
  nsenter -t "$pid" -m -n -p -- "$@"
}

# import_image ARCHIVE: makes an image known to the node.
import_image() { in_node ctr --address /run/node/containerd.sock --namespace k8s.io images import - <"$1" >/dev/null; }

cni_plugins() {
  local folder
  for folder in /opt/cni/bin /usr/lib/cni /usr/libexec/cni; do
    [ -x "$folder/bridge" ] && [ -x "$folder/host-local" ] && [ -x "$folder/loopback" ] && { printf '%s' "$folder"; return 0; }
  done
  return 1
}

kubectl() { "$bin/kubectl" --kubeconfig "$kubeconfig" "$@"; }
