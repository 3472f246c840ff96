/* SPDX-License-Identifier: Apache-2.0 */
/* The option bf16= of the CPU backend: which arithmetic a product of bf16 by bf16 gets. */
#include "backend_test.h"
#include "plugins/backend-cpu/kernels/half.h"

enum { K = 32, N = 3, M = 2 };

/* Y[M,N] = X[M,K] W[K,N] whose rows of X are 2^24, 1, 0, 1, 0 ... -2^24, 1 and W is 1: 16 by exact
 * sums; what is left of it tells orders of additions apart. False: not on this machine. */
static bool product(const char *options, uint32_t threads, float *out) {
  static bt_graph g;
  static uint16_t x[M * K], y[M * N], w[K * N];
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_run r;
  for (int i = 0; i < M * K; ++i) {
    const int k = i % K;
    x[i] = cpu_f32_to_bf16(k == 0 ? 0x1p24f : k == 30 ? -0x1p24f : (float)(k % 2));
  }
  for (int i = 0; i < K * N; ++i)
    w[i] = cpu_f32_to_bf16(1.0f);
  bt_open(&b);
  bt_init(&g);
  const uint32_t vx = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_BFLOAT16, x, BT_SHAPE(M, K));
  const uint32_t vw = bt_value(&g, OPIPE_VALUE_PARAMETER, OPIPE_BFLOAT16, w, BT_SHAPE(K, N));
  const uint32_t vy = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_BFLOAT16, y, BT_SHAPE(M, N));
  bt_node(&g, "MatMul", BT_IN(vx, vw), BT_OUT(vy));
  const opipe_status status = bt_device(&b, options, threads, 0, &device, &err);
  if (status >= 0) {
    OPI_ASSERT_OK(bt_prepare(b.table, device, &g, 0, &r, &err), &err);
    OPI_ASSERT_OK(bt_step(b.table, &g, &r, &err), &err);
    bt_release(b.table, &r);
    b.table->device_close(device);
    for (int i = 0; i < M * N; ++i)
      out[i] = cpu_bf16_to_f32(y[i]);
  } else {
    OPI_ASSERT_INT(status, OPIPE_E_UNSUPPORTED);
    OPI_ASSERT(strstr(err.message, options) != NULL);
  }
  bt_close(&b);
  return status >= 0;
}

static void test_the_option_chooses_the_order_of_additions(void) {
  static const struct {
    const char *options;
    float wanted;
  } cases[] = {{NULL, 1.0f},
               {"bf16=widen", 1.0f},
               {"bf16=pairs-model", 0.0f},
               {"bf16=tiles-model", 16.0f},
               {"bf16=pairs", 0.0f},
               {"bf16=tiles", 16.0f},
               {"kernels=reference", 16.0f},
               {"kernels=portable,bf16=tiles-model", 16.0f}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    for (uint32_t threads = 1; threads <= 2; ++threads) {
      float y[M * N];
      if (!product(cases[i].options, threads, y))
        continue;
      for (int k = 0; k < M * N; ++k) {
        if (y[k] != cases[i].wanted) {
          OPI_FAIL("%s: %g, wanted %g", cases[i].options == NULL ? "" : cases[i].options,
                   (double)y[k], (double)cases[i].wanted);
        }
      }
    }
  }
}

static void test_other_values_are_refused(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_open(&b);
  OPI_ASSERT_INT(bt_device(&b, "bf16=amx", 1, 0, &device, &err), OPIPE_E_INVALID);
  OPI_ASSERT(strstr(err.message, "bf16=amx") != NULL && strstr(err.message, "auto") != NULL);
  OPI_ASSERT_OK(bt_device(&b, "bf16=auto", 1, 0, &device, &err), &err);
  b.table->device_close(device);
  bt_close(&b);
}

OPI_TEST_MAIN("op_bf16", OPI_TEST(test_the_option_chooses_the_order_of_additions),
              OPI_TEST(test_other_values_are_refused))
