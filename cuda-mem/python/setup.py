"""Builds the wheel: the C library and three programs, made by cargo, beside the Python files.

With CUDA_MEM_BUILT they are taken from that folder of cargo's, such as `target/debug`, and not built.
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


def cargo(*arguments):
    """Builds something, and returns the files that it became."""
    if built := os.environ.get("CUDA_MEM_BUILT"):
        return [file for folder in ("", "deps", "examples") for file in (pathlib.Path(built) / folder).iterdir()]
    profile = os.environ.get("CUDA_MEM_PROFILE", "release")
    command = ["cargo", "build", "--profile", profile, "--message-format=json-render-diagnostics", *arguments]
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
        examples = ("doctor", "replay", "report")
        made = cargo("-p", "cuda-mem-capi", "-p", "cuda-mem", "--lib", *(f"--example={name}" for name in examples))
        self.take(next(file for file in made if file.name == "libcudamem.so"), package / "libcudamem.so")
        self.take(WORKSPACE / "cuda-mem/capi/include/cudamem.h", package / "cudamem.h")
        for name in examples:
            self.take(next(file for file in made if file.name == name), programs / name)

    def take(self, source, target):
        shutil.copy2(source, target)
        if target.suffix in ("", ".so") and shutil.which("strip"):
            subprocess.run(["strip", "--strip-debug", target], check=True)


class PlatformDistribution(Distribution):
    """The wheel is of a platform, though it has no extension module."""

    def has_ext_modules(self):
        return True


try:
    from setuptools.command.bdist_wheel import bdist_wheel

    class WheelForAnyPython(bdist_wheel):
        def get_tag(self):
            return "py3", "none", super().get_tag()[2]

    commands = {"build_py": BuildWithCargo, "bdist_wheel": WheelForAnyPython}
except ImportError:
    commands = {"build_py": BuildWithCargo}

setup(cmdclass=commands, distclass=PlatformDistribution)
