"""Roots x runtimes x ways of injection: two processes, one ceiling, the second refused.

Called by run.sh with everything made: the portable build (--prefix), the roots (--root NAME=FOLDER, in which
the mount points exist), a work folder. Each cell is one container in which samples/pair runs; the ledger is
read from the host while both processes hold what they have. Prints one line per cell, and the table that
docs/platforms.md has.
"""
import concurrent.futures
import itertools
import json
import os
import selectors
import subprocess
import time

from runtimes import Box

CEILING_MIB = 1024
CARD_MIB = 8192
CELL_SECONDS = 60
LIBRARY = "/opt/vramcap/libvramcap.so"
LEDGER = "/run/vramcap/ledger"

WAYS = ("none", "LD_PRELOAD", "ld.so.preload", "CDI", "vramcap run")
TITLES = {"none": "nothing (control)", "LD_PRELOAD": "`LD_PRELOAD`",
          "ld.so.preload": "`/etc/ld.so.preload`", "CDI": "CDI", "vramcap run": "`vramcap run`"}


class Failure(Exception):
    pass


class Bench:
    """What all cells share: where the build is, and small helpers."""

    def __init__(self, prefix, work):
        self.prefix = prefix
        self.work = work
        self.tool = os.path.join(prefix, "bin", "vramcap")
        self.numbers = itertools.count(1)
        self.can_create = subprocess.run([self.tool, "help", "create"], capture_output=True,
                                         check=False).returncode == 0

    def folder(self):
        path = os.path.join(self.work, "cells", "%d" % next(self.numbers))
        os.makedirs(path)
        os.chmod(path, 0o1777)
        return path

    def run(self, *argv, **more):
        done = subprocess.run([self.tool, *argv], capture_output=True, text=True, check=False, **more)
        if done.returncode != 0:
            raise Failure("vramcap %s: %s" % (" ".join(argv), done.stderr.strip()))
        return done.stdout

    def host_ledger(self, path, ceiling_mib=None):
        """A ledger made on the host; with a ceiling only where `vramcap create` exists."""
        if ceiling_mib is not None or self.can_create:
            self.run("create", path, "--memory", str(ceiling_mib or CEILING_MIB), "--container", "test")
        else:
            self.run("run", "--ledger", path, "--", "/bin/true")
        os.chmod(path, 0o666)

    def base_env(self):
        return {"LD_LIBRARY_PATH": "/opt/test/lib/vramcap/sim", "VRAMCAP_SIM_STATE": "/dev/shm/card",
                "VRAMCAP_SIM_CARDS": str(CARD_MIB)}

    def base_mounts(self):
        return [(self.prefix, "/opt/test", ("ro",))]

    def library_mount(self):
        return (os.path.join(self.prefix, "lib", "libvramcap.so"), LIBRARY, ("ro",))

    def loader_mount(self):
        return (os.path.join(self.prefix, "lib", "vramcap", "ld.so.preload"), "/etc/ld.so.preload", ("ro",))

    def dump(self, path):
        return json.loads(self.run("dump", path, "--json"))


class Talk:
    """A started container: its lines, and its end."""

    def __init__(self, argv):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        self.out = b""

    def line(self):
        """The first line that pair prints."""
        end = time.monotonic() + CELL_SECONDS
        with selectors.DefaultSelector() as waiter:
            waiter.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.out:
                if not waiter.select(max(0, end - time.monotonic())):
                    self.process.kill()
                    raise Failure("nothing within %d s" % CELL_SECONDS)
                data = os.read(self.process.stdout.fileno(), 4096)
                if not data:
                    break
                self.out += data
        if b"\n" not in self.out:
            _, err = self.process.communicate(timeout=CELL_SECONDS)
            raise Failure("ended with %d: %s" % (self.process.returncode, err.decode().strip()[-400:]))
        return self.out.split(b"\n", 1)[0].decode()

    def end(self):
        """(status, standard error) after standard input was closed."""
        try:
            _, err = self.process.communicate(timeout=CELL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failure("does not end") from None
        return self.process.returncode, err.decode()


def words(line):
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def check_ledger(dump, charged_mib):
    gpus, processes = dump["gpus"], dump["processes"]
    alive = [p for p in processes if p["state"] == "alive"]
    if len(gpus) != 1 or gpus[0]["ceiling_bytes"] != CEILING_MIB << 20:
        raise Failure("the ledger's GPUs: %s" % gpus)
    if gpus[0]["charged_bytes"] != charged_mib << 20 or gpus[0]["refusals"] < 1:
        raise Failure("the ledger's charges and refusals: %s" % gpus[0])
    if len(alive) != 2 or sum(p["gpus"][0]["charged_bytes"] for p in alive) != charged_mib << 20:
        raise Failure("the ledger's processes: %s" % processes)
    for process in alive:
        with open("/proc/%d/comm" % process["host_pid"], encoding="utf-8") as f:
            if f.read().strip() != "exe":
                raise Failure("host pid %s is another process" % process["host_pid"])


def run_pair(command, ledger, capped=True):
    """Runs pair by this command; returns its words and what it wrote to standard error."""
    talk = Talk(command)
    said = words(talk.line())
    try:
        if capped:
            if said.get("second") != "CUDA_ERROR_OUT_OF_MEMORY" or said.get("then") != "CUDA_SUCCESS":
                raise Failure("the second was not held to the ceiling: %s" % said)
            if said.get("total") != str(CEILING_MIB):
                raise Failure("told of a card of %s MiB" % said.get("total"))
            check_ledger(dump_of(ledger), int(said["first"]) + CEILING_MIB // 8)
        elif said.get("second") != "CUDA_SUCCESS" or said.get("total") != str(CARD_MIB):
            raise Failure("there is a ceiling without one: %s" % said)
    finally:
        status, err = talk.end()
    if status != (0 if capped else 1):
        raise Failure("ended with %d: %s" % (status, err.strip()[-400:]))
    if capped and "vramcap: refused cuMemAlloc_v2 of 512.0 MiB" not in err:
        raise Failure("no line says why: %s" % err.strip()[-400:])
    return said, err


dump_of = None  # set by prepare(): reads a ledger on the host


def prepare(bench):
    global dump_of
    dump_of = bench.dump


def cell(bench, runtime, root, way):
    """One container. Returns what the table shows."""
    folder = bench.folder()
    ledger = os.path.join(folder, "ledger")
    pair = ["/opt/test/bin/pair", "--ceiling", str(CEILING_MIB)]
    limits = {"VRAMCAP_ENABLE": "1", "VRAMCAP_MEMORY_MIB": str(CEILING_MIB)}
    env, mounts, podman = bench.base_env(), bench.base_mounts(), []
    if way == "LD_PRELOAD":
        env.update(limits, LD_PRELOAD=LIBRARY, VRAMCAP_LEDGER=LEDGER)
        mounts += [bench.library_mount(), (folder, "/run/vramcap", ())]
    elif way == "ld.so.preload":
        env.update(limits)
        bench.host_ledger(ledger)
        mounts += [bench.library_mount(), bench.loader_mount(), (ledger, LEDGER, ("noexec",))]
    elif way == "CDI":
        if not runtime.has_cdi:
            return "–"
        bench.host_ledger(ledger)
        name = "cell-" + os.path.basename(folder)
        bench.run("cdi", "--memory", str(CEILING_MIB), "--container", name, "--ledger", ledger,
                  "--output", "/run/cdi/vramcap-%s.json" % name)
        podman = ["--device", "vramcap/ceiling=" + name]
    elif way == "vramcap run":
        mounts += [(folder, "/run/vramcap", ())]
        pair = ["/opt/test/bin/vramcap", "run", "--memory", str(CEILING_MIB), "--ledger", LEDGER, "--"] + pair
    box = Box(root, pair, env, mounts, podman=podman)
    run_pair(runtime.command(box), ledger, capped=way != "none")
    return "8192 MiB" if way == "none" else "held"


def all_cells(bench, runtimes, roots, workers=2):
    """{(root, runtime, way): text}, and the failures as lines."""
    jobs, table, failures = {}, {}, []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for root, folder in roots.items():
            for runtime in runtimes:
                for way in WAYS:
                    jobs[(root, runtime.name, way)] = pool.submit(cell, bench, runtime, folder, way)
        for key, job in jobs.items():
            try:
                table[key] = job.result()
            except (Failure, OSError, subprocess.SubprocessError, ValueError, KeyError) as why:
                table[key] = "FAILED"
                failures.append("%s, %s, %s: %s" % (*key, why))
    return table, failures


def lines(table, roots, runtimes):
    """The table as docs/platforms.md has it."""
    out = ["| root | runtime | " + " | ".join(TITLES[way] for way in WAYS) + " |",
           "| --- | --- |" + " --- |" * len(WAYS)]
    for root in roots:
        for runtime in runtimes:
            out.append("| %s | %s | " % (root, runtime) +
                       " | ".join(table.get((root, runtime, way), "not run") for way in WAYS) + " |")
    return out
