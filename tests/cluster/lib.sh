# What the scripts of the local cluster share: where things are kept, how progress and errors are printed, locks. Sourced, not run.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FANOUT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fanout-operator}

kubernetes_version=v1.34.4
coredns_version=v1.14.7
bin=$cache/kube/$kubernetes_version/bin

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

# lock NAME: holds the lock until this shell ends, so that two runs at the same time do the work once.
# The descriptor is closed in whatever is started to outlive this shell ({lock_fd}>&- there).
lock() {
  mkdir -p "$cache/locks"
  exec {lock_fd}>"$cache/locks/$1"
  flock -n "$lock_fd" && return 0
  say "waiting for another run that holds $cache/locks/$1"
  flock "$lock_fd"
}
