"""GStreamer with its CUDA plugin, as the distribution has them: a pipeline of several threads that keeps pitched
frames in a pool on the card. A queue that gives nothing away before it holds so many frames makes their number
the amount of memory.
"""
import hashlib
import os
import re
import shutil
import subprocess

from machine import CONTEXT_MIB, MIB, Machine, check, same
from sessions import GENEROUS_MIB, vramcap_lines

WIDTH, HEIGHT = 1280, 720  # NV12: rows of 1536 bytes, 1.6 MiB, which the card rounds up
FRAME_MIB, CEILING_MIB, CONTEXTS = 4, 128, 1
FITS, TOO_MANY = 24, 40
RAW = "video/x-raw,format=NV12"
ERROR = "Failed to allocate CUDA memory"


class Pipelines:
    """Pipelines on one machine; decoder: the folder of a libnvcuvid, without which the plugin shows nothing."""

    def __init__(self, machine, decoder):
        self.machine = machine
        machine.environment["LD_LIBRARY_PATH"] += os.pathsep + decoder
        machine.environment.update(GST_REGISTRY=os.path.join(machine.folder, "registry"), GST_DEBUG_NO_COLOR="1",
                                   GST_DEBUG="cudaallocator:1")

    def command(self, frames, out, cuda=True, source=None):
        """Every frame to the card, all of them kept until the last has come, every frame back and into a file."""
        there, back = (["cudaupload", "!", "video/x-raw(memory:CUDAMemory)", "!"], ["cudadownload", "!", RAW, "!"]) \
            if cuda else ([], [])
        source = source or ["videotestsrc", "num-buffers=%d" % frames, "!",
                            "%s,width=%d,height=%d,framerate=25/1" % (RAW, WIDTH, HEIGHT), "!"]
        keep = ["queue", "min-threshold-buffers=%d" % frames, "max-size-buffers=0", "max-size-bytes=0",
                "max-size-time=0", "!"]
        return ["gst-launch-1.0", "-q"] + source + there + keep + back + ["filesink", "location=" + self.at(out)]

    def at(self, out):
        return os.path.join(self.machine.folder, out)

    def digest(self, out):
        with open(self.at(out), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()

    def run(self, frames, **more):
        """(digest of the frames, what it said, exit status)"""
        done = self.machine.run(self.command(frames, "frames", **more))
        done.frames = self.digest("frames")
        return done


def words(text):
    """What it says on standard error, without times, addresses and vramcap's lines; threads say it in any order."""
    lines = [re.sub(r"^\S+ +\d+ +0x[0-9a-f]+ ", "", line) for line in text.split("\n")
             if not line.startswith("vramcap:")]
    return sorted(line for line in lines if line)


def can(decoder):
    if not shutil.which("gst-launch-1.0"):
        return "no gst-launch-1.0 (packages gstreamer1.0-tools, gstreamer1.0-plugins-bad)"
    if not os.path.isdir(decoder):
        return "no %s: build the target clients_nvcuvid" % decoder
    return None


def version():
    done = subprocess.run(["gst-launch-1.0", "--version"], stdout=subprocess.PIPE, text=True, check=True)
    return re.search(r"GStreamer (\d+\.\d+)", done.stdout).group(1)


def gstreamer(build, decoder):
    with Machine(build) as machine:
        pipelines = Pipelines(machine, decoder)
        truth = pipelines.run(FITS, cuda=False).frames
        bare = pipelines.run(FITS)
        same("frames that were on the card", [bare.frames, bare.stderr, bare.returncode], [truth, "", 0])
        check(machine.card()["alloc_peak"] >= FITS * FRAME_MIB * MIB, "the frames were not on the card")
    with Machine(build, ceiling_mib=GENEROUS_MIB) as machine:
        done = Pipelines(machine, decoder).run(FITS)
        same("bare and under a ceiling", [truth, "", 0], [done.frames, done.stderr, done.returncode])
    with Machine(build, card_mib=CEILING_MIB + CONTEXTS * CONTEXT_MIB) as machine:
        full = Pipelines(machine, decoder).run(TOO_MANY)
    check(ERROR in full.stderr and full.returncode == 1, "a full card: %s" % full.stderr)
    with Machine(build, ceiling_mib=CEILING_MIB) as machine:
        pipelines = Pipelines(machine, decoder)
        refused = pipelines.run(TOO_MANY)
        same("a full card and the ceiling", [words(full.stderr), full.returncode],
             [words(refused.stderr), refused.returncode])
        check(any("refused cuMemAllocPitch_v2" in line for line in vramcap_lines(refused.stderr)), "no line says why")
        check(machine.card()["alloc_peak"] <= CEILING_MIB * MIB, "the card gave more than the ceiling")
        same("charged afterwards", machine.ledger()["charged"], 0)
        same("the next one", pipelines.run(FITS).frames, truth)
    several(build, decoder, truth)
    return {"name": "GStreamer (Debian)", "version": version()}, {
        "bare": "runs; frames as without CUDA", "under": "same output",
        "at": "ends with its own `%s`; the next run works" % ERROR,
        "several": "one holds %d frames, another is refused, then fits" % FITS, "figures": []}


def several(build, decoder, truth):
    """One holds its frames while its input stalls; another does not fit beside it until it has ended."""
    with Machine(build, ceiling_mib=CEILING_MIB) as machine:
        pipelines = Pipelines(machine, decoder)
        pipelines.run(FITS, cuda=False)
        with open(pipelines.at("frames"), "rb") as file:
            pictures = file.read()
        source = ["fdsrc", "fd=0", "!", "rawvideoparse", "width=%d" % WIDTH, "height=%d" % HEIGHT, "format=nv12",
                  "framerate=25/1", "!"]
        first = machine.start(pipelines.command(FITS + 1, "first", source=source))
        first.process.stdin.write(pictures)  # it still waits for one more
        first.process.stdin.flush()
        least = (FITS - 2) * FRAME_MIB * MIB  # a few frames are on their way
        for _ in range(600):
            try:
                held = machine.ledger()["charged"]
            except subprocess.CalledProcessError:
                held = 0  # no ledger yet
            if held >= least:
                break
            try:
                first.process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
        check(held >= least, "the first holds %d bytes\n%s" % (held, first.said()))
        second = pipelines.run(FITS)
        check(ERROR in second.stderr and second.returncode == 1, "the second was not refused: %s" % second.stderr)
        check(machine.card()["alloc_peak"] <= CEILING_MIB * MIB, "the card gave more than the ceiling")
        first.process.stdin.close()
        same("its exit status", first.process.wait(60), 0)
        same("frames of the first", pipelines.digest("first"), truth)
        same("the second, then", pipelines.run(FITS).frames, truth)
