#!/usr/bin/env python3
"""verdict.py on reports made by hand: a good one is silent, and each thing that is wrong is one line."""
import copy
import sys
import unittest

sys.dont_write_bytecode = True
import verdict  # noqa: E402

MIB = 1 << 20
FACTS = {"mem_info_total": 24576 * MIB, "device_total": 24576 * MIB, "mem_info_free": 24000 * MIB,
         "alloc_1_bytes_each_of_2048": 1024, "alloc_1_bytes_each_of_2048_rule_charges": 512,
         "create_64_mib_takes": 64 * MIB, "create_64_mib_takes_rule_charges": 64 * MIB,
         "pool_takes": None, "pool_takes_rule_charges": 0}
CAPPED = {"mem_info_total": 2048 * MIB, "device_total": 2048 * MIB, "mem_info_free": 2048 * MIB}
LIMITED = {"mem_info_total": 1024 * MIB, "device_total": 1024 * MIB, "mem_info_free": 900 * MIB}
FOUND = {"version": "1", "model": True, "total_mib": 2048, "free_mib": 2048, "block_mib": 128, "blocks": 16,
         "error": {"type": "E", "text": "t", "out_of_memory": True}, "blocks_again": 16, "model_afterwards": True}
RUNTIME = dict(FOUND, error="cudaErrorMemoryAllocation")
GOOD = {"date": "2026-01-31", "machine": "x86_64", "kernel": "6", "simulated": False, "ceiling_mib": 2048,
        "mps": "started",
        "seconds": {"facts": 1.5},
        "facts": {"bare": FACTS, "under_a_ceiling": CAPPED, "mps": {"failed": verdict.NO_TIME},
                  "mps_limit_1g_under_a_ceiling": LIMITED},
        "cost": {"launch": {"bare_ns": 2.0, "vramcap_ns": 2, "ratio": None}},
        "frameworks": dict({name: {"absent": "no"} for name in verdict.FRAMEWORKS}, runtime_static=RUNTIME,
                           torch=dict(FOUND, two_processes=dict(FOUND, blocks=8, blocks_again=8))),
        "hooks": {"preloaded": {"test_hook_linear": {"status": 0, "passed": 9, "skipped": 0, "failed": []}},
                  "bare": {"calls": 3, "ran": 3, "not_success": {}}}, "wrong": []}


def said(change, *path):
    """The lines about the good report with one value put at a path, or taken away (change is DROP)."""
    report = copy.deepcopy(GOOD)
    at = report
    for name in path[:-1]:
        at = at[name]
    if change is DROP:
        del at[path[-1]]
    else:
        at[path[-1]] = change
    return verdict.shape(report) or verdict.ceiling(report) + verdict.rules(report)


DROP = object()
WRONG = [
    (DROP, "mps"), (DROP, "hooks", "bare"), (DROP, "frameworks", "jax"), ("yes", "simulated"), (1, "unheard_of"),
    ([], "facts", "bare"), ({}, "facts", "bare"), ("fast", "cost", "launch", "bare_ns"),
    (True, "cost", "launch", "bare_ns"),
    (DROP, "frameworks", "torch", "blocks"), (1, "frameworks", "torch", "model"), ("1", "seconds", "facts"),
    (24576 * MIB, "facts", "under_a_ceiling", "mem_info_total"),
    (2049 * MIB, "facts", "under_a_ceiling", "mem_info_free"),
    (2048 * MIB, "facts", "mps_limit_1g_under_a_ceiling", "mem_info_total"),
    (24576 * MIB, "facts", "under_a_ceiling", "device_total"), (1537, "facts", "bare", "alloc_1_bytes_each_of_2048"),
    (64 * MIB + 1, "facts", "bare", "create_64_mib_takes"), (1, "facts", "bare", "pool_takes"),
    (129, "frameworks", "torch", "block_mib"), (15, "frameworks", "torch", "blocks_again"),
    (False, "frameworks", "torch", "model_afterwards"), (False, "frameworks", "torch", "error", "out_of_memory"),
    (9, "frameworks", "torch", "two_processes", "blocks"), ({"failed": 3, "said": ""}, "frameworks", "torch"),
    ({"failed": "the first does not hold"}, "frameworks", "torch", "two_processes"),
    ("cudaErrorUnknown", "frameworks", "runtime_static", "error"),
    (["a_test"], "hooks", "preloaded", "test_hook_linear", "failed"),
    (-11, "hooks", "preloaded", "test_hook_linear", "status"),
]
RIGHT = [
    ({"failed": verdict.NO_TIME}, "frameworks", "torch"), ({"failed": "not finished in 60 s"}, "cost"),
    ({"failed": verdict.NO_TIME}, "hooks"), (verdict.NO_TIME, "hooks", "preloaded", "test_hook_linear", "status"),
    (77, "hooks", "preloaded", "test_hook_linear", "status"), (1536, "facts", "bare", "alloc_1_bytes_each_of_2048"),
    (0, "facts", "bare", "pool_takes"), ({"failed": "all of it"}, "facts"),
]


class Verdicts(unittest.TestCase):
    def test_a_good_report_is_silent(self):
        self.assertEqual(said("2026-01-31", "date"), [])

    def test_what_is_wrong_is_one_line(self):
        for change in WRONG:
            self.assertEqual(len(said(*change)), 1, change)

    def test_what_is_no_fault_is_silent(self):
        for change in RIGHT:
            self.assertEqual(said(*change), [], change)


if __name__ == "__main__":
    unittest.main()
