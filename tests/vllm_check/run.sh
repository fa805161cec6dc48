#!/usr/bin/env bash
# Checks kvatlas against two real vLLM servers and writes docs/vllm-check.md; some 25 minutes, and 5 GB of memory.
#
# Use: run.sh DIR [arguments of check.py]      DIR keeps vLLM, logs and recorded events. Environment: see install.sh.
set -euo pipefail

[ $# -ge 1 ] || { echo "use: $0 DIR [ARGS]" >&2; exit 2; }
readonly ROOT=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
readonly DIR=$(cd "$1" && pwd)
shift

"$ROOT/tests/vllm_check/install.sh" "$DIR"
cd "$ROOT"
PYTHONPATH=tests exec "$ROOT/.venv/bin/python" -m vllm_check.check "$DIR" "$@"
