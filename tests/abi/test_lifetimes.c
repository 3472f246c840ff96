/* SPDX-License-Identifier: Apache-2.0 */
/* How long things live: objects that go in any order, bytes of a model that stay the host's, values
 * that are copied. Reading what was given back is what AddressSanitizer sees.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int64_t shape[2] = {1, 8};
static const uint64_t SOON = UINT64_C(30000000000);

static opipe_request *submit(host_kit *k) {
  opipe_request *request = NULL;
  const opipe_binding_io input = kit_ids(ids, shape);
  OPI_ASSERT_OK(kit_submit(k, &input, &request), &k->err);
  return request;
}

/* Everything is destroyed from the top down; what is left works, then goes too. */
static void test_objects_may_go_in_any_order(void) {
  for (uint32_t order = 0; order < 24; order += 3) {
    host_kit k;
    uint32_t left[4] = {0, 1, 2, 3}, n = 4, rest = order;
    OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
    OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
    opipe_request *request = submit(&k);
    while (n > 0) {
      const uint32_t at = rest % n, what = left[at];
      rest /= n;
      left[at] = left[--n];
      switch (what) {
        case 0:
          k.api->context_destroy(k.context);
          break;
        case 1:
          k.api->model_destroy(k.model);
          break;
        case 2:
          k.api->model_destroy(k.bound);
          break;
        default:
          k.api->plan_destroy(k.plan);
          break;
      }
    }
    OPI_ASSERT_OK(k.api->request_wait(request, SOON, &k.err), &k.err);
    k.api->request_release(request);
    request = submit(&k);
    k.api->session_close(k.session);
  }
}

/* ---- a model from memory ---- */

typedef struct bytes {
  char *data;
  size_t n;
  uint32_t n_released;
} bytes;

static void release(void *ctx) {
  bytes *b = ctx;
  ++b->n_released;
  memset(b->data, 0xee, b->n);
  free(b->data);
  b->data = NULL;
}

static opipe_status load(host_kit *k, bytes *b) {
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  b->data = opi_test_read_file(opi_test_source(GPT), &b->n);
  OPI_ASSERT_FATAL(b->data != NULL);
  const opipe_load_params params = {.struct_size = sizeof params,
                                    .data = b->data,
                                    .n_bytes = b->n,
                                    .on_release = release,
                                    .release_ctx = b};
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  return k->api->model_load(k->context, &params, &k->model, &k->err);
}

static void bind(host_kit *k, const opipe_pin *pin) {
  const opipe_dim dims[] = {{"batch", 1}, {"seq", 8}};
  const opipe_bind_options options = {.struct_size = sizeof options,
                                      .dims = dims,
                                      .n_dims = pin != NULL ? 0 : 2,
                                      .dims_stride = sizeof dims[0],
                                      .pins = pin,
                                      .n_pins = pin != NULL,
                                      .pins_stride = sizeof *pin};
  OPI_ASSERT_OK_FATAL(k->api->model_bind(k->model, &options, &k->bound, &k->err), &k->err);
}

static void expect_logits(host_kit *k, opipe_request *request, const float *wanted) {
  opipe_tensor out;
  OPI_ASSERT_OK_FATAL(k->api->request_wait(request, SOON, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->request_output(request, 0, &out, &k->err), &k->err);
  OPI_ASSERT(memcmp(out.data, wanted, 8 * 344 * sizeof *wanted) == 0);
  k->api->request_release(request);
}

/* The bits that the model gives when it is loaded from its file. */
static float *logits_of_file(void) {
  host_kit k;
  opipe_tensor out;
  float *copy = calloc(8 * 344, sizeof *copy);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_request *request = submit(&k);
  OPI_ASSERT_OK_FATAL(k.api->request_wait(request, SOON, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_output(request, 0, &out, &k.err), &k.err);
  OPI_ASSERT_FATAL(out.rank == 3 && out.shape[1] == 8 && out.shape[2] == 344);
  memcpy(copy, out.data, 8 * 344 * sizeof *copy);
  k.api->request_release(request);
  kit_close(&k);
  return copy;
}

/* The bytes are asked for until the last object is gone, whatever was destroyed before, and given
 * back then, once. */
static void test_bytes_of_a_model_are_given_back_last(void) {
  host_kit k;
  bytes b = {.n_released = 0};
  const opipe_plan_params two = {.struct_size = sizeof two, .n_stages = 2};
  float *wanted = logits_of_file();
  OPI_ASSERT_OK_FATAL(load(&k, &b), &k.err);
  bind(&k, NULL);
  k.api->model_destroy(k.model);
  OPI_ASSERT_INT(b.n_released, 0);
  OPI_ASSERT_OK_FATAL(k.api->plan_make(k.bound, &two, &k.plan, &k.err), &k.err);
  k.api->model_destroy(k.bound);
  k.api->context_destroy(k.context);
  OPI_ASSERT_INT(b.n_released, 0);
  OPI_ASSERT_ERROR(kit_open(&k, NULL), OPIPE_E_STATE, &k.err, "the context was destroyed");
  k.api->plan_destroy(k.plan);
  OPI_ASSERT_INT(b.n_released, 1);
  b.n_released = 0;
  OPI_ASSERT_OK_FATAL(load(&k, &b), &k.err);
  bind(&k, NULL);
  OPI_ASSERT_OK_FATAL(k.api->plan_make(k.bound, &two, &k.plan, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  k.api->plan_destroy(k.plan);
  k.api->model_destroy(k.model);
  k.api->model_destroy(k.bound);
  expect_logits(&k, submit(&k), wanted);
  OPI_ASSERT_INT(b.n_released, 0);
  k.api->session_close(k.session);
  OPI_ASSERT_INT(b.n_released, 1);
  k.api->context_destroy(k.context);
  OPI_ASSERT_INT(b.n_released, 1);
  free(wanted);
}

/* A model that is not loaded never had them. */
static void test_a_failed_load_gives_nothing_back(void) {
  host_kit k;
  bytes b = {.n_released = 0};
  OPI_ASSERT_OK_FATAL(load(&k, &b), &k.err);
  opipe_model *second = NULL;
  bytes cut = {.data = b.data, .n = b.n / 2};
  const opipe_load_params params = {.struct_size = sizeof params,
                                    .data = cut.data,
                                    .n_bytes = cut.n,
                                    .on_release = release,
                                    .release_ctx = &cut};
  OPI_ASSERT(k.api->model_load(k.context, &params, &second, &k.err) < 0);
  OPI_ASSERT(second == NULL);
  OPI_ASSERT_INT(cut.n_released, 0);
  k.api->context_destroy(k.context);
  OPI_ASSERT_INT(b.n_released, 0);
  k.api->model_destroy(k.model);
  OPI_ASSERT_INT(b.n_released, 1);
}

/* The logits of a model with pinned ids, whose memory is overwritten once the model is bound;
 * `later`: left as it is. [8 * 344] */
static float *logits_of_pins(bool later) {
  host_kit k;
  opipe_tensor out;
  bytes b = {.n_released = 0};
  const opipe_plan_params one = {.struct_size = sizeof one};
  const opipe_submit_params nothing = {.struct_size = sizeof nothing};
  opipe_request *request = NULL;
  int64_t *own = malloc(sizeof ids), *own_shape = malloc(sizeof shape);
  char *name = malloc(sizeof "input_ids");
  float *copy = calloc(8 * 344, sizeof *copy);
  OPI_ASSERT_FATAL(own != NULL && own_shape != NULL && name != NULL && copy != NULL);
  memcpy(own, ids, sizeof ids);
  memcpy(own_shape, shape, sizeof shape);
  memcpy(name, "input_ids", sizeof "input_ids");
  const opipe_pin pin = {name, kit_ids(own, own_shape).tensor};
  OPI_ASSERT_OK_FATAL(load(&k, &b), &k.err);
  bind(&k, &pin);
  if (!later) {
    memset(own, 0xee, sizeof ids);
    memset(own_shape, 0xee, sizeof shape);
    memset(name, 0, sizeof "input_ids");
  }
  OPI_ASSERT_OK_FATAL(k.api->plan_make(k.bound, &one, &k.plan, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &nothing, &request, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_wait(request, SOON, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_output(request, 0, &out, &k.err), &k.err);
  memcpy(copy, out.data, 8 * 344 * sizeof *copy);
  k.api->request_release(request);
  kit_close(&k);
  OPI_ASSERT_INT(b.n_released, 1);
  free(own);
  free(own_shape);
  free(name);
  return copy;
}

/* The memory of a pin is the host's again when model_bind returns. */
static void test_pins_are_copied(void) {
  float *now = logits_of_pins(false), *later = logits_of_pins(true);
  OPI_ASSERT(memcmp(now, later, 8 * 344 * sizeof *now) == 0);
  free(now);
  free(later);
}

/* ---- the library ---- */

/* A host that closes the library too early still finds its code. */
static void test_the_library_stays_when_it_is_closed(void) {
  host_kit k;
  opipe_get_api_fn get_api = NULL;
  const opipe_plan_params two = {.struct_size = sizeof two, .n_stages = 2};
  const opipe_load_params params = {.struct_size = sizeof params, .path = opi_test_source(GPT)};
  memset(&k, 0, sizeof k);
  k.err.struct_size = sizeof k.err;
  void *library = dlopen(opi_test_build("lib/libonnxpipe.so"), RTLD_NOW | RTLD_LOCAL);
  OPI_ASSERT_FATAL(library != NULL);
  *(void **)&get_api = dlsym(library, "opipe_get_api");
  OPI_ASSERT_FATAL(get_api != NULL && get_api != opipe_get_api);
  OPI_ASSERT_OK_FATAL(get_api(OPIPE_VIEW, &k.api, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->context_create(NULL, &k.context, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->model_load(k.context, &params, &k.model, &k.err), &k.err);
  bind(&k, NULL);
  OPI_ASSERT_OK_FATAL(k.api->plan_make(k.bound, &two, &k.plan, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_INT(dlclose(library), 0);
  opipe_request *request = submit(&k);
  OPI_ASSERT_OK(k.api->request_wait(request, SOON, &k.err), &k.err);
  k.api->request_release(request);
  opipe_model_info info = {.struct_size = sizeof info};
  const opipe_api *other = NULL;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &other, &k.err), &k.err);
  OPI_ASSERT(other->model_info(k.model, &info, &k.err) < 0); /* of another copy of the library */
  kit_close(&k);
}

OPI_TEST_MAIN("lifetimes", OPI_TEST(test_objects_may_go_in_any_order),
              OPI_TEST(test_bytes_of_a_model_are_given_back_last),
              OPI_TEST(test_a_failed_load_gives_nothing_back), OPI_TEST(test_pins_are_copied),
              OPI_TEST(test_the_library_stays_when_it_is_closed))
