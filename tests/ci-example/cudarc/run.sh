#!/bin/sh
# Tests with the simulator in the place of the driver: cudarc opens the first libcuda.so that the loader finds.
set -eu
cd "$(dirname "$0")"
cargo test --no-run
target=${CARGO_TARGET_DIR:-$PWD/target}
mkdir -p "$target/driver"
for name in libcuda.so libcuda.so.1; do
    ln -sf "$(ls -t "$target"/debug/deps/libcuda_sim*.so | head -n 1)" "$target/driver/$name"
done
LD_LIBRARY_PATH=$target/driver cargo test
