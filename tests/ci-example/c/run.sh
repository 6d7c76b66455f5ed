#!/bin/sh
# run.sh LIBRARY INCLUDE: builds the test with gcc alone, linked with the simulated driver LIBRARY, and runs it.
set -eu
library=$(realpath "$1") include=$(realpath "$2")
cd "$(dirname "$0")"
${CC:-gcc} -std=c11 -Wall -Wextra -Werror -I "$include" memory.c "$library" -o memory-test
LD_LIBRARY_PATH=$(dirname "$library") ./memory-test
