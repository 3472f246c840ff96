/* SPDX-License-Identifier: Apache-2.0 */
/* ConvInteger against the plain sum: one to three axes, groups, strides, dilations, unequal pads,
 * both types on either side, zero points of each kind; packed and plain kernels, every instruction
 * set, one thread and two.
 */
#include "backend_test.h"

enum { MOST = 50000 };

typedef struct conv_case {
  uint32_t axes;
  int64_t images, c_in, c_out, groups;
  int64_t in[3], kernel[3], stride[3], dilation[3], pads[6];
  uint32_t x_type, w_type;
  int zx, zw; /* 0: none, 1: one, 2: one for each channel */
} conv_case;

static const conv_case cases[] = {
    {1, 2, 5, 70, 1, {33}, {3}, {2}, {1}, {1, 0}, OPIPE_UINT8, OPIPE_INT8, 1, 1},
    {1, 1, 64, 3, 1, {700}, {1}, {1}, {1}, {0, 0}, OPIPE_INT8, OPIPE_UINT8, 1, 2},
    {2, 2, 3, 65, 1, {9, 11}, {3, 2}, {1, 2}, {2, 1}, {1, 0, 2, 1}, OPIPE_UINT8, OPIPE_UINT8, 1, 2},
    {2, 1, 6, 9, 3, {8, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, OPIPE_UINT8, OPIPE_INT8, 1, 2},
    {2, 1, 4, 4, 4, {7, 5}, {2, 2}, {2, 1}, {1, 1}, {0, 0, 0, 0}, OPIPE_INT8, OPIPE_INT8, 0, 0},
    {2, 1, 7, 17, 1, {20, 30}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, OPIPE_UINT8, OPIPE_INT8, 1, 0},
    {3,
     1,
     2,
     5,
     1,
     {4, 5, 6},
     {2, 3, 2},
     {1, 2, 1},
     {1, 1, 2},
     {0, 1, 1, 1, 1, 0},
     OPIPE_INT8,
     OPIPE_UINT8,
     1,
     1},
};

static int32_t number(uint32_t dtype, const uint8_t *data, int64_t i) {
  return dtype == OPIPE_INT8 ? (int8_t)data[i] : data[i];
}

static int64_t out_of(const conv_case *c, uint32_t a) {
  const int64_t reach = c->dilation[a] * (c->kernel[a] - 1) + 1;
  return (c->in[a] + c->pads[a] + c->pads[c->axes + a] - reach) / c->stride[a] + 1;
}

static int64_t product_of(const int64_t *list, uint32_t n) {
  int64_t product = 1;
  for (uint32_t i = 0; i < n; ++i)
    product *= list[i];
  return product;
}

/* Element `o` (of the plane's) of channel `m`. */
static int32_t plain_sum(const conv_case *c, const uint8_t *x, const uint8_t *w, int64_t m,
                         const int64_t *out, int64_t o, int32_t zx, int32_t zw) {
  const int64_t channels = c->c_in / c->groups, group = m / (c->c_out / c->groups);
  const int64_t taps = product_of(c->kernel, c->axes), plane = product_of(c->in, c->axes);
  int32_t sum = 0;
  for (int64_t i = 0; i < channels; ++i) {
    for (int64_t k = 0; k < taps; ++k) {
      int64_t at = 0, scale = 1, left_o = o, left_k = k;
      bool inside = true;
      for (uint32_t a = c->axes; a-- > 0; left_o /= out[a], left_k /= c->kernel[a]) {
        const int64_t p =
            left_o % out[a] * c->stride[a] - c->pads[a] + left_k % c->kernel[a] * c->dilation[a];
        inside = inside && p >= 0 && p < c->in[a];
        at += p * scale;
        scale *= c->in[a];
      }
      if (inside) {
        sum += (number(c->x_type, x, (group * channels + i) * plane + at) - zx) *
               (number(c->w_type, w, (m * channels + i) * taps + k) - zw);
      }
    }
  }
  return sum;
}

static void check(const bt_backend *backend, opipe_device *device, const conv_case *c,
                  const char *name) {
  static uint8_t x[MOST], w[MOST], zx[1], zw[256];
  static int32_t y[MOST], wanted[MOST];
  opipe_error err = OPIPE_ERROR_INIT;
  opi_test_random random = {7};
  int64_t x_shape[5] = {c->images, c->c_in}, w_shape[5] = {c->c_out, c->c_in / c->groups};
  int64_t y_shape[5] = {c->images, c->c_out}, n_zeros = c->c_out;
  for (uint32_t a = 0; a < c->axes; ++a) {
    x_shape[2 + a] = c->in[a];
    w_shape[2 + a] = c->kernel[a];
    y_shape[2 + a] = out_of(c, a);
  }
  const uint32_t rank = 2 + c->axes;
  const int64_t n_x = product_of(x_shape, rank), n_w = product_of(w_shape, rank);
  const int64_t n_y = product_of(y_shape, rank), plane = product_of(y_shape + 2, c->axes);
  OPI_ASSERT_FATAL(n_x <= MOST && n_w <= MOST && n_y <= MOST);
  for (int64_t i = 0; i < n_x; ++i)
    x[i] = (uint8_t)(opi_test_uniform(&random, 0, 256));
  for (int64_t i = 0; i < n_w; ++i)
    w[i] = (uint8_t)(opi_test_uniform(&random, 0, 256));
  zx[0] = 131;
  for (int64_t i = 0; i < n_zeros; ++i)
    zw[i] = (uint8_t)(opi_test_uniform(&random, 0, 256));
  for (int64_t i = 0; i < n_y; ++i) {
    const int64_t m = i / plane % c->c_out;
    const int32_t x_zero = c->zx == 0 ? 0 : number(c->x_type, zx, 0);
    const int32_t w_zero = c->zw == 0 ? 0 : number(c->w_type, zw, c->zw == 1 ? 0 : m);
    wanted[i] = plain_sum(c, x + i / plane / c->c_out * (n_x / c->images), w, m, y_shape + 2,
                          i % plane, x_zero, w_zero);
  }
  bt_graph g;
  bt_init(&g);
  uint32_t in[4] = {bt_value(&g, OPIPE_VALUE_INPUT, c->x_type, x, rank, x_shape),
                    bt_value(&g, OPIPE_VALUE_PARAMETER, c->w_type, w, rank, w_shape), OPIPE_NONE,
                    OPIPE_NONE};
  if (c->zx != 0)
    in[2] = bt_value(&g, OPIPE_VALUE_INPUT, c->x_type, zx, 0, NULL);
  if (c->zw != 0)
    in[3] = bt_value(&g, OPIPE_VALUE_PARAMETER, c->w_type, zw, c->zw == 2 ? 1 : 0, &n_zeros);
  memset(y, 0xa5, sizeof y);
  opipe_node *node =
      bt_node(&g, "ConvInteger", BT_IN(in[0], in[1], in[2], in[3]),
              BT_OUT(bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_INT32, y, rank, y_shape)));
  bt_int(&g, node, "group", c->groups);
  bt_ints(&g, node, "kernel_shape", c->axes, c->kernel);
  bt_ints(&g, node, "strides", c->axes, c->stride);
  bt_ints(&g, node, "dilations", c->axes, c->dilation);
  bt_ints(&g, node, "pads", 2 * c->axes, c->pads);
  OPI_ASSERT_OK(bt_run_once(backend->table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
  opi_test_check(memcmp(y, wanted, (size_t)n_y * sizeof y[0]) == 0, __FILE__, __LINE__, false,
                 "%s, case %d: other sums", name, (int)(c - cases));
}

static void test_conv_integer(void) {
  bt_backend backend;
  bt_open(&backend);
  for (int o = 0; o < BT_BYTE_OPTIONS; ++o) {
    for (uint32_t threads = 1; threads <= 2; ++threads) {
      opipe_error err = OPIPE_ERROR_INIT;
      opipe_device *device = NULL;
      const opipe_status status =
          bt_device(&backend, bt_byte_options[o], threads, 0, &device, &err);
      if (status == OPIPE_E_UNSUPPORTED)
        continue; /* instructions that this machine lacks */
      OPI_ASSERT_FATAL(status == OPIPE_OK);
      for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        check(&backend, device, &cases[i], bt_byte_options[o]);
      backend.table->device_close(device);
    }
  }
  bt_close(&backend);
}

/* The option int8= names what is wrong with it. */
static void test_the_option(void) {
  static const struct {
    const char *options;
    opipe_status status;
    const char *says;
  } wrong[] = {{"int8=amx", OPIPE_E_INVALID, "int8=amx (plain, vnni, tiles, tiles-model or auto)"},
               {"int8=", OPIPE_E_INVALID, "int8= (plain"},
               {"kernels=portable,int8=vnni", OPIPE_E_UNSUPPORTED, "int8=vnni"},
               {"kernels=portable,int8=tiles", OPIPE_E_UNSUPPORTED, "none for kernels=portable"}};
  static const char *const right[] = {"int8=auto", "int8=plain", "int8=tiles-model",
                                      "int8=plain,kernels=portable",
                                      "kernels=reference,int8=plain"};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_open(&b);
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    OPI_ASSERT_INT(bt_device(&b, wrong[i].options, 1, 0, &device, &err), wrong[i].status);
    if (strstr(err.message, wrong[i].says) == NULL)
      OPI_FAIL("%s: %s", wrong[i].options, err.message);
  }
  for (size_t i = 0; i < sizeof right / sizeof right[0]; ++i) {
    OPI_ASSERT_OK_FATAL(bt_device(&b, right[i], 1, 0, &device, &err), &err);
    b.table->device_close(device);
  }
  bt_close(&b);
}

OPI_TEST_MAIN("op_integer", OPI_TEST(test_conv_integer), OPI_TEST(test_the_option))
