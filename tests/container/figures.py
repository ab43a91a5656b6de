"""What the library weighs: sizes, relocations, symbol versions, and what it adds to the start of a program.

Times are those of the machine that ran this, in microseconds of processor time; they are written down, and
bounded generously, never compared. Sizes are the compiler's as much as ours, so the document names it.
"""
import os
import re
import statistics
import subprocess

STARTS = 1000
BOUND_US = 450  # ten times the target of 45
SAME_COMPILER = 50  # sizes in the document are right to a fiftieth; by another compiler to a tenth
OTHER_COMPILER = 10


def output(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def starts(environments):
    """[(microseconds of processor time, page faults)] of a start of /bin/true in each environment, from exec
    to exit: the quietest twentieth of many starts, taken in turns, and the usual number of faults. (Elapsed
    time says more about a machine's other work.)"""
    times, faults = [[] for _ in environments], [[] for _ in environments]
    for _ in range(STARTS):
        for i, env in enumerate(environments):
            pid = os.posix_spawn("/bin/true", ["true"], env)
            used = os.wait4(pid, 0)[2]
            times[i].append((used.ru_utime + used.ru_stime) * 1e6)
            faults[i].append(used.ru_minflt)
    return [(statistics.quantiles(t, n=20)[0], statistics.median(f)) for t, f in zip(times, faults)]


def newest(path, what):
    versions = set(re.findall(what + r"_([0-9.]+)", output("objdump", "-T", path)))
    return max(versions, key=lambda v: [int(n) for n in v.split(".")])


def newest_line(path):
    """The line of objdump -T with the newest version (the first of them by name)."""
    version = newest(path, "GLIBC")
    lines = [line for line in output("objdump", "-T", path).splitlines() if "GLIBC_%s)" % version in line]
    return " ".join(sorted(lines, key=lambda line: line.split()[-1])[0].split())


def measure(bench, roots):
    library = os.path.join(bench.prefix, "lib", "libvramcap.so")
    stripped = os.path.join(bench.work, "stripped.so")
    subprocess.run(["strip", "--strip-unneeded", "-o", stripped, library], check=True)
    relocations = output("readelf", "-rW", stripped)
    total = len(re.findall(r"^[0-9a-f]{12,16} ", relocations, re.M))
    relative = len(re.findall(r"R_X86_64_RELATIVE", relocations))
    names = len(re.findall(r"R_X86_64_(?:GLOB_DAT|JUMP_SLOT|64|TPOFF64)", relocations))
    empty = os.path.join(bench.work, "empty.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", empty], check=True)
    (bare, none), (with_it, ours), (_, least) = starts(
        [{"PATH": "/bin"}, {"PATH": "/bin", "LD_PRELOAD": stripped}, {"PATH": "/bin", "LD_PRELOAD": empty}])
    added = with_it - bare
    failures = []
    if added > BOUND_US:
        failures.append("/bin/true starts %.0f us later" % added)
    if ours > least + 2:
        failures.append("/bin/true has %d page faults more, with an empty library %d" % (ours - none, least - none))
    rows = ["| what | figure |", "| --- | --- |",
            "| compiler | %s |" % output("gcc", "--version").splitlines()[0],
            "| `libvramcap.so`, stripped | %d KiB |" % (os.path.getsize(stripped) // 1024),
            "| relocations at load | %d (%d relative, %d by name) |" % (total, relative, names),
            "| newest symbol version it needs | GLIBC_%s |" % newest(library, "GLIBC"),
            "| that line of `objdump -T` | `%s` |" % newest_line(library),
            "| newest symbol version of `vramcap` in the packages | GLIBC_%s |" % newest(bench.tool, "GLIBC"),
            "| `/bin/true`, bare | %.0f us |" % bare,
            "| `/bin/true`, with the library | %.0f us |" % with_it,
            "| added (target: 45) | %.0f us |" % added,
            "| page faults that it adds; that an empty library adds | %d; %d |" % (ours - none, least - none)]
    for package in sorted(packages(bench)):
        rows.append("| `%s` | %d KiB |" % (re.sub(r"-?_?\d+\.\d+\.\d+", "", os.path.basename(package), count=1),
                                            os.path.getsize(package) // 1024))
    return rows, failures


def packages(bench):
    folder = os.path.join(os.path.dirname(os.path.dirname(bench.prefix)), "packages")
    if not os.path.isdir(folder):
        return []
    return [os.path.join(folder, name) for name in os.listdir(folder)
            if name.endswith((".deb", ".rpm", ".tar.gz"))]


def numbers(lines):
    found = {}
    for line in lines:
        match = re.match(r"\| (.*?) \| (\d+)( KiB| \(|$)", line)
        if match:
            found[match.group(1)] = int(match.group(2))
    return found


def compare(said, lines):
    """Sizes nearly (a fiftieth, or a tenth if another compiler made them); versions to the letter."""
    said_lines = said.splitlines()
    before, now = numbers(said_lines), numbers(lines)
    compiler = [line for line in lines if line.startswith("| compiler |")]
    part = SAME_COMPILER if compiler[0] in said_lines else OTHER_COMPILER
    out = ["%s: the document says %d, it is %d (--only figures --update writes it anew)" % (name, before[name], value)
           for name, value in now.items() if name in before and abs(value - before[name]) * part > before[name]]
    out += ["the document has no '%s'" % name for name in now if name not in before]
    out += ["the document has no '%s'" % line for line in lines if "GLIBC" in line and line not in said_lines]
    return out
