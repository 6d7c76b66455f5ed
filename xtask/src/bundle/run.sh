#!/bin/sh
# Runs the tests, the example and the benchmarks of this bundle on the GPUs of this machine.
#
#     ./run.sh [OUTPUT_DIR] [OPTION...]
#     ./run.sh --unpack                    only unpacks the programs in bin
#
# Writes report.json and the logs to OUTPUT_DIR (default: report); bin/report --help lists the
# options. CUDA_VISIBLE_DEVICES chooses the GPUs. Needs a driver, and neither Rust nor a toolkit.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
# The programs come packed, so that the bundle is easy to carry.
for packed in "$here"/bin/*.gz; do
    if [ -e "$packed" ]; then
        gzip -d -f "$packed"
    fi
done
if [ "${1:-}" = --unpack ]; then
    exit 0
fi

output=report
case ${1:-} in
    '' | -*) ;;
    *)
        output=$1
        shift
        ;;
esac

# A test that would skip for want of a GPU fails instead.
export CUDA_MEM_TEST_BACKEND=gpu CUDA_MEM_TEST_REQUIRE_GPU=1
exec "$here/bin/report" --bin-dir "$here/bin" --data-dir "$here/data" \
    --out "$output/report.json" "$@"
