#!/usr/bin/env bash
# Packs the images of the project and of its demo without a container engine, and prints "REFERENCE ARCHIVE" of the one asked for.
#
#   pack.sh product FOLDER   fanout-operator, fanout-relay and fanout-consumers from a cargo target folder (target/release)
#   pack.sh demo FOLDER      the demo's programs from a cargo target folder
#   pack.sh kafka            Apache Kafka with a Java runtime cut to what it needs
#   pack.sh postgres         PostgreSQL
#   pack.sh pause, coredns   parts of the local cluster
set -euo pipefail
. "$(dirname "$0")/../cluster/lib.sh"

archives=$cache/images
pack() { python3 "$here/../images/pack.py" --folder "$archives" "$@"; }

program() { [ -x "$1" ] || die "$1 is not built"; printf '%s' "$1"; }

pack_product() {
  local folder=$1 arguments=() name
  for name in fanout-operator fanout-relay fanout-consumers; do arguments+=(--binary "$(program "$folder/$name"):/$name"); done
  pack --name localhost/fanout-operator --ca-certificates "${arguments[@]}" --entrypoint '["/fanout-operator"]'
}

pack_pause() { pack --name localhost/pause --tag local --binary "$(program "$bin/pause"):/pause" --entrypoint '["/pause"]'; }
pack_coredns() { pack --name localhost/coredns --tag local --binary "$(program "$bin/coredns"):/coredns" --entrypoint '["/coredns"]'; }

usage="usage: pack.sh product FOLDER | demo FOLDER | kafka | postgres | pause | coredns"
case ${1:-} in
product) pack_product "${2:?$usage}" ;;
pause | coredns) "pack_$1" ;;
*) die "$usage" ;;
esac
