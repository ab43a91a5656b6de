#!/usr/bin/env python3
"""Each rule of source_rules.py goes red where it must, and stays green beside it."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import source_rules  # noqa: E402

MARK = "TO" + "DO"
PRIVATE = "/wo" + "rk/x"

# rule, file, text that breaks it, text beside it that does not
CASES = [
    ("driver_only_through_real", "preload/hook_mem.c",
     "static int f(void)\n{\n    return cuMemAlloc_v2(0, 1);\n}\n",
     "CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n)\n{\n    return real.cuMemAlloc_v2(p, n) + vcap_own.cuInit(0);\n"
     "}\n"),
    ("driver_only_through_real", "preload/hook_mem.c",
     "#define FREE(p) \\\n    cuMemFree_v2(p)\n", "/* cuMemFree_v2(p) */\nint cuMemFree_v2(int p);\n"),
    ("driver_only_through_real", "preload/hook_nvml.c",
     "void f(void)\n{\n    if (x) {\n    }\n    nvmlInit_v2();\n}\n",
     "void f(void)\n{\n    real_nvml.nvmlInit_v2();\n    say(\"nvmlInit_v2()\");\n}\n"),
    ("no_cuda_in_enforcer", "enforcer/ledger.c", "#include <cuda.h>\n", "#include <stdio.h>\n"),
    ("no_cuda_in_enforcer", "enforcer/cli/dump.c", '#  include "preload/cuda_api.h"\n',
     '#include "enforcer/nvml_abi.h"\n'),
    ("no_cuda_in_enforcer", "preload/charge.h", "#include <cudaTypedefs.h>\n",
     '#include "preload/cuda_abi.h"\n'),
    ("no_cuda_in_enforcer", "preload/cuda_api.h", "#include <cuda.h>\n",
     '#include "preload/cuda_api.def"\n'),
    ("forbidden_calls", "enforcer/ledger.c", "void f(void)\n{\n    exit(1);\n}\n",
     "void f(void)\n{\n    vcap_exit(1);\n    _Static_assert(1, \"x\");\n    p->exit(1);\n}\n"),
    ("forbidden_calls", "enforcer/config.c", "int f(void)\n{\n    return (int)strtoul(s, 0, 10);\n}\n",
     "int f(void)\n{\n    return snprintf(s, 2, \"strtoul(\");\n}\n"),
    ("forbidden_calls", "preload/resolve.c", "void f(void)\n{\n    g = dlsym(h, n);\n}\n",
     "void *dlsym(void *h, const char *n)\n{\n    return vcap_dlsym(h, n);\n}\n"),
    ("forbidden_calls", "preload/resolve.c",
     "void f(void)\n{\n    raise(9); /* lint: allow forbidden_calls: */\n}\n",
     "void f(void)\n{\n    raise(9); /* lint: allow forbidden_calls: a reason */\n}\n"),
    ("short_files", "enforcer/long.c", "int a;\n" * 651, "int a;\n" * 650),
    ("no_leftovers", "docs/x.md", "a " + MARK + ": b\n", "a " + MARK.lower() + " b\n"),
    ("no_private_paths", "samples/x.sh", "#!/bin/sh\ncd " + PRIVATE + "\n",
     "#!/bin/sh\ncd /proc/1/root/x\n"),
    ("scripts_are_executable", "samples/x.sh", "#!/bin/sh\n", None),
    ("scripts_are_executable", "samples/y.sh", "echo no interpreter\n", None),
    ("scripts_are_executable", "tests/x.py", "#!/usr/bin/env python3\n", "import os\n"),
]


class EachRule(unittest.TestCase):
    def findings(self, path, text):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, os.path.dirname(path)))
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
            return {rule for _, _, rule, _ in source_rules.check(root, source_rules.RULES)}

    def test_goes_red_and_stays_green_beside_it(self):
        for rule, path, red, green in CASES:
            with self.subTest(rule=rule, path=path, red=red[:60]):
                self.assertIn(rule, self.findings(path, red))
                if green is not None:
                    self.assertNotIn(rule, self.findings(path, green))

    def test_every_rule_has_a_case(self):
        self.assertEqual({case[0] for case in CASES}, {r.__name__ for r in source_rules.RULES})

    def test_every_forbidden_call_is_found(self):
        for names in source_rules.FORBIDDEN.values():
            for name in names.split():
                text = "void f(void)\n{\n    (void)%s(1);\n}\n" % name
                with self.subTest(name=name):
                    self.assertIn("forbidden_calls", self.findings("preload/charge.c", text))

    def test_build_folders_are_left_out(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "other"))
            for name, text in (("CMakeCache.txt", ""), ("x.c", MARK)):
                with open(os.path.join(root, "other", name), "w", encoding="utf-8") as f:
                    f.write(text)
            self.assertEqual(list(source_rules.files(root)), [])


if __name__ == "__main__":
    unittest.main()
