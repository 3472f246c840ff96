/* SPDX-License-Identifier: Apache-2.0 */
/* The transport's declarations of NCCL's and the driver's functions and numbers, against the
 * vendor's headers where those are: all at compile time.
 */
#include "tests/support/support.h"

#if defined(__has_include)
#if __has_include(<cuda.h>) && __has_include(<nccl.h>)
#include <cuda.h>
#include <nccl.h>
#define HEADERS 1
#define OPIPE_NCCL_VENDOR_HEADERS 1
#endif
#endif

#include "plugins/transport-nccl/vendor.h"

#ifdef HEADERS
#define SAME(member, symbol, result, arguments)                                               \
  _Static_assert(                                                                             \
      __builtin_types_compatible_p(__typeof__(&symbol), __typeof__(((TABLE *)NULL)->member)), \
      #symbol " is declared otherwise by the vendor");
#define TABLE nccl_calls
NCCL_FUNCTIONS(SAME)
#undef TABLE
#define TABLE nccl_driver
NCCL_DRIVER_FUNCTIONS(SAME)

#define NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs);
NUMBER(NCCL_FINE, ncclSuccess)
NUMBER(NCCL_INVALID_USAGE, ncclInvalidUsage)
NUMBER(NCCL_REMOTE, ncclRemoteError)
NUMBER(NCCL_IN_PROGRESS, ncclInProgress)
NUMBER(NCCL_BYTES, ncclUint8)
NUMBER(NCCL_FLOAT16, ncclFloat16)
NUMBER(NCCL_FLOAT32, ncclFloat32)
NUMBER(NCCL_FLOAT64, ncclFloat64)
NUMBER(NCCL_BFLOAT16, ncclBfloat16)
NUMBER(NCCL_ADD, ncclSum)
NUMBER(NCCL_CUDA_FINE, CUDA_SUCCESS)
NUMBER(NCCL_UNSET, NCCL_CONFIG_UNDEF_INT)
NUMBER(NCCL_CONFIG_BYTES, offsetof(ncclConfig_t, trafficClass) + sizeof(int))
#endif

static void test_declarations_are_the_vendors(void) {
#ifdef HEADERS
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  OPI_ASSERT(theirs.magic == NCCL_CONFIG_MAGIC);
  OPI_ASSERT(theirs.version >= NCCL_CONFIG_VERSION);
#else
  const ncclConfig_t ours = {.size = sizeof ours};
  OPI_ASSERT_INT(ours.size, NCCL_CONFIG_BYTES);
#endif
}

OPI_TEST_MAIN("nccl declarations", OPI_TEST(test_declarations_are_the_vendors))
