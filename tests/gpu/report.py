"""Runs the programs of tests/gpu in their order, within a time limit, and writes the report.

    report.py --build DIR --out FILE --seconds N --driver DIR --uuids LIST [--limit N] [--runtime DIR]
              [--mps PIPE] [--rehearsal]
    report.py --out FILE --failed WORDS [--rehearsal]      a report that says why there is nothing else in it

Started by run.sh, which has found the card, built, and started MPS where it may. A part that does not fit
into the time that is left is in the report as "not run"; a program that fails, with its words; one that does not
end, as "not finished". Each step has a limit of its own, so that one that hangs leaves time for the others: the
seconds written here are those of a run of FULL_S seconds; with a lower --limit they are less in proportion.
"""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import limited
import verdict

HERE = os.path.dirname(os.path.abspath(__file__))
CEILING_MIB = 2048
FULL_S = 460
FRAMEWORKS = {
    "torch": {},
    "torch-expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "torch-async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "cupy": {},
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "numba": {},
}


NO_TIME = verdict.NO_TIME


class Runner:
    def __init__(self, arguments):
        self.a, self.began = arguments, time.monotonic()
        self.work = tempfile.TemporaryDirectory(prefix="vramcap-gpu-")
        self.count = 0
        self.scale = min(1, arguments.limit / FULL_S)

    def left(self):
        return self.a.seconds - (time.monotonic() - self.began)

    def environment(self, capped=False, ledger=None, more=None):
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith("VRAMCAP_") or k.startswith("VRAMCAP_SIM_")}
        if self.a.rehearsal:
            environment["LD_LIBRARY_PATH"] = self.a.driver
        if capped:
            self.count += 1
            environment.update(
                LD_PRELOAD=os.path.join(self.a.build, "libvramcap.so"), VRAMCAP_ENABLE="1",
                VRAMCAP_MEMORY_MIB=str(CEILING_MIB),
                VRAMCAP_LEDGER=ledger or os.path.join(self.work.name, "ledger-%d" % self.count))
        environment.update(more or {})
        return environment

    def limit(self, seconds):
        return min(seconds * self.scale, self.left())

    def run(self, command, seconds, **environment):
        """(status or text, stdout, stderr); never raises for what the program does."""
        seconds = self.limit(seconds)
        if seconds < 0.5:
            return NO_TIME, "", ""
        return limited.run(command, seconds, self.environment(**environment))

    def json(self, command, seconds, **environment):
        status, out, err = self.run(command, seconds, **environment)
        try:
            found = json.loads(out.strip().split("\n")[-1]) if "\n " not in out else json.loads(out)
        except ValueError:
            return {"failed": status, "said": err[-500:]}
        if not isinstance(found, dict):
            return {"failed": status, "said": out[-500:]}
        if status != 0:
            found["failed"] = status
        said = [line for line in err.split("\n") if line.startswith("vramcap:")]
        if said:
            found["vramcap_said"] = said[:3]
        return found

    def program(self, name):
        return os.path.join(self.a.build, "tests", "gpu", name)

    # ---- (a) ----

    def facts(self):
        found = {"bare": self.json([self.program("gpu_facts")], 60),
                 "under_a_ceiling": self.json([self.program("gpu_facts")], 60, capped=True)}
        if self.a.mps:
            with_mps = {"CUDA_MPS_PIPE_DIRECTORY": self.a.mps}
            found["mps"] = self.json([self.program("gpu_facts")], 60, more=with_mps)
            for percent in ("50", "25", "10"):
                found["mps_threads_%s_percent" % percent] = self.json(
                    [self.program("gpu_facts")], 40,
                    more=dict(with_mps, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percent))
            found["mps_limit_1g"] = self.json([self.program("gpu_facts")], 40, more=dict(
                with_mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G"))
            found["mps_limit_1g_under_a_ceiling"] = self.json(
                [self.program("gpu_facts")], 40, capped=True,
                more=dict(with_mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G"))
        return found

    # ---- (b) ----

    def hooks(self):
        """The hook tests on this driver: those scenarios that need no simulator. Each runs preloaded; the
        bare counterpart is every call of tests/calls without the library."""
        found, folder = {}, os.path.join(self.a.build, "tests", "hook")
        names = sorted(n for n in os.listdir(folder) if n.startswith("test_hook_")) if os.path.isdir(folder) else []
        more = {"VRAMCAP_TEST_DRIVER": self.a.driver, "VRAMCAP_TEST_UUIDS": self.a.uuids}
        for name in names:
            status, out, err = self.run([os.path.join(folder, name)], 60, more=more)
            text = out + err
            found[name] = {"status": status, "passed": len(re.findall(r"\[ +OK +\]", text)),
                           "skipped": len(re.findall(r"\[ +SKIPPED +\]", text)) // 2,
                           "failed": sorted(set(re.findall(r"\[ +FAILED +\] (\w+)", text)))}
            if status not in (0, NO_TIME):
                found[name]["said"] = [line for line in text.split("\n") if re.match(r"\S+\.c:\d+:", line)][:8]
        return {"preloaded": found, "bare": self.calls()}

    def calls(self):
        program = os.path.join(self.a.build, "tests", "calls", "calls_program")
        if not os.path.exists(program):
            return {"absent": "not built"}
        listed = sorted(n[:-4] for n in os.listdir(os.path.join(HERE, "..", "calls")) if n.endswith(".inc"))
        odd, ran = {}, 0
        for symbol in listed:
            status, _, err = self.run([program, symbol, "main"], 20, more={
                "VRAMCAP_TEST_BARE": "1", "LD_LIBRARY_PATH": self.a.driver})
            if status == NO_TIME:
                break
            ran += 1
            if status != 0:
                odd[symbol] = [status, err[-200:]]
        return {"calls": len(listed), "ran": ran, "not_success": odd}

    # ---- (c) ----

    def frameworks(self):
        found = {}
        for name, more in FRAMEWORKS.items():
            command = [sys.executable, os.path.join(HERE, "frameworks.py"), name, str(CEILING_MIB)]
            found[name] = one = self.compare(command, more)
            if not verdict.is_empty(one):
                one["two_processes"] = self.two(command, more)
        for kind in ("static", "shared"):
            program = os.path.join(self.a.runtime, "runtime_" + kind)
            if os.path.exists(program):
                found["runtime_" + kind] = self.compare([program, str(CEILING_MIB // 16)], {})
            else:
                found["runtime_" + kind] = {"absent": "not built: " + self.a.runtime_why}
        return found

    def compare(self, command, more):
        """Under the ceiling; what does not come to its end there may be one that does not without vramcap either."""
        one = self.json(command, 60, capped=True, more=more)
        if verdict.broke(one):
            bare = self.json(command, 60, more=more)
            if "failed" in bare:
                return {"absent": "without vramcap it does not end well either: %s" % bare["failed"],
                        "said": bare.get("said", "")}
        return one

    def two(self, command, more):
        """One holds half; the other, under the same ceiling, must get no more than the other half."""
        ledger = os.path.join(self.work.name, "together-%d" % self.count)
        environment = self.environment(capped=True, ledger=ledger, more=more)
        if self.limit(60) < 0.5:
            return {"failed": NO_TIME}
        holder = limited.start(command + ["--hold", str(CEILING_MIB // 2)], env=environment, bufsize=0,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            if limited.line_of(holder, self.limit(60)) != "holding":
                return {"failed": "the first does not hold"}
            return self.json(command, 60, capped=True, ledger=ledger, more=more)
        finally:
            holder.stdin.close()
            try:
                holder.wait(max(0.1, self.limit(20)))
            except subprocess.TimeoutExpired:
                limited.end(holder)
            holder.stdout.close()

    # ---- (d) ----

    def cost(self):
        rounds = "200" if self.a.rehearsal else "2000"
        bare, capped = [], []
        for _ in range(5):
            bare.append(self.json([self.program("gpu_cost"), rounds], 30))
            capped.append(self.json([self.program("gpu_cost"), rounds], 30, capped=True))
        good = [(b, c) for b, c in zip(bare, capped) if "failed" not in b and "failed" not in c]
        if not good:
            return {"failed": [bare[:1], capped[:1]]}
        found = {}
        for what in good[0][0]:
            b, c = (statistics.median(pair[i][what] for pair in good) for i in (0, 1))
            found[what] = {"bare_ns": b, "vramcap_ns": c, "ratio": round(c / b, 3) if b else None}
        return found


def empty(arguments):
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": platform.machine(),
            "kernel": platform.release(), "simulated": arguments.rehearsal, "ceiling_mib": CEILING_MIB,
            "mps": "started" if arguments.mps else arguments.mps_why or "not started", "seconds": {}, "wrong": []}


def write(report, path):
    """All of it or what was there before: a reader never finds half of one."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    for name in ("build", "driver", "uuids", "runtime", "mps", "mps-why", "failed"):
        parser.add_argument("--" + name, default="")
    parser.add_argument("--runtime-why", default="no nvcc")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--limit", type=float, default=FULL_S)
    parser.add_argument("--rehearsal", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse()
    limited.end_on_signals()
    report = empty(arguments)
    if arguments.failed:
        for part in verdict.PARTS:
            report[part] = {"failed": arguments.failed}
        report["wrong"] = [arguments.failed]
        write(report, arguments.out)
        print("report: %s: %s" % (arguments.out, arguments.failed))
        return 1
    runner = Runner(arguments)
    for name in verdict.PARTS:
        report[name] = {"failed": NO_TIME}
    for name in verdict.PARTS:  # the last may take all that is left
        began = time.monotonic()
        try:
            report[name] = getattr(runner, name)()
        except Exception as error:  # noqa: the other parts are worth having
            report[name] = {"failed": "%s: %s" % (type(error).__name__, error)}
        report["seconds"][name] = round(time.monotonic() - began, 1)
        write(report, arguments.out)  # each part is safe once it is there
    bare = report["facts"].get("bare", {})
    report["wrong"] = verdict.shape(report) or verdict.ceiling(report) + verdict.rules(report)
    for name, part in (("facts", bare), ("cost", report["cost"])):
        if "failed" in part:
            report["wrong"].append("%s: %s" % (name, part["failed"]))
    write(report, arguments.out)
    for line in report["wrong"]:
        print("WRONG: " + line)
    print("report: %s (%s)" % (arguments.out, bare.get("name", "no card")))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
