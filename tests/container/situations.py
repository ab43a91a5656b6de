"""What else happens in containers, each a real run: who gets the library, who does not, what is unharmed.

A row says what was observed for LD_PRELOAD in the environment and for the read-only mount onto
/etc/ld.so.preload; a row that needs what is not there (a root, a runtime, `vramcap create`) is left out and
said. Observations are words that the caller compares with docs/platforms.md, so a change either way is
noticed. "held" means what it means in the matrix.
"""
import os
import shutil
import subprocess

from matrix import CEILING_MIB, CELL_SECONDS, LEDGER, LIBRARY, Failure, Talk, run_pair, words
from runtimes import Box

PAIR = ["/opt/test/bin/pair", "--ceiling", str(CEILING_MIB)]
ASK = ["/opt/test/bin/pair", "--ask", "512"]
LIMITS = {"VRAMCAP_ENABLE": "1", "VRAMCAP_MEMORY_MIB": str(CEILING_MIB)}
MARK = b"""
#include <unistd.h>
__attribute__((constructor)) static void mark(void) { (void)!write(2, "the user's own\\n", 15); }
"""
HELLO = b'#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n'


class Missing(Exception):
    pass


class Place:
    """One situation in one way of injection: what its container is made of."""

    def __init__(self, bench, runtimes, roots, way):
        self.bench, self.runtimes, self.roots, self.way = bench, runtimes, roots, way
        self.folder = bench.folder()
        self.ledger = os.path.join(self.folder, "ledger")
        self.env = dict(bench.base_env(), **LIMITS)
        self.mounts = bench.base_mounts() + [bench.library_mount()]
        if way == "LD_PRELOAD":
            self.env.update(LD_PRELOAD=LIBRARY, VRAMCAP_LEDGER=LEDGER)
            self.mounts.append((self.folder, "/run/vramcap", ()))
        else:
            bench.host_ledger(self.ledger)
            self.mounts += [bench.loader_mount(), (self.ledger, LEDGER, ("noexec", "nosuid", "nodev"))]

    def runtime(self, name):
        if name not in self.runtimes:
            raise Missing("no " + name)
        return self.runtimes[name]

    def root(self, name="bookworm"):
        if name not in self.roots:
            raise Missing("no root of " + name)
        return self.roots[name]

    def replace_library(self, host):
        self.mounts = [m for m in self.mounts if m[1] != LIBRARY] + [(host, LIBRARY, ("ro",))]

    def box(self, argv, **more):
        return Box(self.root(), argv, dict(self.env, **more.pop("env", {})), self.mounts, **more)

    def output(self, box, runtime="bwrap"):
        return subprocess.run(self.runtime(runtime).command(box), capture_output=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=CELL_SECONDS)

    def held(self, box, runtime="bwrap"):
        return run_pair(self.runtime(runtime).command(box), self.ledger)

    def asked(self, argv):
        """The answer of one more process, started by this command, beside a running pair."""
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=CELL_SECONDS,
                              stdin=subprocess.DEVNULL)
        answer = words(done.stdout).get("ask")
        if answer == "CUDA_ERROR_OUT_OF_MEMORY":
            return "held"
        if answer == "CUDA_SUCCESS":
            return "**not held**"
        raise Failure("%s: %s" % (done.stdout.strip(), done.stderr.strip()[-300:]))


def pair_verdict(place, box, runtime="bwrap"):
    """"held" or "not held", and what was written to standard error; anything between is a failure."""
    talk = Talk(place.runtime(runtime).command(box))
    said = words(talk.line())
    _, err = talk.end()
    if said.get("second") == "CUDA_ERROR_OUT_OF_MEMORY" and said.get("total") == str(CEILING_MIB):
        return "held", err
    if said.get("second") == "CUDA_SUCCESS":
        return "**not held**", err
    raise Failure("neither held nor free: %s" % said)


def compiled(place, compiler, text, *options):
    if shutil.which(compiler) is None:
        raise Missing("no " + compiler)
    path = os.path.join(place.folder, "program")
    subprocess.run([compiler, "-x", "c", "-", "-o", path, *options], input=text, check=True)
    return path


def other_uids(place):
    place.held(place.box(PAIR + ["--second-uid", "1000"]))
    return "held"


def read_only_root(place):
    place.held(place.box(PAIR, read_only=True))
    return "held"


def default_seccomp(place):
    said, _ = place.held(place.box(PAIR), "podman")
    if said["seccomp"] != "2":
        raise Failure("podman's processes have no seccomp filter: %s" % said)
    return "held"


def mapped_uids(place):
    place.held(place.box(PAIR, first_uid=100000), "runc")
    return "held"


def podman_exec(place, own_environment):
    podman = place.runtime("podman")
    name = "exec-" + os.path.basename(place.folder)
    box = place.box(PAIR, podman=["--name", name])
    talk = Talk(podman.command(box))
    try:
        talk.line()
        argv = podman.base() + ["exec", name]
        if own_environment:  # what a login shell of ssh or su makes of it
            argv += ["/usr/bin/env", "-i"] + ["%s=%s" % pair for pair in place.bench.base_env().items()]
        return place.asked(argv + ASK)
    finally:
        talk.end()


def exec_with_the_containers_environment(place):
    return podman_exec(place, False)


def exec_with_an_empty_environment(place):
    if place.way != "LD_PRELOAD" and not place.bench.can_create:
        raise Missing("vramcap create, which puts a ceiling into a host's ledger")
    return podman_exec(place, True)


def setuid_program(place):
    place.root()
    program = os.path.join(place.folder, "pair")
    shutil.copy(os.path.join(place.bench.prefix, "bin", "pair"), program)
    os.chmod(program, 0o4755)
    sim = os.path.join(place.bench.prefix, "lib", "vramcap", "sim", "libcuda.so.1")
    place.mounts += [(program, "/opt/pair", ()), (sim, "/usr/lib/x86_64-linux-gnu/libcuda.so.1", ("ro",))]
    return pair_verdict(place, place.box(["/opt/pair"] + PAIR[1:], uid=1000), "podman")[0]


def users_own_preload(place):
    own = compiled(place, "gcc", MARK, "-shared", "-fPIC")
    place.mounts.append((own, "/opt/own.so", ("ro",)))
    preload = "/opt/own.so" + (" " + LIBRARY if place.way == "LD_PRELOAD" else "")
    _, err = place.held(place.box(PAIR, env={"LD_PRELOAD": preload}))
    if "the user's own" not in err:
        raise Failure("the user's own library is not there: %s" % err)
    return "both load" if place.way != "LD_PRELOAD" else "both load, if the user names both"


def musl_program(place):
    program = compiled(place, "musl-gcc", HELLO)
    loader = os.path.realpath("/lib/ld-musl-x86_64.so.1")
    if not os.path.exists(loader):
        raise Missing("no musl loader")
    place.mounts += [(program, "/opt/hello", ("ro",)), (loader, "/lib/ld-musl-x86_64.so.1", ("ro",))]
    done = place.output(place.box(["/opt/hello"]))
    if done.returncode == 0 and done.stdout == b"hello\n" and done.stderr == b"":
        return "unharmed"
    return "**dies** (%d)" % done.returncode


def removed_inside(place):
    """What a root of the container can do to get rid of it."""
    place.mounts = [m for m in place.mounts if m[1] != "/opt/test"]
    del place.env["LD_LIBRARY_PATH"]
    if place.way == "LD_PRELOAD":
        done = place.output(place.box(["/bin/sh", "-c", "unset LD_PRELOAD; grep -c libvramcap /proc/self/maps"]))
        return "**yes**: a variable" if done.stdout == b"0\n" else "?"
    script = ("rm -f /etc/ld.so.preload; mv /etc/ld.so.preload /etc/x; (: >/etc/ld.so.preload); "
              "umount /etc/ld.so.preload; ln -sf /dev/null /etc/ld.so.preload; "
              "rm -f %s; exec grep -c libvramcap /proc/self/maps" % LIBRARY)
    done = place.output(place.box(["/bin/sh", "-c", script]), "podman")
    if int(done.stdout or b"0") == 0:
        raise Failure("gone: %s" % done.stderr.decode()[-400:])
    return "no"


def missing_library(place):
    place.replace_library("/dev/null")
    verdict, err = pair_verdict(place, place.box(PAIR))
    if "cannot be preloaded" not in err:
        raise Failure("the loader says nothing: %s" % err)
    return verdict + ", the loader's line"


def library_on_noexec(place):
    folder = os.path.join(place.folder, "noexec")
    os.mkdir(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,mode=755", "tmpfs", folder], check=True)
    library = os.path.join(folder, "libvramcap.so")
    shutil.copy(place.bench.library_mount()[0], library)
    place.replace_library(library)
    try:
        verdict, err = pair_verdict(place, place.box(PAIR))
    finally:
        subprocess.run(["umount", "-l", folder], check=False)
    if "cannot be preloaded" not in err:
        raise Failure("the loader says nothing: %s" % err)
    return verdict + ", the loader's line"


def noexec_ledger(place):
    if place.way == "LD_PRELOAD":
        place.mounts = [m for m in place.mounts if m[1] != "/run/vramcap"]
        place.mounts.append((place.folder, "/run/vramcap", ("noexec", "nosuid", "nodev")))
    place.held(place.box(PAIR), "runc")
    return "held"


def shared_dev_shm(place):
    """Two containers, one /dev/shm, no ledger named: each has a ceiling of its own."""
    if place.way != "LD_PRELOAD":
        return "as given by the host"
    shared = os.path.join(place.folder, "shm")
    os.mkdir(shared)
    os.chmod(shared, 0o1777)
    del place.env["VRAMCAP_LEDGER"]
    place.env["VRAMCAP_SIM_STATE"] = "/run/vramcap/card"
    place.mounts.append((shared, "/dev/shm", ()))
    runtime = place.runtime("runc")
    talks = [Talk(runtime.command(place.box(PAIR))) for _ in range(2)]
    try:
        for said in [words(talk.line()) for talk in talks]:
            if said.get("first") != "768" or said.get("second") != "CUDA_ERROR_OUT_OF_MEMORY":
                raise Failure("one of two containers: %s" % said)
        files = [name for name in os.listdir(shared) if name.startswith("vramcap-")]
        if len(files) != 2:
            raise Failure("ledgers in the shared folder: %s" % files)
    finally:
        for talk in talks:
            talk.end()
    return "held, each by its own"


SITUATIONS = (
    ("two UIDs in one container", other_uids),
    ("read-only root", read_only_root),
    ("default seccomp filter (podman)", default_seccomp),
    ("UIDs mapped (runc, a user namespace)", mapped_uids),
    ("ledger on a `noexec,nosuid,nodev` mount", noexec_ledger),
    ("two containers, one `/dev/shm`", shared_dev_shm),
    ("`podman exec`", exec_with_the_containers_environment),
    ("a shell with an empty environment (ssh, su)", exec_with_an_empty_environment),
    ("a setuid program", setuid_program),
    ("the user's own `LD_PRELOAD`", users_own_preload),
    ("a program linked with musl", musl_program),
    ("can be removed inside, by root", removed_inside),
    ("library missing or empty", missing_library),
    ("library on a `noexec` mount", library_on_noexec),
)


def run(bench, runtimes, roots):
    """(table lines, failures, what was left out)."""
    out = ["| situation | `LD_PRELOAD` | `/etc/ld.so.preload` |", "| --- | --- | --- |"]
    failures, left = [], []
    for title, function in SITUATIONS:
        seen = []
        for way in ("LD_PRELOAD", "ld.so.preload"):
            try:
                seen.append(function(Place(bench, runtimes, roots, way)))
            except Missing as why:
                seen.append("not run")
                left.append("%s, %s: %s" % (title, way, why))
            except (Failure, OSError, subprocess.SubprocessError, ValueError, KeyError) as why:
                seen.append("FAILED")
                failures.append("%s, %s: %s" % (title, way, why))
        out.append("| %s | %s | %s |" % (title, *seen))
    return out, failures, left
