#!/bin/sh
# First process of the PostgreSQL image: makes a database cluster in /data if there is none, then runs the server on it.
# Local connections are trusted (kubectl exec … psql); those over the network need a role with a password.
set -eu

export PGDATA=/data/main
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  # The data lives as long as the pod, so it need not reach the disk before the server starts.
  initdb --username=postgres --encoding=UTF8 --locale=C.UTF-8 --auth-local=trust --auth-host=scram-sha-256 --no-sync >/dev/null
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories="$PGHOST" -c shared_buffers=64MB "$@"
