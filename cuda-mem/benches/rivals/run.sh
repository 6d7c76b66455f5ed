#!/usr/bin/env bash
# Runs the allocators of rivals/README.md in turn on the first GPU of this machine.
#
#     ./run-rivals.sh [--quick] [--rounds N] [--only SUBJECT]... OUTPUT_DIR
#
# Writes rivals.json, and what every program printed, to OUTPUT_DIR, and prints a table. What cannot be built
# or run has a row that says so. Ends within six minutes. For the bundle that `cargo xtask bundle --rivals` makes.
set -eu

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
rounds=2
longest_run=60
longest=330

effort=()
only=' '
while [[ ${1:-} == --* ]]; do
    case $1 in
        --quick) effort=(--quick) ;;
        --rounds)
            rounds=$2
            shift
            ;;
        --only)
            only+="$2 "
            shift
            ;;
        *)
            echo "there is no option $1" >&2
            exit 2
            ;;
    esac
    shift
done
out=${1:?the folder to write to is missing}
rows=$out/rows
# Outside of what is carried back.
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
mkdir -p "$rows"

# The programs

for program in rivals-cuda-mem rivals-cudarc; do
    if [[ -e $here/bin/$program.gz ]]; then
        gzip -d -f "$here/bin/$program.gz"
    fi
done
for wheel in "$here"/rivals/wheels/*.whl; do
    if [[ -e $wheel ]]; then
        python3 -m zipfile -e "$wheel" "$build/wheels"
    fi
done

# Where a package of this machine's python3 lies, without importing it.
package() {
    python3 -c 'import importlib.util, sys
found = importlib.util.find_spec(sys.argv[1])
print(found.submodule_search_locations[0] if found else "/nowhere")' "$1"
}
torch=$(package torch)
nvcc=$(command -v nvcc || echo /nowhere/bin/nvcc)
nvcc=$(readlink -f "$nvcc" || echo "$nvcc")

# Compiles a program with the first CUDA runtime that it compiles with.
compile() { # NAME ARGUMENT...
    local name=$1 cuda include library
    shift
    for cuda in "$build/wheels/nvidia/cu13" "${CUDA_HOME:-/nowhere}" "${nvcc%/bin/nvcc}" /usr/local/cuda \
        "${torch%/torch}/nvidia/cu13"; do
        for library in "$cuda"/lib64/libcudart.so "$cuda"/lib/libcudart.so.13 \
            "$cuda"/targets/x86_64-linux/lib/libcudart.so; do
            include=$cuda/include
            if [[ ! -e $library || ! -e $include/cuda_runtime_api.h ]]; then
                continue
            fi
            echo "$name, with $library" >>"$rows/$name.build"
            if g++ -std=c++20 -O2 -DNDEBUG -pthread "$here/rivals/$name.cpp" -o "$build/$name" "$@" \
                -isystem "$include" "$library" "-Wl,-rpath,${library%/*}" >>"$rows/$name.build" 2>&1; then
                return 0
            fi
        done
    done
    echo "could not build $name; see $rows/$name.build" >&2
}
librmm=$build/wheels/librmm
logger=$build/wheels/rapids_logger
# The linker must keep the logger, which librmm.so does not find by itself.
compile rmm -Wl,--no-as-needed -I "$librmm/include" -I "$librmm/include/rapids" -I "$logger/include" \
    "$librmm/lib64/librmm.so" "$logger/lib64/librapids_logger.so" \
    "-Wl,-rpath,$librmm/lib64" "-Wl,-rpath,$logger/lib64" &
compile torch -I "$torch/include" "$torch/lib/libc10.so" "$torch/lib/libc10_cuda.so" \
    "-Wl,-rpath,$torch/lib" &
wait
log=$build/gpt2.ops
"$here/bin/rivals-cuda-mem" --write-log "$log"

# The runs: one process at a time, every subject once a round

run() { # ROUND SUBJECT PROGRAM ARGUMENT...
    local base=$rows/$1-$2 subject=$2 program=$3 left=$((longest - SECONDS)) status=0
    if [[ $only != ' ' && $only != *" $subject "* ]]; then
        return 0
    fi
    shift 3
    if [[ ! -x $program ]]; then
        echo "was not built; see the .build file" >"$base.log"
        status=127
    elif ((left < 5)); then
        echo 'no time was left' >"$base.log"
        status=124
    else
        timeout -k 5 $((left < longest_run ? left : longest_run)) "$program" "$@" --subject "$subject" \
            "${effort[@]}" >"$base.jsonl" 2>"$base.log" || status=$?
    fi
    echo "$status" >"$base.status"
    echo "round $round, $subject: status $status, $SECONDS s" >&2
}

unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
for ((round = 1; round <= rounds; round++)); do
    run "$round" pool "$here/bin/rivals-cuda-mem"
    run "$round" rmm-pool "$build/rmm" --log "$log"
    run "$round" arena "$here/bin/rivals-cuda-mem"
    run "$round" torch "$build/torch" --log "$log"
    run "$round" cudarc "$here/bin/rivals-cudarc" --rivals
    run "$round" rmm-arena "$build/rmm" --log "$log"
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True run "$round" torch-expandable "$build/torch" --log "$log"
    run "$round" cudarc-untracked "$here/bin/rivals-cudarc" --rivals
    run "$round" rmm-async "$build/rmm" --log "$log"
done

commit=${RIVALS_COMMIT:-$(cat "$here/rivals/commit" 2>/dev/null || echo unknown)}
python3 "$here/rivals/merge.py" "$out" "$commit"
