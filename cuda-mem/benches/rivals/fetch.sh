#!/bin/sh
# Downloads what the comparison needs beside this repository into a folder, with pip: RMM, and the headers
# and library of the CUDA runtime that rmm.cpp and torch.cpp are compiled with.
#
#     ./fetch.sh DIR
#
# Wheels for 64-bit x86 Linux. None of it is part of this project, and none of it is ever committed.
set -eu

into=$1
mkdir -p "$into"
platforms=
for tag in manylinux_2_28 manylinux_2_24 manylinux_2_27 manylinux_2_17 manylinux2014; do
    platforms="$platforms --platform ${tag}_x86_64"
done
# One version of each: figures of different visits can be compared. 13.0 is what PyTorch 2.11 is built with.
# shellcheck disable=SC2086 # one word for each argument
exec python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.12 --implementation cp $platforms --dest "$into" \
    librmm-cu13==26.10.0 rapids-logger==0.3.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
