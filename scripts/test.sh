#!/usr/bin/env bash
# Environment, install, tests. Arguments go to pytest: scripts/test.sh -k stock
set -euo pipefail
cd "$(dirname "$0")/.."
EXTRAS='[dev]'
. scripts/environment.sh
exec python -m pytest "$@"
