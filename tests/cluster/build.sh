#!/usr/bin/env bash
# Builds the parts of the local cluster from source, once, into the cache, and prints the folder of the binaries.
#
#   build.sh kube     etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl
#   build.sh coredns  the cluster's name server
#   build.sh pause    the process that holds a pod's namespaces
#   build.sh health   what deployment tools make of an object (only tests use it)
#   build.sh          all that the cluster needs
#
# Each part is built again only when its sources, its versions or its flags change. Needs Go; nothing is installed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

go_minimum=1.24

require_go() {
  command -v go >/dev/null || die "Go is needed to build Kubernetes: install Go $go_minimum or later (https://go.dev/dl, or the distribution's package golang-go if it is new enough)"
  local have
  have=$(cd / && go env GOVERSION) && have=${have#go}
  [ "$(printf '%s\n%s\n' "$go_minimum" "$have" | sort -V | head -n1)" = "$go_minimum" ] ||
    die "Go $have is too old to build Kubernetes: Go $go_minimum or later is needed (https://go.dev/dl)"
}

# build_module NAME TIME LDFLAGS: builds the Go module in the folder NAME of this directory into $bin/NAME.
build_module() {
  local name=$1 time=$2 ldflags=$3 source=$here/$1 key stamp=$bin/.$1.inputs
  key=$(input_hash "$source/main.go" "$source/go.mod" "$source/go.sum" "$ldflags")
  is_current() { [ -x "$bin/$name" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; }
  is_current && return 0
  lock "build-$name"
  is_current && { unlock; return 0; } # another run built it while this one waited

  require_go
  mkdir -p "$bin" "$cache/go"
  # Static binaries: they go into images that hold nothing else.
  export CGO_ENABLED=0 GOCACHE=$cache/go/build GOMODCACHE=$cache/go/mod GOWORK=off
  # Modules stay writable, or `rm -rf` of the cache fails for users other than root.
  export GOFLAGS="-modcacherw -mod=readonly"

  say "building $name: about $time on 2 cores, once (cached in $bin)"
  cd "$source"
  local log=$bin/.$name.log packages
  packages=$(go list -deps . 2>"$log" | wc -l) || { tail -n 20 "$log" >&2; die "the Go modules of $name could not be fetched (whole log: $log)"; }
  # -v prints one line for each package that is compiled, which is the progress.
  go build -v -trimpath -buildvcs=false -ldflags "$ldflags" -o "$bin/.$name.new" . 2>"$log" &
  local build=$! started=$SECONDS
  trap 'kill "$build" 2>/dev/null || true' EXIT
  while kill -0 "$build" 2>/dev/null; do
    for _ in $(seq 30); do kill -0 "$build" 2>/dev/null && sleep 1; done
    kill -0 "$build" 2>/dev/null && say "  $name: $(wc -l <"$log") of at most $packages packages after $((SECONDS - started)) s"
  done
  wait "$build" || { tail -n 20 "$log" >&2; die "the build of $name failed (whole log: $log)"; }
  trap - EXIT
  mv "$bin/.$name.new" "$bin/$name"
  printf '%s' "$key" >"$stamp"
  say "  $name: built in $((SECONDS - started)) s"
  unlock
}

build_kube() {
  local version=k8s.io/component-base/version minor=${kubernetes_version#v1.} component
  # Without a version the API server says v0.0.0-master, and clients refuse features by it.
  build_module kube "9 minutes" "-s -w -X $version.gitVersion=$kubernetes_version -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*} -X $version.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes_version"
  for component in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    [ -L "$bin/$component" ] || ln -sf kube "$bin/$component"
  done
}

build_coredns() {
  build_module coredns "1 minute" "-s -w -X github.com/coredns/coredns/coremain.GitCommit=$coredns_version"
}

build_pause() {
  build_module pause "1 second" "-s -w"
}

build_health() {
  build_module health "30 seconds" "-s -w"
}

case ${1:-all} in
kube) build_kube ;;
coredns) build_coredns ;;
pause) build_pause ;;
health) build_health ;;
all)
  build_pause
  build_coredns
  build_kube
  ;;
*) die "usage: build.sh [kube|coredns|pause|health]" ;;
esac
printf '%s\n' "$bin"
