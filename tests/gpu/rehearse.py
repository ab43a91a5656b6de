"""run.sh on the simulated driver, as far as that goes: rehearse.py BUILD. The report must have every part, and
what the simulator claims must be found in it by programs that know nothing of the simulator."""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    build, wrong = sys.argv[1], []

    def check(condition, text):
        if not condition:
            wrong.append(text)

    script = os.path.join(HERE, "run.sh")
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([script, "--simulator", "--build", build, out], stdin=subprocess.DEVNULL, timeout=390,
                              env=dict(os.environ, CUDA_HOME=out, VRAMCAP_GPU_SECONDS="300"))
        check(done.returncode == 0, "run.sh ended with %d" % done.returncode)
        with open(os.path.join(out, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
    bare, capped = report["facts"]["bare"], report["facts"]["under_a_ceiling"]
    check(report["simulated"] is True, "the report does not say that it is simulated")
    check(bare["granularity_minimum"] == 2 << 20 and bare["alloc_1048577_bytes_each_of_64"] == 2 << 20,
          "facts: %s" % bare)
    check(bare["pool_reserved_after_1_up_to_65536"] == 32 << 20, "the pool's chunk is not found")
    check(bare["second_context_takes"] == 64 << 20 and bare["lost_in_all_of_this"] == 0, "contexts: %s" % bare)
    check(bare["addresses_different"] == 0 and bare["addresses_same"] == 10, "addresses of the driver: %s" % bare)
    check(capped["mem_info_total"] == 2048 << 20 == capped["device_total"], "under the ceiling: %s" % capped)
    for what, cost in report["cost"].items():
        check(cost["bare_ns"] > 0 and cost["ratio"] > 0, "cost of %s: %s" % (what, cost))
    check(len(report["cost"]) == 5, "cost: %s" % report["cost"])
    check(set(report["frameworks"]) >= {"torch", "torch-expandable", "torch-async", "cupy", "jax", "numba"},
          "frameworks: %s" % report["frameworks"])
    hooks = report["hooks"]["preloaded"]
    failed = {name: row for name, row in hooks.items() if row["status"] != 0}
    check(not failed, "hook tests: %s" % failed)
    check(sum(row["passed"] for row in hooks.values()) > 100, "hook tests that ran: %s" % hooks)
    check(not report["hooks"]["bare"]["not_success"], "bare calls: %s" % report["hooks"]["bare"])
    for text in wrong:
        print("FAILED: %s" % text)
    no_card = subprocess.run([script, "--build", build, os.devnull + "-none"], stdin=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, timeout=120) if not has_card() else None
    if no_card is not None and no_card.returncode not in (2, 77):
        print("FAILED: without a card it ends with %d\n%s" % (no_card.returncode, no_card.stderr))
        return 1
    return 1 if wrong else 0


def has_card():
    return any(name.startswith("nvidia") for name in os.listdir("/dev"))


if __name__ == "__main__":
    sys.exit(main())
