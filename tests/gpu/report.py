"""Runs the programs of tests/gpu in their order, within a time limit, and writes the report.

    report.py --build DIR --out FILE --seconds N --driver DIR --uuids LIST [--mps PIPE] [--rehearsal]

Started by run.sh, which has found the card, built, and started MPS where it may. A part that does not fit
into the time that is left is in the report as "not run"; a program that fails, with its words.
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

HERE = os.path.dirname(os.path.abspath(__file__))
CEILING_MIB = 2048
MIB = 1 << 20
FRAMEWORKS = {
    "torch": {},
    "torch-expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "torch-async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "cupy": {},
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "numba": {},
}


class Runner:
    def __init__(self, arguments):
        self.a, self.began = arguments, time.monotonic()
        self.work = tempfile.TemporaryDirectory(prefix="vramcap-gpu-")
        self.count = 0

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

    def run(self, command, seconds, **environment):
        """(status or text, stdout, stderr); never raises for what the program does."""
        seconds = min(seconds, self.left())
        if seconds < 1:
            return "not run: no time left", "", ""
        try:
            done = subprocess.run(command, env=self.environment(**environment), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                  timeout=seconds)
        except subprocess.TimeoutExpired:
            return "not finished in %d s" % seconds, "", ""
        except OSError as error:
            return "not run: %s" % error, "", ""
        return done.returncode, done.stdout, done.stderr

    def json(self, command, seconds, **environment):
        status, out, err = self.run(command, seconds, **environment)
        try:
            found = json.loads(out.strip().split("\n")[-1]) if "\n " not in out else json.loads(out)
        except ValueError:
            return {"failed": status, "said": err[-500:]}
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
            if status not in (0, "not run: no time left"):
                found[name]["said"] = [line for line in text.split("\n") if re.match(r"\S+\.c:\d+:", line)][:8]
        return {"preloaded": found, "bare": self.calls()}

    def calls(self):
        program = os.path.join(self.a.build, "tests", "calls", "calls_program")
        listed = sorted(n[:-4] for n in os.listdir(os.path.join(HERE, "..", "calls")) if n.endswith(".inc"))
        odd = {}
        for symbol in listed if os.path.exists(program) else []:
            status, _, err = self.run([program, symbol, "main"], 20, more={
                "VRAMCAP_TEST_BARE": "1", "LD_LIBRARY_PATH": self.a.driver})
            if status != 0:
                odd[symbol] = [status, err[-200:]]
        return {"calls": len(listed), "not_success": odd}

    # ---- (c) ----

    def frameworks(self):
        found = {}
        for name, more in FRAMEWORKS.items():
            command = [sys.executable, os.path.join(HERE, "frameworks.py"), name, str(CEILING_MIB)]
            one = self.json(command, 60, capped=True, more=more)
            found[name] = one
            if "absent" in one or "failed" in one:
                continue
            one["two_processes"] = self.two(command, more)
        for program in ("runtime_static", "runtime_shared"):
            if os.path.exists(self.program(program)):
                found[program] = self.json([self.program(program), str(CEILING_MIB // 16)], 60, capped=True)
            else:
                found[program] = {"absent": "not built: no nvcc"}
        return found

    def two(self, command, more):
        """One holds half; the other, under the same ceiling, must get less than half of the blocks more."""
        ledger = os.path.join(self.work.name, "together-%d" % self.count)
        environment = self.environment(capped=True, ledger=ledger, more=more)
        holder = subprocess.Popen(command + ["--hold", str(CEILING_MIB // 2)], env=environment, text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            if holder.stdout.readline().strip() != "holding":
                return {"failed": "the first does not hold"}
            return self.json(command, 60, capped=True, ledger=ledger, more=more)
        finally:
            holder.stdin.close()
            try:
                holder.wait(20)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()

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


def main():
    parser = argparse.ArgumentParser()
    for name in ("build", "out", "driver", "uuids"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--mps", default="")
    parser.add_argument("--mps-why", default="")
    parser.add_argument("--rehearsal", action="store_true")
    runner = Runner(parser.parse_args())
    report = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": platform.machine(),
              "kernel": platform.release(), "simulated": runner.a.rehearsal, "ceiling_mib": CEILING_MIB,
              "mps": "started" if runner.a.mps else runner.a.mps_why or "not started", "seconds": {}}
    for name in ("facts", "cost", "frameworks", "hooks"):  # the last may take all that is left
        began = time.monotonic()
        try:
            report[name] = getattr(runner, name)()
        except Exception as error:  # noqa: the other parts are worth having
            report[name] = {"failed": "%s: %s" % (type(error).__name__, error)}
        report["seconds"][name] = round(time.monotonic() - began, 1)
        with open(runner.a.out, "w", encoding="utf-8") as file:  # each part is safe once it is there
            json.dump(report, file, indent=1)
            file.write("\n")
    bare = report["facts"].get("bare", {})
    print("report: %s (%s)" % (runner.a.out, bare.get("name", "no card")))
    return 1 if "failed" in bare or "failed" in report["cost"] else 0


if __name__ == "__main__":
    sys.exit(main())
