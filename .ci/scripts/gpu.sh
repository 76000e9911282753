#!/bin/sh
# Builds the wheel with the Python of this machine, runs the tests marked gpu on it, measures copies and restores, and
# prints one table last. Needs nothing outside the tree but that Python with torch, nanobind, scikit-build-core, cmake,
# ninja, pytest, numpy and msgpack, and no network. About two and a half minutes.
#   PYTHON   the interpreter [python3]
#   OUT      where the JSON files go [a temporary folder, removed]
# Exit code: 0, or the first of: 2 no wheel, 3 a test failed, 4 a benchmark failed or a byte was wrong.
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
out=${OUT:-$work/out}
mkdir -p "$out" "$work/run" "$work/wheel" || exit 2
out=$(cd "$out" && pwd)
python=$(command -v "$python") && python=$(cd "$(dirname "$python")" && pwd)/${python##*/} || exit 2
code=0
began=$(date +%s)

say() { echo "== $(($(date +%s) - began)) s: $*"; }
failed() { say "FAILED: $2"; [ $code -ne 0 ] || code=$1; }

say "wheel"
cd "$root" || exit 2
CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} "$python" -m pip wheel --quiet --no-build-isolation \
  --no-deps --no-index --config-settings=build-dir="$work/build" --wheel-dir "$work/wheel" . || exit 2
"$python" -m pip install --quiet --no-deps --no-index --no-compile --target "$work/site" "$work"/wheel/*.whl || exit 2

# From outside the tree, so that the wheel is what is imported. The pytest script of the same interpreter, where it has
# one; a configuration of its own, because the machine need not have the plugins that the tree's names.
cat > "$work/pytest.ini" <<INI
[pytest]
pythonpath = $root/tests
markers =
    gpu: needs a device
    soak: counts grow
INI
export PYTHONPATH="$work/site" XDG_CACHE_HOME="$work/cache" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
cd "$work/run" || exit 2
imported=$("$python" -c 'import sglang_umbp; print(sglang_umbp.__path__[0])')
[ "$imported" = "$work/site/sglang_umbp" ] || { say "FAILED: not the wheel is imported, but $imported"; exit 2; }
pytest=$(dirname "$(command -v "$python")")/pytest
[ -x "$pytest" ] || pytest=pytest
say "tests"
timeout 80 "$pytest" -c "$work/pytest.ini" --rootdir "$root/tests" -p no:benchmark -p no:cacheprovider -q -m gpu \
  --durations 3 "$root"/tests/test_gpu_*.py || failed 3 "tests"

bench() { timeout "$1" "$python" -m sglang_umbp bench "$2" --json "$out/$3.json" $4 || failed 4 "bench $2"; }
beside=$("$python" -c 'import torch; print("--beside-matmul" if torch.cuda.is_available() else "")' 2>/dev/null)
say "copies"
bench 150 device device "--device auto $beside"
say "restores"
bench 40 restore restore "--device auto --offload-ranks 4 --requests 60"
say "restores, every byte checked"
bench 40 restore restore-verified "--device auto --offload-ranks 2 --requests 6 --memory-mib 3072 --verify"
say "done"
"$python" "$root/.ci/scripts/gpu_table.py" "$out"
exit $code
