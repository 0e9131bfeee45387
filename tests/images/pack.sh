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

images=$here/../images
archives=$cache/images
pack() { python3 "$images/pack.py" --folder "$archives" "$@"; }

program() { [ -x "$1" ] || die "$1 is not built"; printf '%s' "$1"; }

pack_product() {
  local folder=$1 arguments=() name
  for name in fanout-operator fanout-relay fanout-consumers; do arguments+=(--binary "$(program "$folder/$name"):/$name"); done
  pack --name localhost/fanout-operator --ca-certificates "${arguments[@]}" --entrypoint '["/fanout-operator"]'
}

pack_demo() { pack --name localhost/fanout-demo --binary "$(program "$1/fanout-demo"):/fanout-demo" --entrypoint '["/fanout-demo"]'; }

# The jars, in the same place as the integration tests keep them.
kafka_jars() {
  local pom=$here/../kafka/pom.xml folder
  folder=$cache/kafka/$(sha256sum <"$pom" | cut -c1-12)
  mkdir -p "$cache/kafka"
  exec {jars_fd}>"$cache/kafka/lock"
  flock "$jars_fd"
  if [ ! -d "$folder/libs" ]; then
    say "downloading Kafka from Maven, once (55 MB, cached in $folder)"
    rm -rf "$folder.partial"
    (cd "$cache/kafka" && mvn -q -B -f "$pom" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
      -DoutputDirectory="$folder.partial/libs" -DincludeScope=runtime >&2) || die "Kafka could not be downloaded"
    mv "$folder.partial" "$folder"
  fi
  exec {jars_fd}>&-
  printf '%s' "$folder/libs"
}

pack_kafka() {
  local java jars
  command -v java >/dev/null || die "java is missing (Debian: apt-get install default-jre-headless)"
  java=$(java -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.home = //p')
  jars=$(kafka_jars)
  # What the tests' broker has, and a pod's addresses; clients are told the Service's name (manifests/kafka.yaml).
  local configuration
  configuration=$(mktemp)
  trap 'rm -f "$configuration"' RETURN
  cat "$here/../kafka/server.properties" - >"$configuration" <<'PROPERTIES'
listeners=PLAINTEXT://:9092,CONTROLLER://localhost:9093
controller.quorum.voters=1@localhost:9093
log.dirs=/data/kafka
PROPERTIES
  # A Java runtime without what needs a screen, sound or a compiler.
  pack --name localhost/fanout-demo-kafka --file "$java/bin/java:/java/bin/java" --tree "$java/lib:/java/lib" --tree "$java/conf:/java/conf" \
    --exclude 'libawt*' --exclude 'libatk*' --exclude 'libfont*' --exclude 'libfreetype*' --exclude 'libjavajpeg*' --exclude 'libjawt*' --exclude 'libjsound*' \
    --exclude 'liblcms*' --exclude 'libmlib*' --exclude 'libsplash*' --exclude 'libj2pcsc*' --exclude 'libsctp*' --exclude src.zip --exclude ct.sym --exclude '*.debuginfo' \
    --tree "$jars:/kafka/libs" --file "$configuration:/kafka/server.properties" --file "$here/../kafka/log4j2.properties:/kafka/log4j2.properties" \
    --entrypoint '["/java/bin/java"]'
}

pack_postgres() {
  local version
  version=$(find /usr/lib/postgresql -mindepth 3 -maxdepth 3 -path '*/bin/initdb' 2>/dev/null | cut -d/ -f5 | sort -V | tail -n1)
  [ "$version" ] || die "PostgreSQL is missing (Debian: apt-get install postgresql)"
  local programs=() name
  # Without it this glibc knows no UTF-8.
  [ ! -d /usr/lib/locale/C.utf8 ] || programs+=(--tree /usr/lib/locale/C.utf8:/usr/lib/locale/C.utf8)
  for name in postgres initdb pg_isready psql; do programs+=(--file "/usr/lib/postgresql/$version/bin/$name:/usr/lib/postgresql/$version/bin/$name"); done
  # The paths are compiled in. initdb calls a shell. Clients ask for the time zone UTC by its name.
  pack --name localhost/fanout-demo-postgres "${programs[@]}" --tree "/usr/lib/postgresql/$version/lib:/usr/lib/postgresql/$version/lib" \
    --tree "/usr/share/postgresql/$version:/usr/share/postgresql/$version" --exclude bitcode --exclude 'llvmjit*' --exclude man --exclude contrib --exclude pgxs \
    --file /bin/sh:/bin/sh --file /usr/share/zoneinfo/Etc/UTC:/usr/share/zoneinfo/UTC --file "$images/postgres.sh:/postgres.sh" \
    --env "PATH=/usr/lib/postgresql/$version/bin:/bin" --env PGHOST=/tmp --entrypoint '["/bin/sh", "/postgres.sh"]'
}

pack_pause() { pack --name localhost/pause --tag local --binary "$(program "$bin/pause"):/pause" --entrypoint '["/pause"]'; }
pack_coredns() { pack --name localhost/coredns --tag local --binary "$(program "$bin/coredns"):/coredns" --entrypoint '["/coredns"]'; }

usage="usage: pack.sh product FOLDER | demo FOLDER | kafka | postgres | pause | coredns"
case ${1:-} in
product | demo) "pack_$1" "${2:?$usage}" ;;
kafka | postgres | pause | coredns) "pack_$1" ;;
*) die "$usage" ;;
esac
