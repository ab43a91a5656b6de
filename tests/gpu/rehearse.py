"""run.sh on the simulated driver, as far as that goes: rehearse.py BUILD. The report must have every part, and
what the simulator claims must be found in it by programs that know nothing of the simulator."""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30


def main():
    build, wrong = os.path.abspath(sys.argv[1]), []

    def check(condition, text):
        if not condition:
            wrong.append(text)

    script = os.path.join(HERE, "run.sh")
    with tempfile.TemporaryDirectory() as out:
        # the simulator's own control daemon, and a stand-in for one framework; without a toolkit
        environment = dict(os.environ, CUDA_HOME=out, VRAMCAP_GPU_SECONDS="300",
                           PATH=os.path.join(build, "sim") + os.pathsep + os.environ["PATH"],
                           PYTHONPATH=os.path.join(HERE, "rehearsal"))
        done = subprocess.run([script, "--simulator", "--build", build, out], stdin=subprocess.DEVNULL, timeout=390,
                              env=environment)
        check(done.returncode == 0, "run.sh ended with %d" % done.returncode)
        with open(os.path.join(out, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
    bare, capped = report["facts"]["bare"], report["facts"]["under_a_ceiling"]
    check(report["simulated"] is True, "the report does not say that it is simulated")
    check(report["wrong"] == [], "wrong in the report: %s" % report["wrong"])
    check(bare["granularity_minimum"] == 2 << 20 and bare["alloc_1048577_bytes_each_of_64"] == 2 << 20,
          "facts: %s" % bare)
    check(bare["pool_reserved_after_1_up_to_65536"] == 32 << 20, "the pool's chunk is not found")
    check(bare["second_context_takes"] == 64 << 20 and bare["lost_in_all_of_this"] == 0, "contexts: %s" % bare)
    check(bare["addresses_different"] == 0 and bare["addresses_same"] == 10, "addresses of the driver: %s" % bare)
    check(capped["mem_info_total"] == 2048 << 20 == capped["device_total"], "under the ceiling: %s" % capped)
    # under MPS: the limit is in what is free and not in the total; a share is in the multiprocessors
    check(report["mps"] == "started", "MPS: %s" % report["mps"])
    limit, both = report["facts"]["mps_limit_1g"], report["facts"]["mps_limit_1g_under_a_ceiling"]
    check(limit["mem_info_free"] <= GIB < limit["mem_info_total"] == bare["mem_info_total"], "MPS's limit: %s" % limit)
    check(both["mem_info_free"] <= GIB and both["mem_info_total"] == GIB, "MPS's limit and the ceiling: %s" % both)
    check(report["facts"]["mps_threads_25_percent"]["multiprocessors"] <= bare["multiprocessors"] / 4,
          "a quarter of the threads: %s" % report["facts"]["mps_threads_25_percent"])
    for what, cost in report["cost"].items():
        check(cost["bare_ns"] > 0 and cost["ratio"] > 0, "cost of %s: %s" % (what, cost))
    check(len(report["cost"]) == 5, "cost: %s" % report["cost"])
    check(set(report["frameworks"]) >= {"torch", "torch-expandable", "torch-async", "cupy", "jax", "numba"},
          "frameworks: %s" % report["frameworks"])
    cupy = report["frameworks"]["cupy"]
    check(cupy["total_mib"] == 2048 and cupy["blocks"] == cupy["blocks_again"] == 2048 // cupy["block_mib"],
          "the stand-in for a framework: %s" % cupy)
    check(cupy["error"]["out_of_memory"] and cupy["model"] and cupy["model_afterwards"], "its error: %s" % cupy)
    check(cupy["two_processes"]["blocks"] == cupy["blocks"] // 2, "two of it: %s" % cupy["two_processes"])
    hooks = report["hooks"]["preloaded"]
    failed = {name: row for name, row in hooks.items() if row["status"] != 0}
    check(not failed, "hook tests: %s" % failed)
    check(sum(row["passed"] for row in hooks.values()) > 100, "hook tests that ran: %s" % hooks)
    calls = report["hooks"]["bare"]
    check(not calls["not_success"] and calls["ran"] == calls["calls"] > 50, "bare calls: %s" % calls)
    for text in wrong:
        print("FAILED: %s" % text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
