/* SPDX-License-Identifier: Apache-2.0 */
/* Input of cdef.cmake's preprocessor run: the declarations of a host, and the numbers that are
 * macros. The standard headers are those beside it, so that nothing of the system's appears. */
#define OPIPE_CDEF
#include <opipe/host.h>

#define NUMBER(name) @define #name name
NUMBER(OPIPE_ABI_MAJOR)
NUMBER(OPIPE_ABI_MINOR)
NUMBER(OPIPE_MAX_RANK)
NUMBER(OPIPE_NONE)
