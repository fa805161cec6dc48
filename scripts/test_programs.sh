#!/usr/bin/env bash
# Gets the programs of Debian that tests need and that are missing: a headless Chromium is installed, promtool, redis-server
# and libfaketime are put into DIR, libnghttp2's header into the folder include beside DIR. If one cannot be had, says so and
# exits with 0: its tests are then skipped.
#
# Use: scripts/test_programs.sh DIR
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

is_here() { command -v "$1" >/dev/null; }

add_chromium() {
    local package=chromium-headless-shell name
    for name in chromium-headless-shell chromium chromium-browser google-chrome; do
        if is_here "$name"; then
            return
        fi
    done
    if is_here apt-get && can_be_root; then
        apt_install "$package" || true # if it is still missing, the next line says so
    fi
    is_here "$package" || say "Chromium is missing: the dashboard's tests are skipped; install $package to run them"
}

# Prometheus itself is not installed: its package would start it.
add_promtool() {
    local dir=$1
    if is_here promtool || [ -x "$dir/promtool" ]; then
        return
    fi
    if is_here apt-get && apt_extract prometheus usr/bin/promtool "$dir"; then
        return
    fi
    say "promtool is missing: tests of the alerts are skipped; install the package prometheus to run them"
}

# Headers of the library that kvatlas loads at run time and declares by itself.
add_nghttp2_header() {
    local dir=$1
    if [ -e /usr/include/nghttp2/nghttp2.h ] || [ -e "$dir/nghttp2/nghttp2.h" ]; then
        return
    fi
    if is_here apt-get && apt_extract libnghttp2-dev usr/include/nghttp2 "$dir"; then
        return
    fi
    say "nghttp2.h is missing: it is not compared with kvatlas's declarations; install libnghttp2-dev to do so"
}

# Shifts the clock of one process, for tests of clocks that jump.
add_faketime() {
    local dir=$1 multiarch
    if [ -e "$dir/libfaketimeMT.so.1" ]; then
        return
    fi
    multiarch=$(gcc -print-multiarch)
    if is_here apt-get && apt_extract libfaketime "usr/lib/$multiarch/faketime/libfaketimeMT.so.1" "$dir"; then
        return
    fi
    say "libfaketime is missing: tests of clocks that jump are skipped; they need the package libfaketime"
}

# Not installed either: its package would start it. The program that checks files is the server by another name.
add_redis() {
    local dir=$1 multiarch
    if is_here valkey-server || is_here redis-server || [ -x "$dir/redis-server" ]; then
        return
    fi
    multiarch=$(gcc -print-multiarch)
    if is_here apt-get && apt_extract liblzf1 "usr/lib/$multiarch/liblzf.so.1.5" "$dir" &&
        mv "$dir/liblzf.so.1.5" "$dir/liblzf.so.1" && apt_extract libjemalloc2 "usr/lib/$multiarch/libjemalloc.so.2" "$dir" &&
        apt_extract redis-tools usr/bin/redis-check-rdb "$dir" &&
        mv "$dir/redis-check-rdb" "$dir/redis-server"; then
        return
    fi
    say "redis-server is missing: tests of replicas on a server are skipped; install redis-server or valkey-server to run them"
}

main() {
    add_chromium
    add_promtool "$1"
    add_redis "$1"
    add_nghttp2_header "$(dirname "$1")/include"
    add_faketime "$1"
}

main "$@"
