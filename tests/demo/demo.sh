#!/usr/bin/env bash
# Runs the whole system on a real cluster and checks every event:
#
#   make demo                        exit status 0 when nothing is missing, out of order or delivered though rolled back
#   make demo FAULT=lose|swap|rollback    plants that fault: exit status 1, with the right column above 0
#   FANOUT_CONTEXT=NAME make demo    on the cluster of that kubectl context instead of a local one
#
# The system stays up afterwards; make demo-down removes it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ -n "$context" ] || use_cluster_alone "$0" "$@"

fault=${FAULT:-}
case $fault in '' | lose | swap | rollback) ;; *) die "FAULT is lose, swap or rollback" ;; esac
write_seconds=60
drain_seconds=180
patience=300s # a busy machine is slow, not broken
kafka=kafka.$services_namespace:9092
postgres=postgres.$services_namespace:5432

social() { kubectl --namespace "$application_namespace" "$@"; }
# demo_program ARGUMENT...: runs the demo's program beside the fast receiver.
demo_program() {
  local command=$1
  shift
  social exec deployment/fast --container receiver -- /fanout-demo "$command" --database-url-file /etc/social/database/url --bootstrap-servers "$kafka" "$@"
}
# sql PSQL-ARGUMENT...: runs the SQL on standard input as the database's owner; secrets come in the SQL, never as arguments.
sql() { kubectl --namespace "$services_namespace" exec -i deployment/postgres -- psql -X -q -v ON_ERROR_STOP=1 -U postgres "$@" >/dev/null; }
secret() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }

build() {
  progress "building the programs"
  # The same folder, packages and targets as for the tests: another selection has other features and is built anew.
  export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
  (cd "$root" && cargo build --quiet --workspace --all-targets)
  target=$CARGO_TARGET_DIR/debug
}

start_cluster() {
  if [ -n "$context" ]; then
    kubectl get nodes >/dev/null || die "the cluster of context $context does not answer"
  else
    "$root/tests/cluster/up.sh" >/dev/null
  fi
  progress "the cluster runs"
}

load_images() {
  local name work packing=()
  declare -gA image
  work=$(mktemp -d)
  for name in product demo kafka postgres; do
    local arguments=()
    case $name in product | demo) arguments=("$target") ;; esac
    "$root/tests/images/pack.sh" "$name" "${arguments[@]}" >"$work/$name" &
    packing+=($!)
  done
  for name in "${packing[@]}"; do wait "$name" || die "an image could not be packed"; done
  for name in product demo kafka postgres; do
    local archive
    read -r "image[$name]" archive <"$work/$name"
    load_image "${image[$name]}" "$archive"
  done
  rm -rf "$work"
  progress "the images are on the cluster"
}

# An earlier demo's objects and events would mix with this one's.
clear_earlier() {
  local namespace
  for namespace in "$application_namespace" "$services_namespace"; do
    ! kubectl get namespace "$namespace" >/dev/null 2>&1 || is_ours "$namespace" ||
      die "the cluster has a namespace $namespace that the demo did not make"
  done
  if kubectl get namespace "$application_namespace" >/dev/null 2>&1; then
    progress "removing the events of an earlier demo"
    ! kubectl get crd subscriptions.fanout.dev >/dev/null 2>&1 ||
      social delete subscriptions.fanout.dev,fanouttopics.fanout.dev --all --timeout="$patience" >/dev/null
  fi
  for namespace in "$application_namespace" "$services_namespace"; do
    # Pods first and fast: nobody needs what they could still do, and a namespace with pods ends only after their grace period.
    kubectl --namespace "$namespace" delete deployments --all --timeout="$patience" >/dev/null
    kubectl --namespace "$namespace" delete pods --all --grace-period=1 --timeout="$patience" >/dev/null 2>&1
  done
  kubectl delete namespace "$application_namespace" "$services_namespace" --ignore-not-found --timeout="$patience" >/dev/null
}

# ready NAMESPACE DEPLOYMENT...
ready() {
  local namespace=$1
  shift
  kubectl --namespace "$namespace" rollout status "$@" --timeout="$patience" >/dev/null || {
    kubectl --namespace "$namespace" get pods
    die "not everything in the namespace $namespace became ready"
  }
}

start_services() {
  make_namespace "$services_namespace"
  local file
  for file in "$root"/tests/cluster/manifests/{kafka,postgres}.yaml; do
    sed -e "s|kafka:IMAGE|${image[kafka]}|; s|postgres:IMAGE|${image[postgres]}|" "$file" | kubectl --namespace "$services_namespace" apply -f - >/dev/null
  done
  ready "$services_namespace" deployment/kafka deployment/postgres
  progress "Kafka and PostgreSQL run"
}

install_operator() {
  helm_cli upgrade --install "$release" "$root/charts/fanout-operator" --namespace "$operator_namespace" --create-namespace \
    --set image.registry= --set "image.repository=${image[product]%:*}" --set "image.tag=${image[product]##*:}" \
    --set "egress.allowedCIDRs={$(cluster_ranges)}" --wait --timeout "$patience" >/dev/null ||
    { kubectl --namespace "$operator_namespace" get pods; die "the operator does not run"; }
  progress "the operator is installed"
}

# What a DBA and an application team do: schema, roles, Secrets.
prepare_database() {
  local app relay
  app=$(secret 16) relay=$(secret 16)
  sql <<SQL
create role fanout_app login password '$app';
create role fanout_relay login password '$relay';
create database social;
SQL
  sql -d social <"$root/manifests/sql/00-fanout.sql"
  sql -d social -v app_role=fanout_app <"$root/manifests/sql/10-outbox.sql"
  sql -d social <"$demo/social.sql"
  make_namespace "$application_namespace"
  # Through standard input: arguments can be read by everybody on the machine.
  social apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Secret
metadata: {name: social-app}
stringData: {url: "postgres://fanout_app:$app@$postgres/social"}
---
apiVersion: v1
kind: Secret
metadata: {name: social-db, labels: {fanout.dev/credentials: "true"}}
stringData: {url: "postgres://fanout_relay:$relay@$postgres/social"}
---
apiVersion: v1
kind: Secret
metadata: {name: search-signing, labels: {fanout.dev/credentials: "true"}}
stringData: {key: "whsec_$(head -c 32 /dev/urandom | base64 -w0)"}
YAML
  progress "the database and the Secrets are prepared"
}

start_application() {
  sed "s|fanout-demo:IMAGE|${image[demo]}|" "$demo/manifests/application.yaml" | kubectl apply -f - >/dev/null
  kubectl apply -f "$demo/manifests/fanout.yaml" >/dev/null
  ready "$application_namespace" deployment/fast deployment/flaky deployment/slow
  social wait --for=condition=Ready fanouttopics.fanout.dev,subscriptions.fanout.dev --all --timeout="$patience" >/dev/null || {
    social get fanouttopics.fanout.dev,subscriptions.fanout.dev -o wide
    die "not everything became Ready"
  }
  progress "the application, the FanoutTopic and the Subscriptions are ready"
}

depths() { social get subscriptions.fanout.dev -o 'jsonpath={range .items[*]}{.metadata.name}={.status.depth} {end}'; }

# True when the slow receiver's Subscription is far behind and every other is not.
apart() {
  local pair name depth
  for pair in $(depths); do
    name=${pair%=*} depth=${pair#*=}
    [ -n "$depth" ] || return 1
    if [ "$name" = analytics ]; then [ "$depth" -gt 500 ] || return 1; else [ "$depth" -lt 100 ] || return 1; fi
  done
}

# True when every Subscription says that nothing waits.
drained() { ! depths | xargs -n1 | grep -v '=0$' >/dev/null; }

# kill_worker DEPLOYMENT: SIGKILL for one of its containers, from outside.
kill_worker() {
  local pod container node before
  restarts() { social get pod "$pod" -o 'jsonpath={.status.containerStatuses[0].restartCount}'; }
  restarted() { [ "$(restarts)" -gt "$before" ]; }
  pod=$(social get pods -l "fanout.dev/worker=$1" -o 'jsonpath={.items[0].metadata.name}')
  container=$(social get pod "$pod" -o 'jsonpath={.status.containerStatuses[0].containerID}')
  node=$(social get pod "$pod" -o 'jsonpath={.spec.nodeName}')
  container=${container#*://}
  before=$(restarts)
  case $context in
  '') node_ctr tasks kill --signal SIGKILL "$container" ;;
  kind-*) docker exec "$node" ctr --namespace k8s.io tasks kill --signal SIGKILL "$container" ;;
  *)
    progress "no way to a process on the nodes of $context: the pod $pod is deleted without grace instead, so no restart is counted"
    social delete pod "$pod" --grace-period=0 --force >/dev/null 2>&1
    return
    ;;
  esac
  progress "SIGKILL to the container of $pod"
  eventually 120 "the restart of $pod" restarted || die "$pod was not restarted"
}

write_and_disturb() {
  social scale deployment/writer --replicas=1 >/dev/null
  ready "$application_namespace" deployment/writer
  progress "the writers write, for $write_seconds s and until the slow receiver is far behind"
  local stop=$((SECONDS + write_seconds)) late=$((SECONDS + 3 * write_seconds)) fault_at=$((SECONDS + 10)) shown='' killed=''
  while [ "$SECONDS" -lt "$stop" ] || { [ -z "$killed" ] && [ "$SECONDS" -lt "$late" ]; }; do
    if [ -n "$fault" ] && [ "$SECONDS" -ge "$fault_at" ]; then
      demo_program fault "$fault" --receiver http://localhost:8080
      progress "the fault $fault is planted"
      fault_at=$((late + 1))
    fi
    if [ -z "$shown" ] && apart; then
      shown=yes
      progress "the slow receiver holds up nobody but itself:"
      social get subscriptions.fanout.dev
    fi
    # The killed consumer's Subscriptions stand still for some seconds, so the picture above comes first.
    if [ -z "$killed" ] && { [ -n "$shown" ] || [ "$SECONDS" -ge $((late - write_seconds)) ]; } && [ "$SECONDS" -ge $((stop - write_seconds / 2)) ]; then
      kill_worker posts-relay
      kill_worker posts-pool-0
      killed=yes
    fi
    sleep 1
  done
  [ -n "$shown" ] || progress "the slow receiver's DEPTH never was above 500 while the others' were below 100: $(depths)"
  progress "the writers stop: $(social logs deployment/writer --tail=1)"
  social scale deployment/writer --replicas=0 >/dev/null
  social wait pod -l app=writer --for=delete --timeout="$patience" >/dev/null
}

judge() {
  local status=0
  demo_program report --wait-seconds "$drain_seconds" || status=$?
  # The columns follow a change within seconds.
  eventually 30 "the columns" drained || true
  social get fanouttopics.fanout.dev,subscriptions.fanout.dev
  printf '\n'
  social get pods
  return "$status"
}

look_around() {
  printf '\n%s\n' "The system stays up. To look around:"
  if [ -z "$context" ]; then
    printf '  export KUBECONFIG=%s\n' "$kubeconfig"
    type -P kubectl >/dev/null || printf '  export PATH=%s:%s\n' "$bin" '$PATH'
  fi
  local option=
  [ -z "$context" ] || option=" --context $context"
  printf '  kubectl%s --namespace %s get fanouttopics,subscriptions.fanout.dev,pods\n' "$option" "$application_namespace"
  printf '  kubectl%s --namespace %s scale deployment/writer --replicas=1    # write again\n' "$option" "$application_namespace"
  printf '  %smake demo-down    # remove everything\n' "${context:+FANOUT_CONTEXT=$context }"
}

build
start_cluster
clear_earlier &
clearing=$!
load_images
wait "$clearing" || exit 1
start_services
install_operator
prepare_database
start_application
write_and_disturb
status=0
judge || status=$?
look_around
exit "$status"
