#!/bin/sh
# Makes .venv-peers, the environment with NEST and Brian2 that `neuraxis bench brain` compares itself with.
#
#   benchmarks/peers.sh            the interpreter is python3
#   PYTHON=python3.12 benchmarks/peers.sh
#
# Run again, it does nothing unless the pins have changed. Brian2 also needs g++ and make when it runs.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
environment=$root/.venv-peers
pins=$root/benchmarks/peers-constraints.txt
installed=$environment/installed-pins.txt

if [ -f "$installed" ] && cmp -s "$pins" "$installed"; then
    echo "$environment is ready"
    exit 0
fi
# An incomplete environment, or one of a removed interpreter, is created again.
"$environment/bin/python" -c '' 2>/dev/null || "${PYTHON:-python3}" -m venv --clear "$environment"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check -c "$pins" nest-simulator brian2 setuptools
"$environment/bin/python" -c 'import brian2, nest' >/dev/null
cp "$pins" "$installed"
for tool in g++ make; do
    command -v "$tool" >/dev/null || echo "Brian2 will not run here: $tool is missing"
done
echo "$environment is ready"
