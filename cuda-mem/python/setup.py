"""Builds the wheel: the C library and three programs, made by cargo, beside the Python files.

With CUDA_MEM_TARGET, a target of Rust such as `x86_64-pc-windows-gnu`, they and the wheel are for that system. With
CUDA_MEM_BUILT they are taken from that folder of cargo's, such as `target/debug`, and not built.
"""

import json
import os
import pathlib
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = pathlib.Path(__file__).resolve().parent
WORKSPACE = HERE.parent.parent
TARGET = os.environ.get("CUDA_MEM_TARGET", "")
PROGRAMS = ("doctor", "replay", "report")

# The platform of the wheel, and the program that removes what is for debuggers. No tag of manylinux: which version of
# glibc the library needs depends on the machine that builds it.
TARGETS = {
    "aarch64-unknown-linux-gnu": ("linux_aarch64", "aarch64-linux-gnu-strip"),
    "x86_64-unknown-linux-gnu": ("linux_x86_64", "x86_64-linux-gnu-strip"),
    "x86_64-pc-windows-gnu": ("win_amd64", "x86_64-w64-mingw32-strip"),
    "x86_64-pc-windows-msvc": ("win_amd64", None),
}
if TARGET and TARGET not in TARGETS:
    raise SystemExit(f"CUDA_MEM_TARGET is {TARGET}; known are {', '.join(TARGETS)}")
# Of the machine itself by default; debuggers of Windows have files of their own.
PLATFORM, STRIP = TARGETS.get(TARGET, (None, None if os.name == "nt" else "strip"))
FOR_WINDOWS = "windows" in TARGET if TARGET else os.name == "nt"


def cargo(*arguments):
    """Builds something, and returns the files that it became."""
    if built := os.environ.get("CUDA_MEM_BUILT"):
        return [file for folder in ("", "deps", "examples") for file in (pathlib.Path(built) / folder).iterdir()]
    profile = os.environ.get("CUDA_MEM_PROFILE", "release")
    command = ["cargo", "build", "--profile", profile, "--message-format=json-render-diagnostics", *arguments]
    command += ["--target", TARGET] if TARGET else []
    output = subprocess.run(command, cwd=WORKSPACE, check=True, stdout=subprocess.PIPE).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    return [
        pathlib.Path(name)
        for message in messages
        if message["reason"] == "compiler-artifact"
        for name in message["filenames"] + [message["executable"] or ""]
        if name
    ]


class BuildWithCargo(build_py):
    def run(self):
        super().run()
        package = pathlib.Path(self.build_lib) / "cuda_mem"
        programs = package / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        # At once: one after the other they would build what they depend on twice.
        made = cargo("-p", "cuda-mem-capi", "-p", "cuda-mem", "--lib", *(f"--example={name}" for name in PROGRAMS))
        self.take(made, "cudamem.dll" if FOR_WINDOWS else "libcudamem.so", package)
        for name in PROGRAMS:
            self.take(made, f"{name}.exe" if FOR_WINDOWS else name, programs)
        shutil.copy2(WORKSPACE / "cuda-mem/capi/include/cudamem.h", package)

    def take(self, made, name, folder):
        shutil.copy2(next(file for file in made if file.name == name), folder)
        if STRIP and shutil.which(STRIP):
            subprocess.run([STRIP, "--strip-debug", folder / name], check=True)


class PlatformDistribution(Distribution):
    """The wheel is of a platform, though it has no extension module."""

    def has_ext_modules(self):
        return True


try:
    from setuptools.command.bdist_wheel import bdist_wheel

    class WheelForAnyPython(bdist_wheel):
        def get_tag(self):
            return "py3", "none", PLATFORM or super().get_tag()[2]

    commands = {"build_py": BuildWithCargo, "bdist_wheel": WheelForAnyPython}
except ImportError:
    commands = {"build_py": BuildWithCargo}

# What was built for one system must not get into the wheel for another.
options = {"build": {"build_base": f"build/{TARGET}"}} if TARGET else {}

setup(cmdclass=commands, distclass=PlatformDistribution, options=options)
