"""FFmpeg, as the distribution has it: it opens the driver at run time, keeps frames on the card and copies them
there and back. The `reverse` filter holds every frame until the last one has come, so the number of frames is
the amount of memory.
"""
import re
import shutil
import subprocess

from machine import CONTEXT_MIB, MIB, Machine, check, same
from sessions import GENEROUS_MIB, vramcap_lines

FRAME = "1280x720"  # NV12: 1.3 MiB, which the card rounds up to 2 MiB
FRAME_MIB, CEILING_MIB, CONTEXTS = 2, 64, 2
FITS, TOO_MANY = 24, 40
RAW = ["-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", FRAME, "-i", "pipe:0"]


def command(frames, cuda=True, source=None):
    """Every frame to the card, all of them backwards, every frame back; a digest of each on stdout."""
    there, back = (["hwupload_cuda"], ["hwdownload"]) if cuda else ([], [])
    chain = ",".join(["format=nv12", "trim=end_frame=%d" % frames] + there + ["reverse"] + back + ["format=nv12"])
    device = ["-init_hw_device", "cuda=card", "-filter_hw_device", "card"] if cuda else []
    source = source or ["-nostdin", "-f", "lavfi", "-i", "testsrc2=s=%s:r=25" % FRAME, "-frames:v", str(frames)]
    return ["ffmpeg", "-hide_banner", "-v", "error"] + device + source + ["-vf", chain, "-f", "framemd5", "-"]


def words(text):
    """What it says on standard error, without addresses and without vramcap's lines."""
    lines = [line for line in text.split("\n") if not line.startswith("vramcap:")]
    return re.sub(r"0x[0-9a-f]+", "ADDRESS", "\n".join(lines)).strip()


def version():
    done = subprocess.run(["ffmpeg", "-version"], stdout=subprocess.PIPE, text=True, check=True)
    return re.match(r"ffmpeg version (\d+\.\d+)", done.stdout).group(1)


def can():
    if not shutil.which("ffmpeg"):
        return "no ffmpeg (package ffmpeg)"
    shown = subprocess.run(["ffmpeg", "-hide_banner", "-filters"], stdout=subprocess.PIPE, text=True,
                           stderr=subprocess.DEVNULL, check=True).stdout
    return None if "hwupload_cuda" in shown else "this ffmpeg is built without CUDA"


def ffmpeg(build):
    with Machine(build) as machine:
        truth = machine.run(command(FITS, cuda=False)).stdout
        same("frames in the digest", truth.count("\n0,"), FITS)
        bare = machine.run(command(FITS))
        same("frames that were on the card", bare.stdout, truth)
        check(machine.card()["alloc_peak"] >= FITS * FRAME_MIB * MIB, "the frames were not on the card")
    with Machine(build, ceiling_mib=GENEROUS_MIB) as machine:
        done = machine.run(command(FITS))
        same("bare and under a ceiling", [bare.stdout, bare.stderr, 0],
             [done.stdout, done.stderr, done.returncode])
    with Machine(build, card_mib=CEILING_MIB + CONTEXTS * CONTEXT_MIB) as machine:
        full = machine.run(command(TOO_MANY))
    check("CUDA_ERROR_OUT_OF_MEMORY" in full.stderr and full.returncode != 0, "a full card: %s" % full.stderr)
    with Machine(build, ceiling_mib=CEILING_MIB) as machine:
        refused = machine.run(command(TOO_MANY))
        same("a full card and the ceiling", [words(full.stderr), full.returncode],
             [words(refused.stderr), refused.returncode])
        check(any("refused cuMemAlloc_v2" in line for line in vramcap_lines(refused.stderr)), "no line says why")
        check(machine.card()["alloc_peak"] <= CEILING_MIB * MIB, "the card gave more than the ceiling")
        same("charged afterwards", machine.ledger()["charged"], 0)
        same("the next one", machine.run(command(FITS)).stdout, truth)
    several(build, truth)
    error = re.search(r"cu->cuMemAlloc.*", words(refused.stderr)).group(0)
    return {"name": "FFmpeg (Debian)", "version": version()}, {
        "bare": "runs; frames as without CUDA", "under": "same output",
        "at": "ends with its own `%s`; the next run works" % error,
        "several": "one holds %d frames, another is refused, then fits" % FITS, "figures": []}


def several(build, truth):
    """One holds its frames while its input stalls; another does not fit beside it until it has ended."""
    pictures = subprocess.run(
        ["ffmpeg", "-v", "error", "-nostdin", "-f", "lavfi", "-i", "testsrc2=s=%s:r=25" % FRAME, "-frames:v",
         str(FITS), "-f", "rawvideo", "-pix_fmt", "yuv420p", "-"], stdout=subprocess.PIPE, check=True).stdout
    with Machine(build, ceiling_mib=CEILING_MIB) as machine:
        first = machine.start(command(FITS + 1, source=RAW))
        first.process.stdin.write(pictures)  # it still waits for one more
        first.process.stdin.flush()
        for _ in range(600):
            try:
                held = machine.ledger()["charged"]
            except subprocess.CalledProcessError:
                held = 0  # no ledger yet
            if held >= (FITS - 4) * FRAME_MIB * MIB:  # a few frames are on their way
                break
            try:
                first.process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
        check(held >= (FITS - 4) * FRAME_MIB * MIB, "the first holds %d bytes\n%s" % (held, first.said()))
        second = machine.run(command(FITS))
        check("CUDA_ERROR_OUT_OF_MEMORY" in second.stderr, "the second was not refused: %s" % second.stderr)
        check(machine.card()["alloc_peak"] <= CEILING_MIB * MIB, "the card gave more than the ceiling")
        first.process.stdin.close()
        digests = [line.rsplit(",", 1)[1] for line in first.process.stdout.read().decode().split("\n")
                   if line.startswith("0,")]
        same("frames of the first", len(digests), FITS)
        same("its exit status", first.process.wait(60), 0)
        same("the second, then", machine.run(command(FITS)).stdout, truth)
