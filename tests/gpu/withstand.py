"""run.sh where things go wrong, on the simulated driver: withstand.py BUILD. No GPU, nothing to write to, drivers and
frameworks and compilers that hang, MPS that is not to be had or somebody else's, little time, a signal in the
middle. It must end in time with the right status, leave a report that is whole or none, and leave nothing behind."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import verdict

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "run.sh")
BUILD = os.path.abspath(sys.argv[1])
SIM = os.path.join(BUILD, "sim")
wrong = []

# Programs and modules that stand in for what a machine may have.
ASKED = 'echo "$(basename "$0") $*" >>"$ASKED"\n'
SMI_WITHOUT_A_CARD = "#!/bin/sh\n" + ASKED + "exit 9\n"
SMI_THAT_HANGS = "#!/bin/sh\n" + ASKED + "trap '' TERM\nwhile :; do sleep 1; done\n"
CONTROL_THAT_IS_DENIED = ("#!/bin/sh\n" + ASKED + "[ \"${1:-}\" = -d ] || exit 1\n"
                          "echo 'An instance of this daemon may not be started here'\nexit 1\n")
NVCC_THAT_HANGS = "#!/bin/sh\ntrap '' TERM\nsleep 1000 &\nwhile :; do sleep 1; done\n"
# deaf to SIGTERM, and a child of it keeps its output open
JAX_THAT_HANGS = ("import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                  "with open(os.environ['HUNG'], 'a') as file:\n    file.write('%d\\n' % os.getpid())\n"
                  "if os.fork() == 0:\n    with open(os.environ['HUNG'], 'a') as file:\n"
                  "        file.write('%d\\n' % os.getpid())\nwhile True:\n    time.sleep(1)\n")
TORCH_THAT_BREAKS_UNDER_THE_LIBRARY = ("import os\nif 'vramcap' in os.environ.get('LD_PRELOAD', ''):\n"
                                       "    os._exit(3)\nraise ImportError('no GPU for it')\n")
NUMBA_THAT_HOLDS_FOR_EVER = ("import sys, time, cupy\n__version__ = '0'\nclass cuda:\n"
                             "    is_available = staticmethod(\n"
                             "        lambda: time.sleep(1000) if '--hold' in sys.argv else True)\n"
                             "    jit = staticmethod(lambda f: {(256, 256): lambda a: None})\n"
                             "    device_array = staticmethod(\n"
                             "        lambda shape, dtype: cupy.empty(shape[0] * shape[1], 1))\n"
                             "    @staticmethod\n    def to_device(array):\n"
                             "        class Copy:\n            copy_to_host = staticmethod(lambda: array)\n"
                             "        return Copy\n"
                             "    @staticmethod\n    def current_context():\n        class Context:\n"
                             "            get_memory_info = staticmethod(cupy.cuda.runtime.memGetInfo)\n"
                             "            class deallocations:\n"
                             "                clear = staticmethod(\n"
                             "                    lambda: cupy.get_default_memory_pool().free_all_blocks())\n"
                             "        return Context\n")
NUMPY = ("float32, uint8 = 4, 1\nclass ones(list):\n    def __init__(self, n, dtype): self.n = n\n"
         "    def sum(self): return self.n\n")


def check(condition, text):
    if not condition:
        wrong.append(text)


# Everything that hangs here would do so for more than 1000 s. What a run may take is its own limit and what a busy
# machine adds.


class Place:
    """A folder with an OUT, a TMPDIR, programs in front of the machine's and modules of its own."""

    def __init__(self, seconds="60", programs=None, modules=None, control=False, **environment):
        self.temporary = tempfile.TemporaryDirectory(prefix="vramcap-withstand-")
        self.root = self.temporary.name
        for name in ("bin", "modules", "tmp"):
            os.mkdir(self.at(name))
        for folder, mode, files in (("bin", 0o755, programs), ("modules", 0o644, modules)):
            for name, text in (files or {}).items():
                path = self.at(folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                os.chmod(path, mode)
        self.out = self.at("out")
        path = [self.at("bin")] + ([SIM] if control else []) + [os.environ["PATH"]]
        self.environment = dict(os.environ, PATH=os.pathsep.join(path), TMPDIR=self.at("tmp"), CUDA_HOME=self.root,
                                PYTHONPATH=self.at("modules") + os.pathsep + os.path.join(HERE, "rehearsal"),
                                ASKED=self.at("asked"), HUNG=self.at("hung"), VRAMCAP_GPU_SECONDS=seconds)
        self.environment.update(environment)

    def at(self, *names):
        return os.path.join(self.root, *names)

    def lines(self, name):
        try:
            with open(self.at(name), encoding="utf-8") as file:
                return file.read().split("\n")[:-1]
        except FileNotFoundError:
            return []

    def run(self, *arguments, limit=300):
        began = time.monotonic()
        done = subprocess.run([SCRIPT] + list(arguments), env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit)
        done.seconds = time.monotonic() - began
        self.nothing_is_left()
        return done

    def simulated(self, **more):
        return self.run("--simulator", "--build", BUILD, self.out, **more)

    def report(self):
        with open(os.path.join(self.out, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
        check(verdict.shape(report) == [], "the report: %s" % verdict.shape(report))
        return report

    def nothing_is_left(self):
        check(os.listdir(self.at("tmp")) == [], "left in the temporary folder: %s" % os.listdir(self.at("tmp")))
        until = time.monotonic() + 20  # killed they are; when the kernel is through with it is its affair
        while self.processes() and time.monotonic() < until:
            time.sleep(0.1)
        check(not self.processes(), "still running: %s" % self.processes())

    def processes(self):
        """Command lines of what has this place in its environment and is alive. (A daemon has no other mark.)"""
        found = []
        for pid in (name for name in os.listdir("/proc") if name.isdigit()):
            try:
                with open("/proc/%s/environ" % pid, "rb") as file:
                    here = ("ASKED=" + self.at("asked")).encode() in file.read().split(b"\0")
                with open("/proc/%s/cmdline" % pid, "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace")
                if here and command:
                    found.append(command)
            except OSError:
                pass
        return found


def has_card():
    return any(name.startswith("nvidia") for name in os.listdir("/dev"))


def without_a_card():
    if has_card():
        return
    for programs in ({}, {"nvidia-smi": SMI_WITHOUT_A_CARD}, {"nvidia-smi": SMI_THAT_HANGS}):
        place = Place(seconds="20", programs=programs)
        done = place.run(place.out)
        check(done.returncode == 77 and "no NVIDIA GPU here" in done.stderr, "without a card: %s" % done)
        check(os.listdir(place.out) == [], "without a card there is %s" % os.listdir(place.out))
        check(place.lines("asked") in ([], ["nvidia-smi -L"]), "asked: %s" % place.lines("asked"))


def usage_and_folders():
    place = Place()
    for arguments in ([], [""], [place.out, place.out], ["--build"], ["--fast", place.out], ["--build", place.out]):
        done = place.run(*arguments)
        check(done.returncode == 2 and done.stderr.startswith("usage: "), "%s: %s" % (arguments, done))
    taken = place.at("file")
    with open(taken, "w", encoding="utf-8"):
        pass
    for out in (taken, "/proc", "/proc/none", os.path.join(taken, "below")):
        done = place.run("--simulator", "--build", BUILD, out)
        check(done.returncode == 2 and "nothing can be written in " + out in done.stderr, "%s: %s" % (out, done))
    done = place.run("--simulator", "--build", place.at("modules"), place.out)
    check(done.returncode == 2 and "has no tests/gpu/gpu_facts" in done.stderr, "an empty build: %s" % done)
    check(place.run("--simulator", "--build", place.at("none"), place.out).returncode == 2, "no build folder")
    for seconds in ("ten", "-5", "1.5", "9999999"):
        done = Place(seconds=seconds).simulated()
        check(done.returncode == 2 and "VRAMCAP_GPU_SECONDS is '%s'" % seconds in done.stderr,
              "%s: %s" % (seconds, done))
    done = Place(TMPDIR="/nonexistent").simulated()
    check(done.returncode == 2 and "set TMPDIR" in done.stderr, "no temporary folder: %s" % done)


def a_driver_that_does_not_answer():
    place = Place(seconds="20", VRAMCAP_SIM_DELAY_US="cuInit:1000000000")
    done = place.simulated()
    check(done.returncode == 1 and done.seconds < 120, "a driver that hangs: %s after %d s" % (done, done.seconds))
    check("did not answer" in place.report()["wrong"][0], "its report: %s" % place.report())
    place = Place(seconds="20", VRAMCAP_SIM_FAIL="cuInit:0:999")
    done = place.simulated()
    check(done.returncode == 77 and not os.path.exists(place.out + "/report.json"),
          "a driver without a card: %s" % done)


def written():
    """What there is in the build folder, and since when."""
    return sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(os.path.join(BUILD, "tests", "gpu")))


def steps_that_hang():
    """One driver call, a framework, a holder, a compiler; and one that breaks under the library alone."""
    before = written()
    place = Place(seconds="60", programs={"nvcc": NVCC_THAT_HANGS, "nvidia-cuda-mps-control": CONTROL_THAT_IS_DENIED},
                  modules={"jax.py": JAX_THAT_HANGS, "torch.py": TORCH_THAT_BREAKS_UNDER_THE_LIBRARY,
                           "numba.py": NUMBA_THAT_HOLDS_FOR_EVER, "numpy.py": NUMPY},
                  VRAMCAP_SIM_DELAY_US="cuArray3DCreate_v2:1000000000")
    done = place.simulated()
    report = place.report()
    check(done.returncode == 1 and done.seconds < 180,
          "steps that hang: %s after %d s" % (done.returncode, done.seconds))
    check(report["facts"]["bare"]["failed"].startswith("not finished in "), "facts: %s" % report["facts"])
    check(len(report["cost"]) == 5, "after facts that hang, the cost: %s" % report["cost"])
    frameworks = report["frameworks"]
    check("not finished in " in frameworks["jax"].get("absent", ""), "jax: %s" % frameworks["jax"])
    cupy, numba, runtime = (frameworks[name] for name in ("cupy", "numba", "runtime_static"))
    check(cupy["two_processes"]["blocks"] * 2 == cupy["blocks"], "cupy: %s" % cupy)
    check(numba.get("two_processes") == {"failed": "the first does not hold"}, "numba: %s" % numba)
    check(runtime["absent"].startswith("not built: nvcc"), "nvcc: %s" % runtime)
    check(report["mps"] == "it could not be started: An instance of this daemon may not be started here",
          "MPS: %s" % report["mps"])
    for words in ("facts: not finished in", "torch: 3", "numba, two processes: the first does not hold"):
        check(any(line.startswith(words) for line in report["wrong"]), "%s is not in %s" % (words, report["wrong"]))
    check(len(place.lines("hung")) == 4, "under the library and bare, with a child each: %s" % place.lines("hung"))
    # the daemon is asked whether it is there, started and, since it says no, never spoken to again but to quit
    check(set(place.lines("asked")) == {"nvidia-cuda-mps-control ", "nvidia-cuda-mps-control -d"},
          "asked: %s" % place.lines("asked"))
    check(before == written(), "the build folder was written to: %s" % (set(written()) ^ set(before)))


def little_time():
    place = Place(seconds="2")
    done = place.simulated()
    report = place.report()
    check(done.seconds < 90, "with two seconds it took %d" % done.seconds)
    check(verdict.NO_TIME in json.dumps(report), "with two seconds all was run: %s" % report["seconds"])
    check(done.returncode in (0, 1), "with two seconds: %s" % done)


def somebody_elses_daemon():
    place = Place(seconds="5", control=True)
    pipe = place.at("mps")
    os.mkdir(pipe)
    control = os.path.join(SIM, "nvidia-cuda-mps-control")
    theirs = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=pipe, CUDA_MPS_LOG_DIRECTORY=pipe,
                  VRAMCAP_SIM_STATE=place.at("card"))

    def say(word):
        return subprocess.run([control], input=word + "\n", env=theirs, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60).returncode

    subprocess.run([control, "-d"], env=theirs, check=True, timeout=60, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    try:
        place.environment["CUDA_MPS_PIPE_DIRECTORY"] = pipe
        done = place.simulated()
        check("left alone" in place.report()["mps"], "somebody's daemon: %s" % place.report()["mps"])
        check(say("get_server_list") == 0, "somebody's daemon was stopped: %s" % done.stderr)
    finally:
        say("quit")


def a_signal_in_the_middle():
    place = Place(seconds="200", control=True, modules={"jax.py": JAX_THAT_HANGS})
    process = subprocess.Popen([SCRIPT, "--simulator", "--build", BUILD, place.out], env=place.environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 150
    while len(place.lines("hung")) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    check(len(place.lines("hung")) == 2, "the step that hangs was not reached")
    process.send_signal(signal.SIGTERM)
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        said = "still running after a minute"
    check(process.returncode == 143, "ended by a signal: %s %s" % (process.returncode, said))
    report = place.report()
    check(report["mps"] == "started" and "bare" in report["facts"], "what was known: %s" % report)
    place.nothing_is_left()


def main():
    for case in (without_a_card, usage_and_folders, a_driver_that_does_not_answer, little_time, somebody_elses_daemon,
                 a_signal_in_the_middle, steps_that_hang):
        began, so_far = time.monotonic(), len(wrong)
        case()
        print("%s: %s (%.1f s)" % (case.__name__, "ok" if len(wrong) == so_far else "FAILED", time.monotonic() - began),
              flush=True)
        for text in wrong[so_far:]:
            print("    " + text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
