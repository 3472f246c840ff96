#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=3600 label=full,nosan
"""All kernels for sm_80, sm_90 and the data centre's and the desktop's newer ones, of those that this nvcc knows: no spills, no more
registers than the table has; and a bundle for machines with a GPU that has all these images is no larger than it may be."""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import registers  # noqa: E402

BUILD = os.environ["OPIPE_BUILD_DIR"]
CHIPS = ("sm_80", "sm_90", "sm_100", "sm_120")
DOUBLES = os.path.join(BUILD, "tests", "cuda", "plugins", "opipe-backend-cuda.so")


def make_image(nvcc, out):
    """The image of a release, of what the check of registers has compiled."""
    folders = [os.path.dirname(os.path.realpath(nvcc)), os.environ["PATH"], "/usr/local/cuda/bin"]
    fatbinary = shutil.which("fatbinary", path=os.pathsep.join(folders))
    chips = [chip for chip in CHIPS if os.path.exists(os.path.join(registers.KEPT, chip + ".cubin"))]
    images = ["--image3=kind=elf,sm=%s,file=%s/%s.cubin" % (chip[3:], registers.KEPT, chip) for chip in chips]
    images.append("--image3=kind=ptx,sm=%s,file=%s/%s.ptx" % (chips[-1][3:], registers.KEPT, chips[-1]))
    subprocess.run([fatbinary, "--create=" + out, "-64", "--compress-all", "--compress-mode=size", *images], check=True)


def bundle():
    """0: it is small enough. Its plugin is that of the doubles with the image beside."""
    if not os.path.exists(DOUBLES):
        print("SKIP: the doubles of CUDA need a C++ compiler at build")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        image = os.path.join(folder, "image")
        plugin = os.path.join(folder, "opipe-backend-cuda.so")
        make_image(registers.find_nvcc(), image)
        subprocess.run(["objcopy", "--add-section", ".kernels=" + image, DOUBLES, plugin], check=True)
        done = subprocess.run([sys.executable, os.path.join(registers.SOURCE, "tests", "gpu", "bundle.py"), BUILD,
                               os.path.join(folder, "bundle"), "--image", image, "--plugin", plugin], check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(registers.check(lambda known: [chip for chip in CHIPS if chip in known]) or bundle())
