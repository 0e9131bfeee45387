#!/usr/bin/env bash
# Runs the test suites in the order of their cost, prints the seconds of each, and stops at the first that fails.
# Without arguments all of them; with arguments those named.
set -uo pipefail
cd "$(dirname "$0")/.."
: "${FANOUT_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/fanout-operator}"
export FANOUT_CACHE CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$FANOUT_CACHE/target}"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}" RUST_BACKTRACE=1
mkdir -p "$FANOUT_CACHE"

# Always the whole workspace: another selection of packages has other features and is built anew.
cargo_test() { cargo test --quiet --workspace "$@"; }

suite_packages() { bash tests/packages.sh; }
suite_format() { cargo fmt --all --check; }
suite_lint() {
    cargo clippy --quiet --workspace --all-targets -- -D warnings &&
        RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --quiet --workspace --no-deps --document-private-items
}
suite_build() { cargo build --quiet --workspace --all-targets; }
suite_unit() { cargo_test --lib --bins && cargo_test --doc; }
# Most of them wait most of the time.
suite_integration() { cargo_test --test it -- --test-threads=6 --skip fault; }
# Faults starve what runs beside them: few at a time.
suite_faults() { cargo_test --test it -- --test-threads=3 fault; }
# The long forms; not a part of all.
suite_soak() { cargo_test --test it -- --test-threads=1 --ignored soak_; }
suite_cluster() { cargo_test --test cluster -- --test-threads=1; }
# Last: searches what all the others' processes produced, and compares the rights they used with those that are granted.
suite_secrets() {
    cp "$log" "$FANOUT_PRODUCED/suite.log"
    "$CARGO_TARGET_DIR/debug/fanout-produced"
}

all=(packages format lint build unit integration faults cluster secrets)
[ $# -gt 0 ] || set -- "${all[@]}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
case " $* " in
*" secrets "*)
    FANOUT_PRODUCED=$(mktemp -d /var/tmp/fanout-produced.XXXXXXXX)
    export FANOUT_PRODUCED
    ;;
esac
report=()
status=0
for suite in "$@"; do
    printf '== %s\n' "$suite"
    start=$SECONDS
    "suite_$suite" 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    report+=("$(printf '%-12s %5d s  %s' "$suite" $((SECONDS - start)) "$([ "$status" = 0 ] && echo ok || echo FAILED)")")
    [ "$status" = 0 ] || break
done

if [ -n "${FANOUT_PRODUCED:-}" ] && [ "$status" = 0 ]; then rm -rf "$FANOUT_PRODUCED"; fi

printf '\n'
printf '%s\n' "${report[@]}"
awk '/^test result: /{passed += $4; failed += $6} END {printf "\n%d passed, %d failed\n", passed, failed}' "$log"
exit "$status"
