#!/usr/bin/env bash
# Makes the virtual environment DIR: picks Python 3.11 or newer, and installs the parts of it that Debian and
# Ubuntu package separately (venv, headers) and libnghttp2, as root or through sudo.
#
# Use: scripts/venv.sh DIR      Environment: PYTHON, the interpreter to use (default: the first that is new enough)
set -euo pipefail

readonly CANDIDATES="python3.11 python3.12 python3"

. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

die() { say "$@"; exit 1; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

pick_python() {
    local candidate
    for candidate in ${PYTHON:-$CANDIDATES}; do
        if is_new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "need Python 3.11 or newer, and none of these is: ${PYTHON:-$CANDIDATES}." \
        "Install python3.11, or name an interpreter: make PYTHON=/path/to/python3.11"
}

# Debian and Ubuntu split their own interpreter; one built from source has all parts or none that apt could add.
is_distribution_python() { "$1" -c 'import sys; sys.exit(sys.base_prefix != "/usr")' && command -v apt-get >/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }
has_headers() {
    "$1" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

has_nghttp2() { [ -n "$(ldconfig -p 2>/dev/null | grep -F 'libnghttp2.so.14')" ]; }

# ext-proc runs on it; nothing of it is needed to build.
add_nghttp2() {
    if ! has_nghttp2 && command -v apt-get >/dev/null && can_be_root; then
        apt_install libnghttp2-14 || true
    fi
    has_nghttp2 || say "libnghttp2.so.14 is missing: ext-proc runs on grpc.aio, at several times the cost; install libnghttp2-14"
}

add_missing_parts() {
    local python=$1 name missing=()
    name=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    has_venv "$python" || missing+=("$name-venv")
    has_headers "$python" || missing+=("$name-dev")
    if [ ${#missing[@]} -gt 0 ] && is_distribution_python "$python" && can_be_root; then
        apt_install "${missing[@]}" || true # what is missing all the same is named below
    fi
    has_venv "$python" || die "$python cannot make virtual environments; install the package $name-venv and run make again"
    has_headers "$python" || say "$python has no Python.h: C++ extensions are skipped; install $name-dev to have them"
}

main() {
    local dir=$1 python
    add_nghttp2
    if is_new_enough "$dir/bin/python" && "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(pick_python)
    add_missing_parts "$python"
    say "making $dir with $("$python" --version)"
    "$python" -m venv --clear "$dir"
}

main "$@"
