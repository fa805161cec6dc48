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

# Copies the file PATH of PACKAGE into DIR. Nothing is installed, so none of the package's services starts.
apt_extract() {
    local package=$1 path=$2 dir=$3 temporary status=0
    say "fetching $path of the package $package with apt-get"
    temporary=$(mktemp -d)
    apt_download "$package" "$temporary" &&
        dpkg-deb --fsys-tarfile "$temporary"/*.deb | tar -xf - -C "$temporary" "./$path" &&
        mv "$temporary/$path" "$dir" || status=1
    rm -rf "$temporary"
    return "$status"
}

# A fresh machine has no lists of packages, or old ones.
apt_download() { apt_fetch "$@" 2>/dev/null || { can_be_root && as_root apt-get update -qq >&2 && apt_fetch "$@"; }; }
apt_fetch() { (cd "$2" && apt-get download -qq -o APT::Sandbox::User=root "$1") >&2; }
