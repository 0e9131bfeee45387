#!/usr/bin/env bash
# Prints the path of the local cluster's kubeconfig.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

node_pid >/dev/null || die "the local cluster does not run (make cluster-up starts it)"
printf '%s\n' "$kubeconfig"
