#!/bin/sh
# Tests with the simulator in the place of the driver: cudarc opens the first libcuda.so that the loader finds.
set -eu
cd "$(dirname "$0")"
cargo test --no-run
mkdir -p target/driver
ln -sf "$(ls -t "$PWD"/target/debug/deps/libcuda_sim*.so | head -n 1)" target/driver/libcuda.so
LD_LIBRARY_PATH=$PWD/target/driver cargo test
