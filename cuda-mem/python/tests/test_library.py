"""The types of the C functions are those of the header."""

import ctypes
import pathlib
import re
import unittest

from cuda_mem import _library as c

HEADER = (pathlib.Path(__file__).parent / "../../capi/include/cudamem.h").resolve()

STRUCTS = {
    "cudamem_pool_options": c.PoolOptions,
    "cudamem_pool_stats": c.PoolStats,
    "cudamem_arena_options": c.ArenaOptions,
    "cudamem_arena_stats": c.ArenaStats,
    "cudamem_statistics": c.Statistics,
    "cudamem_torch_stats": c.TorchStats,
}
NUMBERS = {
    "size_t": ctypes.c_size_t,
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint8_t": ctypes.c_uint8,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "ptrdiff_t": ctypes.c_ssize_t,
    "cudamem_status": ctypes.c_int,
    "cudamem_frames": ctypes.c_void_p,
    "cudamem_python_lock": ctypes.c_void_p,
    "cudamem_python_unlock": ctypes.c_void_p,
    "cudamem_python_fetch": ctypes.c_void_p,
    "cudamem_python_restore": ctypes.c_void_p,
    "cudamem_python_callback": ctypes.c_void_p,
    "void": None,
}


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


class Library(unittest.TestCase):
    def setUp(self):
        self.header = without_comments(HEADER.read_text())

    def test_functions(self):
        found = re.findall(r"^([\w ]+?[ *]+)(cudamem_\w+)\(([^)]*)\);", self.header, flags=re.MULTILINE)
        names = [name for _, name, _ in found]
        self.assertEqual(sorted(names), sorted([*c.FUNCTIONS, *c.HOOKS]))
        for result, name, arguments in found:
            if name in c.HOOKS:
                continue
            known_result, known_arguments = c.FUNCTIONS[name]
            arguments = [] if arguments.strip() == "void" else [part.strip() for part in arguments.split(",")]
            self.assertEqual(len(arguments), len(known_arguments), name)
            for declared, known in zip([result, *arguments], [known_result, *known_arguments]):
                if "*" in declared:
                    self.assertEqual(ctypes.sizeof(known), 8, (name, declared))
                else:
                    kind = declared.replace("const ", "").split()[0]
                    self.assertIs(NUMBERS[kind], known, (name, declared))

    def test_structs(self):
        for name, struct in STRUCTS.items():
            body = re.search(r"typedef struct \{([^}]*)\} " + name + ";", self.header).group(1)
            fields = []
            for part in filter(None, map(str.strip, body.split(";"))):
                kind, field = part.rsplit(maxsplit=1)
                of = ctypes.c_void_p if field.startswith("*") else NUMBERS[kind]
                fields.append((field.lstrip("*"), of))
            self.assertEqual(fields, list(struct._fields_), name)


if __name__ == "__main__":
    unittest.main()
