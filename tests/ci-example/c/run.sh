#!/bin/sh
# run.sh LIBRARY INCLUDE: builds the test with gcc alone, linked with the simulated driver LIBRARY, and runs it.
set -eu
library=$(realpath "$1") include=$(realpath "$2")
cd "$(dirname "$0")"
folder=$(dirname "$library") name=$(basename "$library")
${CC:-gcc} -std=c11 -Wall -Wextra -Werror -I "$include" memory.c -L "$folder" "-l:$name" -o memory-test
LD_LIBRARY_PATH=$folder ./memory-test
