"""For pytest (`-p over_cupy`): runs the tests of CuPy over an arena."""

import cuda_mem.cupy

cuda_mem.cupy.use_arena()


def pytest_terminal_summary(terminalreporter):
    found = cuda_mem.cupy.resource(0)
    terminalreporter.write_line(f"cuda-mem: {found.stats() if found else 'unused'}")
