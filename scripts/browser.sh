#!/usr/bin/env bash
# Installs a headless Chromium for the dashboard's tests, where there is none and Debian's can be installed. Where it cannot,
# says so and ends well: those tests are then skipped.
#
# Use: scripts/browser.sh
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

readonly PACKAGE=chromium-headless-shell

main() {
    local name
    for name in chromium-headless-shell chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then
            return
        fi
    done
    if command -v apt-get >/dev/null && can_be_root; then
        apt_install "$PACKAGE" || true # what is missing all the same is named below
    fi
    command -v "$PACKAGE" >/dev/null || say "no Chromium is here: tests of the dashboard are skipped; install $PACKAGE to have them"
}

main "$@"
