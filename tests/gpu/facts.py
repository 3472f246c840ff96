# SPDX-License-Identifier: Apache-2.0
"""The machine: its GPU, its libraries, its ceilings."""
import ctypes
import ctypes.util
import glob
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys

import bundle_kit
import gpt2
from bundle_kit import COMMAND, HERE, SMALL, Failed, Line, NotRun, command, not_built, run, work


def ask(*arguments):
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def machine(clock):
    """The host, and what nvidia-smi says of the GPU."""
    fields = "name,uuid,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current,compute_mode,ecc.mode.current"
    return {"system": platform.platform(), "libc": " ".join(platform.libc_ver()), "cores": os.cpu_count(),
            "python": sys.version.split()[0],
            "nvidia-smi": ask("nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader") or "there is none",
            "memory_kib": next((line.split()[1] for line in open("/proc/meminfo") if line.startswith("MemTotal")), None)}


def found(*patterns):
    """Files of vendor libraries: pip's, the toolkit's, the system's."""
    roots = [p for p in sys.path if p.endswith("-packages")] + ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    return sorted({p for root in roots for pattern in patterns for p in glob.glob(os.path.join(root, pattern))})


def version_of(path, function, kind=ctypes.c_size_t):
    try:
        library = ctypes.CDLL(path)
        call = getattr(library, function)
        call.restype = kind
        return int(call())
    except (OSError, AttributeError) as error:
        return str(error)


def versions(clock):
    """Which libraries the machine has, and whether their headers are there."""
    nccl = {}
    for path in found("nvidia/nccl/lib/libnccl.so.2", "libnccl.so.2"):
        number = ctypes.c_int(0)
        try:
            ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
            nccl[path] = number.value
        except (OSError, AttributeError) as error:
            nccl[path] = str(error)
    return {
        "cublasLt": {p: version_of(p, "cublasLtGetVersion")
                     for p in found("nvidia/*/lib/libcublasLt.so.1[23]", "libcublasLt.so.1[23]")},
        "cudnn": {p: version_of(p, "cudnnGetVersion") for p in found("nvidia/cudnn/lib/libcudnn.so.9", "libcudnn.so.9")},
        "nccl": nccl,
        "headers": found("nvidia/*/include/cublasLt.h", "nvidia/*/include/cudnn.h", "nvidia/*/include/nccl.h"),
        "nvcc": (ask("nvcc", "--version") or ask("/usr/local/cuda/bin/nvcc", "--version") or "there is none").splitlines()[-1],
        "compute-sanitizer": shutil.which("compute-sanitizer"), "ncu": shutil.which("ncu"), "nsys": shutil.which("nsys"),
    }


def peers(clock):
    """Other tools that can be measured: PyTorch, ONNX Runtime and its providers."""
    script = "import json\nout = {}\n"
    script += "try:\n import torch\n out['torch'] = torch.__version__\n out['cuda'] = torch.version.cuda\nexcept ImportError: out['torch'] = None\n"
    script += "try:\n import onnxruntime as o\n out['onnxruntime'] = o.__version__\n out['providers'] = o.get_available_providers()\n"
    script += "except ImportError: out['onnxruntime'] = None\nprint(json.dumps(out))\n"
    said = ask(sys.executable, "-c", script)
    if said is None:
        raise Failed("a peer cannot be imported")
    return json.loads(said.splitlines()[-1])


def libraries(clock):
    """The devices and libraries that the plugin opened."""
    listed = json.loads(command([COMMAND, "plugins", "--json"], clock))
    return next(one["details"] for one in listed if one.get("id") == "cuda")


def device(clock):
    """The device as plans see it: nominal rates."""
    return json.loads(command([COMMAND, "profile", "--cluster", "--cost", "rates", "--device", "cuda"], clock))


def ceilings(clock):
    """Products of 8192^3 and copies on the device, on random numbers."""
    return bundle_kit.ceilings(clock)


def choices(clock):
    """Products of GPT-2's shapes: the library's first choice, its best of 8, bias as epilogue beside a launch of its own."""
    return json.loads(command([os.path.join(HERE, "bin", "gpu-ceilings"), "--choices", *(["--tokens", "8"] if SMALL else [])], clock))


def device_properties(clock):
    """cuDNN's own description of the device, for plans that are built without one."""
    paths = found("nvidia/cudnn/lib/libcudnn.so.9", "libcudnn.so.9")
    if not paths:
        raise NotRun("there is no libcudnn.so.9")
    cudnn = ctypes.CDLL(paths[0], mode=ctypes.RTLD_GLOBAL)
    descriptor = ctypes.c_void_p()
    DEVICEPROP, DEVICE_ID, JSON, INT32, CHAR = 38, 2700, 2702, 23, 24  # of cudnn_graph.h 9
    if cudnn.cudnnBackendCreateDescriptor(DEVICEPROP, ctypes.byref(descriptor)) != 0:
        raise NotRun("this cuDNN has no descriptor of devices")
    number = ctypes.c_int32(0)
    status = cudnn.cudnnBackendSetAttribute(descriptor, DEVICE_ID, INT32, ctypes.c_int64(1), ctypes.byref(number))
    status = status or cudnn.cudnnBackendFinalize(descriptor)
    n = ctypes.c_int64(0)
    room = ctypes.create_string_buffer(1 << 16)
    status = status or cudnn.cudnnBackendGetAttribute(descriptor, JSON, CHAR, ctypes.c_int64(len(room)), ctypes.byref(n), room)
    cudnn.cudnnBackendDestroyDescriptor(descriptor)
    if status != 0:
        raise Failed("cuDNN answers %d" % status)
    return room.value.decode(errors="replace")


def attention(clock):
    """Which attention of a step in bf16 cuDNN does, with sums in one order and in any; what it leaves to our kernels, in its words."""
    details = [one for one in libraries(clock) if "cuDNN" in one]
    if not details or details[0].startswith("no cuDNN"):
        raise NotRun(details[0] if details else "the plugin knows no cuDNN")
    shape, tokens = ("tiny", 48) if SMALL else ("small", 1024)
    model, data = work("attention.onnx"), work("attention-ids.npy")
    gpt2.write(model, shape, tokens, 256)
    gpt2.ids(data, 2, tokens, 256)
    said = {"library": details[0]}
    for options in ("", ",deterministic=0"):
        done = run([COMMAND, "train", model, "--device", "cuda" + options, "--compute", "bf16", "--dropout", "off", "--batch", "2",
                    "--steps", "1", "--data", "ids=" + data, "--loss", "cross-entropy:logits=logits,labels=ids,shift=1"], clock)
        if done.returncode != 0:
            raise Failed("train: status %d: %s" % (done.returncode, done.stderr.strip()[-400:]))
        said["cuda" + options] = [line for line in done.stderr.splitlines() if "our own kernels" in line] or "all of it"
    return said


LINES = [
    Line("machine", machine, 30, device=False),
    Line("versions", versions, 60, device=False),
    Line("peers", peers, 120, device=False),
    Line("libraries", libraries, 30),
    Line("device", device, 30),
    Line("ceilings", ceilings, 60),
    Line("choices", choices, 90),
    Line("device properties", device_properties, 30),
    Line("attention of cuDNN", attention, 60),
    Line("two NCCL ranks on one GPU", not_built("there is no transport over NCCL yet"), 30),
    Line("MASTER_PORT of torchrun", not_built("needs torchrun and a rendezvous of several processes"), 30),
]
