# Packages of Debian and Ubuntu for the scripts beside this file, which source it.

say() { printf 'kvatlas: %s\n' "$*" >&2; }

# sudo may ask for a password only where there is a terminal to ask on.
can_be_root() {
    [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; }
}
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }

apt_install() {
    say "installing $* with apt-get"
    as_root apt-get update -qq >&2
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >&2
}
