/* SPDX-License-Identifier: Apache-2.0 */
/* What cdef.cmake runs the preprocessor over: the declarations of a host, and the numbers that are
 * macros. The standard headers are those beside it, so that nothing of the system comes out. */
#define OPIPE_CDEF
#include <opipe/host.h>

#define NUMBER(name) @define #name name
NUMBER(OPIPE_ABI_MAJOR)
NUMBER(OPIPE_ABI_MINOR)
NUMBER(OPIPE_MAX_RANK)
NUMBER(OPIPE_NONE)
