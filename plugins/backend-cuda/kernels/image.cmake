# SPDX-License-Identifier: Apache-2.0
# Writes a source that holds the bytes of IMAGE. Their hash stands in it: compiler caches look at sources, not at what
# .incbin reads.
#
#   cmake -D IMAGE=FILE -D OUT=FILE -P image.cmake
file(SHA256 ${IMAGE} hash)
file(WRITE ${OUT}
"/* The bytes of ${IMAGE}. */
#include \"image.h\"
__asm__(\".section .rodata\\n.balign 64\\n.globl cuda_kernels_image\\n.hidden cuda_kernels_image\\n\"
        \"cuda_kernels_image:\\n.Limage_${hash}:\\n.incbin \\\"${IMAGE}\\\"\\n.previous\\n\");
")
