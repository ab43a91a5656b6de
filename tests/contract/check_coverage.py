#!/usr/bin/env python3
"""Does preload/cuda_api.def cover the driver's API?

The denominator is the union of the names in CUPTI's list of driver calls, the
exports of the toolkit's stub libcuda.so and the OpenGL, EGL and VDPAU names,
which only the typedef headers tell. Three lists below decide about a name:

  FAMILIES      needs a row for every ABI that exists
  NO_ROW        needs none: it neither takes nor returns nor reports memory
  NOT_EXPORTED  in CUPTI's list, but no function of a Linux driver

A name that none of them knows is an error, so that a new family cannot slip by;
so is one that two of them claim. Also checked: that every row's symbol exists,
that `since` is the number of its PFN_ typedef, that *_STREAM and *_PTDS say
truly which twin there is, and that no symbol has two rows.

The table was checked against CUDA 13.0 (PINNED), with which the library is
built, and 13.5 (NEWEST). Rows newer than the header are let be; names that a
header beyond NEWEST brings are errors too, or warnings with --warn-newer.

Exit: 0 covered, 1 findings, 2 usage, 77 a header or library is not there (1 if
VRAMCAP_MUST_WORK=1).
"""

import argparse
import os
import re
import struct
import sys

PINNED_CUDA_VERSION = 13000  # CUDA_VERSION in cuda.h
PINNED_CBID_SIZE = 807  # CUPTI_DRIVER_TRACE_CBID_SIZE
NEWEST_CUDA_VERSION = 13050
NEWEST_CBID_SIZE = 877
TWINS_SINCE = 7000  # no per-thread twin is older than CUDA 7.0

# Patterns match a whole base name: no ABI suffix, no _ptsz or _ptds.
FAMILIES = {
    "start and resolution": r"cuInit|cuGetProcAddress|cuGetExportTable",
    "memory": r"cuMem[A-Z]\w*|cuPointer[GS]etAttributes?|cuStreamAttachMem\w*",
    "memory of a device": r"cuDevice\w*Mem([A-Z]\w*)?",
    "multicast": r"cuMulticast\w+",
    "logical endpoints": r"cuLogicalEndpoint\w+",
    "arrays": r"cu(Mipmapped)?Array\w+",
    "inter-process": r"cuIpc\w+",
    "external memory": r"cuExternalMemory\w+|cu(Import|Destroy)External\w+",
    "graphics interop": r"cu(Graphics|GL|EGL|VDPAU)\w+",
    "graphs": r"cuGraph(?!ics)\w+|cuUserObject\w+",
    "contexts": r"cuCtx\w+|cuDevicePrimaryCtx\w+",
    "green contexts": r"cuGreenCtx\w+|cuStreamGet(GreenCtx|DevResource)|cuDev(Sm)?Resource\w+|cuDeviceGetDevResource",
    "device reports": r"cuDeviceGet(Attribute|Properties)|cuDevice(Unr|R)egisterAsyncNotification",
    "modules": r"cu(Module|Library|Link)\w+|cuFunc(Load|IsLoaded|GetModule)",
    "streams and events": r"cuStream(Create|CreateWithPriority|Destroy|Synchronize)|cuEvent(Create|Destroy|Synchronize)",
    "checkpoint": r"cuCheckpoint\w+",
}

NO_ROW = {
    "copy and set": r"cuMemcpy\w*|cuMemset\w+|cuFabricCpyBatchAsync",
    "launch": r"cuLaunch(Grid|GridAsync|Kernel|KernelEx|HostFunc|CooperativeKernel|CooperativeKernelMultiDevice)?"
    r"|cuParamSet\w+|cuOccupancy\w+",
    "attributes of functions": r"cuFuncGet(Attribute|Name|ParamCount|ParamInfo)"
    r"|cuFuncSet(Attribute|BlockShape|CacheConfig|SharedMemConfig|SharedSize)"
    r"|cuKernelGet(Attribute|Function|Library|Name|ParamCount|ParamInfo)|cuKernelSet(Attribute|CacheConfig)",
    "textures and surfaces, which refer to memory": r"cuTex(Ref|Object)\w+|cuSurf(Ref|Object)\w+|cuTensorMap\w+",
    "events": r"cuEvent(ElapsedTime|Query|Record|RecordWithFlags|CreateFromEGLSync)",
    "streams": r"cuStream(AddCallback|BatchMemOp|CopyAttributes|IsCapturing|Query|SetAttribute|WaitEvent)"
    r"|cuStream(BeginCapture|BeginCaptureToGraph|BeginRecaptureToGraph|EndCapture|UpdateCaptureDependencies)"
    r"|cuStream(Begin|End)CaptureToCig"
    r"|cuStream(Wait|Write)Value(32|64)|cuThreadExchangeStreamCaptureMode"
    r"|cuStreamGet(Attribute|CaptureInfo|Ctx|Device|Flags|Id|Priority)",
    "semaphores": r"cu(Signal|Wait)ExternalSemaphoresAsync",
    "identity and abilities of a device": r"cuDeviceGet(|ByPCIBusId|Count|Luid|Name|PCIBusId|Uuid)"
    r"|cuDeviceGet(ExecAffinitySupport|HostAtomicCapabilities|NvSciSyncAttributes|P2PAtomicCapabilities)"
    r"|cuDeviceGet(P2PAttribute|Texture1DLinearMaxWidth)|cuDevice(CanAccessPeer|ComputeCapability)"
    r"|cuDeviceGet(CliqueCount|CliqueInfo|FabricClusterUuid)",
    "versions and errors": r"cuDriverGet(Version|GpuCodeIsaVersion)|cuGetError(Name|String)",
    "tools": r"cuProfiler\w+|cuLogs\w+|cuCoredump\w+|cuFlushGPUDirectRDMAWrites",
}

# Patterns match a whole symbol: the bare name may be exported where a suffixed one is not.
NOT_EXPORTED = {
    "64-bit names before 3.2": r"cu64\w+",
    "numbers that CUPTI names for nobody": r"cuda\d+",
    "Windows": r"cu(Graphics)?D3D(9|10|11)\w+|cuWGLGetDevice",
    "consoles": r"cuNVN\w+|cuEventCreateFromNVNSync",
    "never public": r"cuMemHostAlloc_v2|cuMemcpy_v2|cuMemPeer(Register|Unregister|GetDevicePointer)"
    r"|cuBinaryFree|cuCompilePtx|cuNNSetAllocator|cuMultiKernelCooperativeDomain(Create|Destroy)"
    r"|cuSemaphore(Create|Destroy|Export)|cuStreamCreateForCaptureToCig|cuStreamSetFlags(_ptsz)?"
    r"|cuSurfRef(Create|Destroy|GetFormat|SetFormat)",
}

# Exported by the real library only, so looked for in the typedefs and not in the stub.
INTEROP = re.compile(r"cu(GL|EGL|VDPAU|Graphics(GL|EGL|VDPAU))\w+|cuGraphicsResourceGetMappedEglFrame|cuEventCreateFromEGLSync")

TYPEDEF_HEADERS = ("cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h")
SYMBOL = re.compile(r"(cu\w+?)(_v\d+)?(_ptsz|_ptds)?")
ROW = re.compile(r"(HOOK|PASS|GAP)(_STREAM|_PTDS)?\(\s*(cu\w+)\s*,\s*(\d+)\s*,\s*(_v\d+)?\s*,\s*(\w+|\"[^\"]+\")\s*\)")
TWIN_OF_KIND = {None: "", "_STREAM": "_ptsz", "_PTDS": "_ptds"}


class Row:
    def __init__(self, line, kind, twin, base, since, suffix, note):
        self.line, self.kind, self.twin, self.base, self.since = line, kind, twin, base, since
        self.suffix, self.note = suffix, note
        self.symbol = base + suffix


class Facts:
    """What the headers and the stub say; `stub` and `typedefs` may be None."""

    def __init__(self, cbid_names, cbid_size, stub, typedefs, cuda_version):
        self.cbid_names, self.cbid_size, self.stub = cbid_names, cbid_size, stub
        self.typedefs, self.cuda_version = typedefs, cuda_version

    def newer(self):
        return self.cbid_size > NEWEST_CBID_SIZE or (self.cuda_version or 0) // 10 * 10 > NEWEST_CUDA_VERSION

    def pinned(self):
        return self.cbid_size == PINNED_CBID_SIZE and (self.cuda_version or PINNED_CUDA_VERSION) == PINNED_CUDA_VERSION

    def knows(self, row):
        """Is the header new enough to have this row's symbol?  CUPTI's list may be of another version."""
        version = self.cuda_version or (PINNED_CUDA_VERSION if self.cbid_size <= PINNED_CBID_SIZE else NEWEST_CUDA_VERSION)
        return row.since <= version

    def older(self):
        return self.cbid_size < PINNED_CBID_SIZE or (self.cuda_version or PINNED_CUDA_VERSION) < PINNED_CUDA_VERSION

    def interop_symbols(self):
        """Symbols of the GL, EGL and VDPAU typedefs, by the order of a base's versions."""
        symbols = set()
        for base, versions in (self.typedefs or {}).items():
            if not INTEROP.fullmatch(base):
                continue
            plain = sorted(since for since, twin in versions if not twin)
            for index, _ in enumerate(plain):
                symbols.add(base + abi_suffix(index))
            # A twin is declared for the newest ABI only.
            symbols.update(base + abi_suffix(len(plain) - 1) + twin for _, twin in versions if twin)
        return symbols


def abi_suffix(index):
    return "" if index == 0 else "_v%d" % (index + 1)


def parse_table(text):
    """The rows of the table and what is wrong with its lines."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    rows, errors = [], []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        m = ROW.fullmatch(line)
        if not m:
            errors.append("line %d is no row: %s" % (number, line))
            continue
        kind, twin, base, since, suffix, note = m.groups()
        if (kind == "HOOK") == note.startswith('"'):
            errors.append("line %d: HOOK takes a rule, PASS and GAP a reason in quotes: %s" % (number, line))
        if twin == "_PTDS" and kind != "PASS":
            errors.append("line %d: there is no %s_PTDS" % (number, kind))
        rows.append(Row(number, kind, TWIN_OF_KIND[twin], base, int(since), suffix or "", note))
    return rows, errors


def parse_cbid(text):
    names = set(re.findall(r"\bCUPTI_DRIVER_TRACE_CBID_(cu\w+)", text))
    size = re.search(r"\bCUPTI_DRIVER_TRACE_CBID_SIZE\s*=\s*(\d+)", text)
    return names, int(size.group(1)) if size else 0


def parse_typedefs(directory):
    """{base: {(since, twin)}} and CUDA_VERSION, from the headers of one directory."""
    typedefs = {}
    for header in TYPEDEF_HEADERS:
        path = os.path.join(directory, header)
        if header != "cudaTypedefs.h" and not os.path.exists(path):
            continue
        for base, since, twin in re.findall(r"\(\s*CUDAAPI\s*\*\s*PFN_(\w+?)_v(\d+)(_ptsz|_ptds)?\s*\)", read(path)):
            typedefs.setdefault(base, set()).add((int(since), twin))
    version = re.search(r"^#define\s+CUDA_VERSION\s+(\d+)", read(os.path.join(directory, "cuda.h")), re.M)
    return typedefs, int(version.group(1)) if version else None


def elf_exports(data):
    """Names of the defined symbols in .dynsym of a 64-bit little-endian ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    section_offset = struct.unpack_from("<Q", data, 0x28)[0]
    section_size, section_count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * section_size) for i in range(section_count)]
    names = set()
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM
            continue
        strings = sections[section[6]][4]
        for offset in range(section[4], section[4] + section[5], 24):
            name, _, _, index = struct.unpack_from("<IBBH", data, offset)
            if index:  # SHN_UNDEF is 0
                end = data.index(b"\0", strings + name)
                names.add(data[strings + name : end].decode("ascii", "replace"))
    return {name for name in names if name.startswith("cu") and not name.startswith("cudbg")}


def claims(rules, name):
    return [reason for reason, pattern in rules.items() if re.fullmatch(pattern, name)]


def check(text, facts, warn_newer=False):
    """(errors, warnings), both lists of lines."""
    rows, errors = parse_table(text)
    header = []  # findings that a newer or older header may explain
    interop = facts.interop_symbols()
    public = facts.stub | interop if facts.stub is not None else None
    names = facts.cbid_names | (facts.stub or set()) | interop

    seen = {}
    for row in rows:
        for key in (row.symbol, (row.base, row.since)):
            if key in seen:
                errors.append("line %d: second row for %s (the first is on line %d)" % (row.line, row.symbol, seen[key]))
                break
        else:
            seen[row.symbol] = seen[(row.base, row.since)] = row.line
        if not claims(FAMILIES, row.base):
            errors.append("line %d: %s has a row, but no family claims it" % (row.line, row.base))

    for row in rows:
        if not facts.knows(row) and row.symbol not in names:
            continue
        exists = row.symbol in (names if public is None or (INTEROP.fullmatch(row.base) and not interop) else public)
        if not exists:
            header.append("%s (line %d) does not exist" % (row.symbol, row.line))
            continue
        twin = next((t for t in ("_ptsz", "_ptds") if row.symbol + t in names), "")
        if twin != row.twin:
            header.append(
                "%s (line %d): the table says %s, the driver has %s"
                % (row.symbol, row.line, row.twin or "no twin", row.symbol + twin if twin else "no twin")
            )
        if facts.typedefs is None or (INTEROP.fullmatch(row.base) and not interop):
            continue
        versions = facts.typedefs.get(row.base, set())
        plain = sorted(since for since, t in versions if not t)
        if row.since not in plain:
            header.append("%s (line %d): there is no PFN_%s_v%d" % (row.symbol, row.line, row.base, row.since))
        elif abi_suffix(plain.index(row.since)) != row.suffix:
            want = row.base + abi_suffix(plain.index(row.since))
            header.append("%s (line %d): version %d is %s" % (row.symbol, row.line, row.since, want))
        if row.twin and (max(row.since, TWINS_SINCE), row.twin) not in versions:
            header.append(
                "%s (line %d): there is no PFN_%s_v%d%s"
                % (row.symbol, row.line, row.base, max(row.since, TWINS_SINCE), row.twin)
            )

    covered = {row.symbol + twin for row in rows for twin in {"", row.twin}}
    for name in sorted(names):
        if claims(NOT_EXPORTED, name):
            if facts.stub is not None and name in facts.stub:
                header.append("%s is listed as not exported, and is exported" % name)
            continue
        base = SYMBOL.fullmatch(name).group(1)
        family, no_row = claims(FAMILIES, base), claims(NO_ROW, base)
        if len(family) + len(no_row) > 1:
            header.append("%s is claimed more than once: %s" % (name, ", ".join(family + no_row)))
        elif not family and not no_row:
            header.append("%s belongs to no known family: it needs a row, or a reason why not" % name)
        elif family and name not in covered:
            header.append("%s (%s) has no row" % (name, family[0]))

    if (facts.newer() and warn_newer) or (facts.older() and not facts.newer()):
        return errors, header
    return errors + header, []


def self_test(text, facts):
    """Breaks the table and the headers one way at a time and sees the check go red."""
    failures, ran = [], 0

    def expect(what, errors, word):
        nonlocal ran
        ran += 1
        if not any(word in error for error in errors):
            failures.append("%s: not noticed (%s)" % (what, errors[:3]))

    def edited(pattern, replacement):
        changed, count = re.subn(pattern, replacement, text, count=1, flags=re.M)
        if count != 1:
            failures.append("nothing to edit for %s" % pattern)
        return check(changed, facts)[0]

    def with_facts(names=(), stub=(), size=None):
        return Facts(
            facts.cbid_names | set(names),
            size or facts.cbid_size,
            None if facts.stub is None else facts.stub | set(stub),
            facts.typedefs,
            facts.cuda_version,
        )

    errors = check(text, facts)[0]
    if errors:
        return ["the table itself is not clean: %s" % errors[:3]], 1
    expect("a dropped GAP row", edited(r"^GAP\(cuCheckpointProcessRestore,.*\n", ""), "cuCheckpointProcessRestore (checkpoint) has no row")
    expect("a dropped HOOK row", edited(r"^HOOK\(cuMemAlloc, 3020.*\n", ""), "cuMemAlloc_v2 (memory) has no row")
    expect("a dropped twin row", edited(r"^HOOK_STREAM\(cuMemFreeAsync.*\n", ""), "cuMemFreeAsync_ptsz (memory) has no row")
    expect("a bogus name", edited(r"^GAP\(cuCheckpointProcessRestore,", "GAP(cuCheckpointProcessBogus,"), "cuCheckpointProcessBogus (line")
    expect("a bogus ABI", edited(r"^GAP\(cuCheckpointProcessRestore, 12080, ,", "GAP(cuCheckpointProcessRestore, 12080, _v7,"), "cuCheckpointProcessRestore_v7 (line")
    expect("a duplicate row", edited(r"^(GAP\(cuCheckpointProcessRestore,.*\n)", r"\1\1"), "second row for cuCheckpointProcessRestore")
    expect("a lost twin", edited(r"^HOOK_STREAM\(cuMemFreeAsync", "HOOK(cuMemFreeAsync"), "the table says no twin")
    expect("an invented twin", edited(r"^GAP\(cuCheckpointProcessRestore,", "GAP_STREAM(cuCheckpointProcessRestore,"), "the driver has no twin")
    expect("a wrong twin", edited(r"^GAP_STREAM\(cuMemMapArrayAsync,", "PASS_PTDS(cuMemMapArrayAsync,"), "the table says _ptds")
    expect("an empty reason", edited(r'^(GAP\(cuCheckpointProcessRestore,.*)".*"\)', r'\1"")'), "is no row")
    expect("a rule in quotes", edited(r"^(HOOK\(cuInit,.*)INIT\)", r'\1"INIT")'), "HOOK takes a rule")
    expect("a reason without quotes", edited(r'^(GAP\(cuCheckpointProcessRestore,.*)".*"\)', r"\1lost)"), "HOOK takes a rule")
    expect("two rows on a line", edited(r"^(GAP\(cuCheckpointProcessRestore,.*)\n", r"\1 "), "is no row")
    expect("a row outside the families", edited(r"^GAP\(cuCheckpointProcessRestore,", "GAP(cuLaunchKernel,"), "no family claims it")
    expect("a new name", check(text, with_facts({"cuMemFrobnicate"}))[0], "cuMemFrobnicate (memory) has no row")
    expect("a new ABI", check(text, with_facts({"cuMemCreate_v2"}))[0], "cuMemCreate_v2 (memory) has no row")
    expect("a new family", check(text, with_facts({"cuFrobnicate"}))[0], "cuFrobnicate belongs to no known family")
    bogus = edited(r"^PASS\(cuMemGetLocationInfo,", "PASS(cuMemGetLocationBogus,")
    if not facts.pinned():
        expect("a bogus name of a newer CUDA", bogus, "cuMemGetLocationBogus (line")
    elif bogus:
        failures.append("a row newer than the header is an error: %s" % bogus)
    newer = with_facts({"cuFrobnicate"}, size=NEWEST_CBID_SIZE + 1)
    expect("a newer header", check(text, newer)[0], "cuFrobnicate")
    expect("a newer header, --warn-newer", check(text, newer, True)[1], "cuFrobnicate")
    if check(text, newer, True)[0]:
        failures.append("--warn-newer: a name of a newer header is still an error")
    expect("--warn-newer with the pinned header", check(text, with_facts({"cuFrobnicate"}), True)[0], "cuFrobnicate")
    if facts.stub is not None:
        expect("a private name exported", check(text, with_facts(stub={"cuMemPeerRegister"}))[0], "and is exported")
        expect("an export CUPTI lacks", check(text, with_facts(stub={"cuMemNew"}))[0], "cuMemNew (memory) has no row")
    if facts.typedefs is not None:
        expect("a wrong since", edited(r"^GAP\(cuCheckpointProcessRestore, 12080", "GAP(cuCheckpointProcessRestore, 12070"), "no PFN_cuCheckpointProcessRestore_v12070")
        wrong = edited(r"^HOOK\(cuCtxCreate, 11040, _v3", "HOOK(cuCtxCreate, 12050, _v3")
        expect("another ABI's since", wrong, "is cuCtxCreate_v4")
    return failures, ran


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def skip(message):
    print("skipped: " + message, file=sys.stderr)
    return 1 if os.environ.get("VRAMCAP_MUST_WORK") == "1" else 77


def main():
    parser = argparse.ArgumentParser(description="check that preload/cuda_api.def covers the driver's API")
    parser.add_argument("--def", dest="table", required=True, help="preload/cuda_api.def")
    parser.add_argument("--cbid", required=True, help="cupti_driver_cbid.h")
    parser.add_argument("--stub", help="the toolkit's stub libcuda.so")
    parser.add_argument("--typedefs", help="directory of cuda.h and cudaTypedefs.h")
    parser.add_argument("--warn-newer", action="store_true", help="a header newer than the pinned one gives warnings")
    parser.add_argument("--self-test", action="store_true", help="see the check fail on broken input")
    options = parser.parse_args()

    text = read(options.table)
    needed = [options.cbid, options.stub]
    if options.typedefs is not None:
        needed += [os.path.join(options.typedefs, name) for name in ("cuda.h", "cudaTypedefs.h")]
    for path in needed:
        if path is not None and not os.path.exists(path):
            return skip("%s is not there" % path)

    cbid_names, cbid_size = parse_cbid(read(options.cbid))
    stub = None
    if options.stub is not None:
        with open(options.stub, "rb") as file:
            stub = elf_exports(file.read())
    typedefs, cuda_version = parse_typedefs(options.typedefs) if options.typedefs is not None else (None, None)
    if not cbid_names or stub == set() or typedefs == {}:
        print("error: no names found in a header or the stub", file=sys.stderr)
        return 1
    facts = Facts(cbid_names, cbid_size, stub, typedefs, cuda_version)

    if options.self_test:
        if not facts.pinned() and (facts.newer() or facts.cbid_size < NEWEST_CBID_SIZE):
            return skip("the self-test needs CUDA %d or %d" % (PINNED_CUDA_VERSION, NEWEST_CUDA_VERSION))
        failures, ran = self_test(text, facts)
        for failure in failures:
            print("error: " + failure, file=sys.stderr)
        print("self-test: %d broken inputs, %d failures" % (ran, len(failures)))
        return 1 if failures else 0

    errors, warnings = check(text, facts, options.warn_newer)
    for warning in warnings:
        print("warning: " + warning, file=sys.stderr)
    for error in errors:
        print("error: " + error, file=sys.stderr)
    rows = parse_table(text)[0]
    counts = ", ".join("%d %s" % (sum(row.kind == kind for row in rows), kind) for kind in ("HOOK", "PASS", "GAP"))
    print("%d rows (%s) for %d base names; %d errors, %d warnings"
          % (len(rows), counts, len({row.base for row in rows}), len(errors), len(warnings)))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
