#!/usr/bin/env bash
# Finds out which Debian packages are missing for a part of the project, and as root installs them.
#
#   tests/packages.sh build      what `cargo build` needs
#   tests/packages.sh services   what the integration tests start: PostgreSQL, PgBouncer, Kafka
#   tests/packages.sh cluster    what the local Kubernetes node needs
#   tests/packages.sh            all of them
#
# With --list as the first argument it only prints the missing ones.
#
# A user who is not root gets the list and the command instead, and exit status 1. No system service is started.
set -euo pipefail

# part, a command or a file pattern that shows it is there, package
table() {
    cat <<'TABLE'
build     gcc                                  gcc
build     g++                                  g++
build     make                                 make
build     pkg-config                           pkg-config
build     /usr/include/openssl/ssl.h           libssl-dev
services  /usr/lib/postgresql/*/bin/postgres   postgresql
services  /usr/sbin/pgbouncer                  pgbouncer
services  java                                 default-jre-headless
services  mvn                                  maven
services  setpriv                              util-linux
services  ip                                   iproute2
services  openssl                              openssl
services  python3                              python3
services  pip3                                 python3-pip
services  node                                 nodejs
services  npm                                  npm
cluster   containerd                           containerd
cluster   runc                                 runc
cluster   /usr/lib/cni/bridge                  containernetworking-plugins
cluster   nft                                  nftables
cluster   ip                                   iproute2
cluster   nsenter                              util-linux
cluster   openssl                              openssl
cluster   python3                              python3
cluster   strip                                binutils
cluster   unzip                                unzip
cluster   pip3                                 python3-pip
TABLE
}

list=
if [[ ${1:-} == --list ]]; then
    list=yes
    shift
fi
part=${1:-all}
case $part in
all | build | services | cluster) ;;
*)
    echo "usage: tests/packages.sh [--list] [build|services|cluster]" >&2
    exit 2
    ;;
esac

present() {
    case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
    esac
}

missing=()
while read -r of probe package; do
    [[ $part == all || $part == "$of" ]] || continue
    present "$probe" || missing+=("$package")
done < <(table)

((${#missing[@]})) || exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if [[ $list ]]; then
    echo "${missing[*]}"
    exit 0
fi
install="apt-get install -y --no-install-recommends ${missing[*]}"

if ! command -v apt-get >/dev/null; then
    echo "packages: missing, by their Debian names: ${missing[*]}" >&2
    echo "packages: install what provides them on this system, then run again" >&2
    exit 1
fi
if ((EUID != 0)); then
    echo "packages: missing: ${missing[*]}" >&2
    echo "packages: run: sudo $install" >&2
    exit 1
fi

echo "packages: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    # Packages start their services on install unless this refuses.
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
    trap 'rm -f $policy' EXIT
fi
if [[ " ${missing[*]} " == *" postgresql "* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
    # The tests make clusters of their own; the package shall not leave one behind.
    mkdir -p /etc/postgresql-common
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
fi
log=$(mktemp)
if ! { apt-get update && $install; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "packages: failed: $install (log: $log)" >&2
    exit 1
fi
rm -f "$log"
