/* SPDX-License-Identifier: Apache-2.0 */
/* The models of tests/data through the host's table and the real backend: in 1 to 4 stages, under
 * both schedules, and in tensor groups, every result has the bits of the plan's reference, also
 * where shapes alternate and freed memory is poisoned; measured memory is the prediction, and one
 * byte less is refused.
 *
 * ctest: timeout=300
 */
#include <opipe/host.h>
#include <stdio.h>
#include <stdlib.h>

#include "loader/base/base.h"
#include "tests/support/support.h"

enum { INPUTS = 16, OUTPUTS = 16, SHAPES = 3, ROUNDS = 9 };

static const char *const MODELS[] = {"gpt_8block", "llama_8block", "encoder",  "gpt_past",
                                     "vision",     "llama_fp16",   "gpt_bf16", "encoder_decoder"};

typedef struct rig {
  const opipe_api *api;
  opipe_context *context;
  opipe_model *model;
  opipe_model *bound[SHAPES]; /* 0: the plan's; others only say which inputs to make */
  opipe_plan *plan;
  uint32_t tensor;     /* members of a tensor group */
  bool scattered;      /* which send parts over a link */
  const char *options; /* of an emulated device; NULL: a cpu */
  uint64_t watchdog_ns;
  opipe_error err;
} rig;

static void close_rig(rig *r) {
  r->api->plan_destroy(r->plan);
  for (uint32_t i = 0; i < SHAPES; ++i)
    r->api->model_destroy(r->bound[i]);
  r->api->model_destroy(r->model);
  r->api->context_destroy(r->context);
}

static opipe_status open_rig(rig *r, const char *name) {
  static const opipe_dim shapes[SHAPES][2] = {
      {{"batch", 3}, {"seq", 8}}, {{"batch", 1}, {"seq", 8}}, {{"batch", 5}, {"seq", 4}}};
  const char *paths[1] = {opi_test_build("lib/onnx-pipe")};
  const opipe_context_params context = {
      .struct_size = (uint32_t)OPIPE_END(opipe_context_params, flags),
      .plugin_paths = paths,
      .n_plugin_paths = 1};
  char file[128];
  memset(r, 0, sizeof *r);
  r->err.struct_size = (uint32_t)sizeof r->err;
  (void)snprintf(file, sizeof file, "tests/data/%s/model.onnx", name);
  const opipe_load_params load = {
      .struct_size = (uint32_t)OPIPE_END(opipe_load_params, memory_budget_bytes),
      .path = opi_test_source(file)};
  OPI_TRY(opipe_get_api(OPIPE_VIEW, &r->api, &r->err));
  OPI_TRY(r->api->context_create(&context, &r->context, &r->err));
  OPI_TRY(r->api->model_load(r->context, &load, &r->model, &r->err));
  for (uint32_t i = 0; i < SHAPES; ++i) {
    opipe_bind_options options = {
        .struct_size = (uint32_t)OPIPE_END(opipe_bind_options, default_batch),
        .flags = OPIPE_BIND_DEFAULTS,
        .dims = shapes[i],
        .n_dims = 2,
        .dims_stride = sizeof(opipe_dim)};
    opipe_status status = r->api->model_bind(r->model, &options, &r->bound[i], &r->err);
    if (status == OPIPE_E_NOTFOUND) { /* an image has no sequence */
      options.n_dims = 1;
      status = r->api->model_bind(r->model, &options, &r->bound[i], &r->err);
    }
    if (status < 0)
      return status;
  }
  return OPIPE_OK;
}

static opipe_status make_plan(rig *r, uint32_t n_stages, uint32_t n_microbatches,
                              const char *schedule, uint64_t memory_bytes) {
  const opipe_device_choice device = {.kind = r->options == NULL ? "cpu" : "emulated",
                                      .options = r->options,
                                      .memory_bytes = memory_bytes,
                                      .threads = 1};
  const opipe_plan_params params = {.struct_size = (uint32_t)OPIPE_END(opipe_plan_params, tensor),
                                    .tensor = r->tensor,
                                    .flags = r->scattered ? OPIPE_PLAN_SCATTERED : 0u,
                                    .transport = r->scattered ? "emulated" : NULL,
                                    .n_stages = n_stages,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof(opipe_device_choice),
                                    .n_microbatches = n_microbatches,
                                    .schedule = schedule};
  r->api->plan_destroy(r->plan);
  r->plan = NULL;
  return r->api->plan_make(r->bound[0], &params, &r->plan, &r->err);
}

static opipe_status open_session(rig *r, uint32_t flags, opipe_session **out) {
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .flags = flags,
      .watchdog_ns = r->watchdog_ns,
      .spin_us = UINT32_MAX};
  return r->api->session_open(r->context, r->plan, &params, out, &r->err);
}

/* ---- requests ---- */

static opipe_dtype dl_of(uint32_t dtype) {
  return opi_dtype_to_dl(dtype);
}

/* Fills `data`: floats in [-1, 1], integers below the limit that the model names, masks of ones. */
static void fill(opi_test_random *random, const opipe_tensor_info *info, void *data, size_t n) {
  if (info->dtype == OPIPE_FLOAT) {
    opi_test_fill_f32(random, data, n, -1, 1);
    return;
  }
  for (size_t i = 0; i < n && info->dtype == OPIPE_INT64; ++i) {
    const int64_t below = info->index_limit > 0 ? info->index_limit : 2;
    ((int64_t *)data)[i] =
        strstr(info->name, "mask") != NULL ? 1 : (int64_t)(opi_test_next(random) % (uint64_t)below);
  }
}

static opipe_status submit(rig *r, opipe_session *session, uint32_t shape, uint64_t seed,
                           opipe_request **out) {
  opipe_binding_io inputs[INPUTS];
  opi_test_random random = {seed};
  opipe_model_info model = {.struct_size = (uint32_t)sizeof model};
  opipe_status status = r->api->model_info(r->bound[shape], &model, &r->err);
  void *data[INPUTS] = {NULL};
  for (uint32_t i = 0; i < model.n_inputs && status == OPIPE_OK; ++i) {
    opipe_tensor_info info = {.struct_size = (uint32_t)sizeof info};
    uint64_t elems = 0;
    status = r->api->model_input(r->bound[shape], i, &info, &r->err);
    if (status < 0 || !opi_shape_elems(info.shape, info.rank, &elems))
      break;
    data[i] = calloc((size_t)elems + 1, 8);
    fill(&random, &info, data[i], (size_t)elems);
    inputs[i] = (opipe_binding_io){.name = info.name,
                                   .tensor = {.data = data[i],
                                              .device_type = OPIPE_DL_CPU,
                                              .rank = (int32_t)info.rank,
                                              .dtype = dl_of(info.dtype),
                                              .shape = info.shape}};
  }
  const opipe_submit_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = model.n_inputs,
      .io_stride = sizeof(opipe_binding_io),
      .inputs = inputs};
  if (status == OPIPE_OK)
    status = r->api->session_submit(session, &params, out, &r->err);
  if (status == OPIPE_OK)
    status = r->api->request_wait(*out, UINT64_MAX, &r->err);
  for (uint32_t i = 0; i < INPUTS; ++i)
    free(data[i]);
  return status;
}

static bool same_outputs(rig *r, opipe_request *a, opipe_request *b, uint32_t n) {
  for (uint32_t o = 0; o < n; ++o) {
    opipe_tensor x, y;
    uint64_t elems = 0;
    if (r->api->request_output(a, o, &x, &r->err) < 0 ||
        r->api->request_output(b, o, &y, &r->err) < 0)
      return false;
    if (x.rank != y.rank || !opi_shape_elems(x.shape, (uint32_t)x.rank, &elems))
      return false;
    for (int32_t d = 0; d < x.rank; ++d) {
      if (x.shape[d] != y.shape[d])
        return false;
    }
    if (memcmp(x.data, y.data, (size_t)elems * x.dtype.bits / 8) != 0)
      return false;
  }
  return true;
}

/* Shapes in turn through both sessions: the same bits. */
static void compare(rig *r, const char *name, uint32_t flags) {
  opipe_session *pipeline = NULL, *reference = NULL;
  opipe_model_info model = {.struct_size = (uint32_t)sizeof model};
  OPI_ASSERT_OK(r->api->model_info(r->bound[0], &model, &r->err), &r->err);
  OPI_ASSERT_OK(open_session(r, flags, &pipeline), &r->err);
  OPI_ASSERT_OK(open_session(r, OPIPE_SESSION_REFERENCE, &reference), &r->err);
  for (uint32_t i = 0; i < ROUNDS && pipeline != NULL && reference != NULL; ++i) {
    opipe_request *a = NULL, *b = NULL;
    OPI_ASSERT_OK(submit(r, pipeline, i % SHAPES, i / SHAPES, &a), &r->err);
    OPI_ASSERT_OK(submit(r, reference, i % SHAPES, i / SHAPES, &b), &r->err);
    if (a != NULL && b != NULL && !same_outputs(r, a, b, model.n_outputs))
      OPI_FAIL("%s: request %u differs from the reference (session flags %u)", name, i, flags);
    r->api->request_release(a);
    r->api->request_release(b);
  }
  r->api->session_close(pipeline);
  r->api->session_close(reference);
}

static void test_every_cut_has_the_bits_of_its_reference(void) {
  for (size_t m = 0; m < OPI_COUNT(MODELS); ++m) {
    rig r;
    OPI_ASSERT_OK_FATAL(open_rig(&r, MODELS[m]), &r.err);
    for (uint32_t n_stages = 1; n_stages <= 4; ++n_stages) {
      const char *schedule = n_stages % 2 == 0 ? "sequential" : "gpipe";
      const opipe_status status = make_plan(&r, n_stages, 1, schedule, 0);
      OPI_ASSERT_OK(status, &r.err);
      if (status == OPIPE_OK)
        compare(&r, MODELS[m], n_stages == 3 ? OPIPE_SESSION_POISON : 0);
    }
    close_rig(&r);
  }
}

static void test_micro_batches_have_the_bits_of_their_reference(void) {
  static const char *const schedules[2] = {"gpipe", "sequential"};
  for (uint32_t i = 0; i < 2; ++i) {
    rig r;
    OPI_ASSERT_OK_FATAL(open_rig(&r, MODELS[i]), &r.err);
    const opipe_status status = make_plan(&r, 3, 2, schedules[i], 0); /* 3 rows: 2 and 1 */
    OPI_ASSERT_OK(status, &r.err);
    if (status == OPIPE_OK)
      compare(&r, MODELS[i], 0);
    close_rig(&r);
  }
}

/* ---- memory ---- */

static void check_memory(rig *r, const char *name, uint32_t n_stages) {
  opipe_session *session = NULL;
  opipe_plan_info plan = {.struct_size = (uint32_t)sizeof plan};
  OPI_ASSERT_OK(r->api->plan_info(r->plan, &plan, &r->err), &r->err);
  OPI_ASSERT_OK(open_session(r, 0, &session), &r->err);
  for (uint32_t rank = 0; rank < plan.n_ranks && session != NULL; ++rank) {
    opipe_memory_info told = {.struct_size = (uint32_t)sizeof told}, found = told;
    OPI_ASSERT_OK(r->api->plan_memory(r->plan, rank, &told, &r->err), &r->err);
    OPI_ASSERT_OK(r->api->session_memory(session, rank, &found, &r->err), &r->err);
    if (memcmp(&told, &found, sizeof told) == 0)
      continue;
    OPI_FAIL(
        "%s, %u stages, rank %u: predicted/measured parameters %llu/%llu, activations "
        "%llu/%llu, workspace %llu/%llu, boundaries %llu/%llu, total %llu/%llu, mapped %llu/%llu",
        name, n_stages, rank, (unsigned long long)told.params_bytes,
        (unsigned long long)found.params_bytes, (unsigned long long)told.activation_bytes,
        (unsigned long long)found.activation_bytes, (unsigned long long)told.workspace_bytes,
        (unsigned long long)found.workspace_bytes, (unsigned long long)told.boundary_bytes,
        (unsigned long long)found.boundary_bytes, (unsigned long long)told.total_bytes,
        (unsigned long long)found.total_bytes, (unsigned long long)told.mapped_bytes,
        (unsigned long long)found.mapped_bytes);
  }
  r->api->session_close(session);
}

/* Widths that divide heads and hidden features evenly or not; micro-batches of 2 rows and 1. */
static void test_tensor_groups_have_the_bits_of_their_reference(void) {
  static const struct {
    const char *name;
    uint32_t tensor, n_stages, n_microbatches;
    const char *schedule;
    bool scattered;
  } cases[] = {{"gpt_8block", 2, 1, 1, "gpipe", false},
               {"llama_8block", 3, 2, 1, "gpipe", true},
               {"encoder", 2, 2, 2, "gpipe", true},
               {"gpt_8block", 3, 2, 2, "terapipe:slices=3", true},
               {"llama_fp16", 2, 1, 2, "terapipe", false},
               {"gpt_bf16", 2, 2, 1, "gpipe", false}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    rig r;
    OPI_ASSERT_OK_FATAL(open_rig(&r, cases[i].name), &r.err);
    r.tensor = cases[i].tensor;
    r.scattered = cases[i].scattered;
    const opipe_status status =
        make_plan(&r, cases[i].n_stages, cases[i].n_microbatches, cases[i].schedule, 0);
    OPI_ASSERT_OK(status, &r.err);
    if (status == OPIPE_OK)
      compare(&r, cases[i].name, i % 2 == 1 ? OPIPE_SESSION_POISON : 0);
    if (status == OPIPE_OK)
      check_memory(&r, cases[i].name, cases[i].n_stages);
    close_rig(&r);
  }
}

static void test_one_byte_less_is_too_little_for_a_member(void) {
  rig r;
  uint64_t sum = 0;
  OPI_ASSERT_OK_FATAL(open_rig(&r, "gpt_8block"), &r.err);
  r.tensor = 2;
  OPI_ASSERT_OK_FATAL(make_plan(&r, 1, 1, NULL, 0), &r.err);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    opipe_memory_info memory = {.struct_size = (uint32_t)sizeof memory};
    OPI_ASSERT_OK(r.api->plan_memory(r.plan, rank, &memory, &r.err), &r.err);
    sum += memory.total_bytes;
  }
  OPI_ASSERT_ERROR(make_plan(&r, 1, 1, NULL, sum - 1), OPIPE_E_LIMIT, &r.err, "by 1 byte");
  OPI_ASSERT_OK(make_plan(&r, 1, 1, NULL, sum), &r.err);
  check_memory(&r, "gpt_8block", 1);
  close_rig(&r);
}

/* Both members' devices stand still in their fourth program. */
static void test_a_stalled_member_is_named(void) {
  rig r;
  opipe_session *session = NULL;
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(open_rig(&r, "gpt_8block"), &r.err);
  r.tensor = 2;
  r.options = "stall_run=4:500";
  r.watchdog_ns = 100000000;
  OPI_ASSERT_OK_FATAL(make_plan(&r, 1, 1, NULL, 0), &r.err);
  OPI_ASSERT_OK_FATAL(open_session(&r, 0, &session), &r.err);
  OPI_ASSERT_ERROR(submit(&r, session, 0, 1, &request), OPIPE_E_TIMEOUT, &r.err,
                   "of stage 0 (request 0, micro-batch 0, member ");
  OPI_ASSERT(strstr(r.err.message, "has been in the program") != NULL);
  r.api->request_release(request);
  r.api->session_close(session);
  close_rig(&r);
}

static void test_measured_memory_is_the_prediction(void) {
  for (size_t m = 0; m < OPI_COUNT(MODELS); ++m) {
    rig r;
    OPI_ASSERT_OK_FATAL(open_rig(&r, MODELS[m]), &r.err);
    for (uint32_t n_stages = 1; n_stages <= 4; ++n_stages) {
      const opipe_status status = make_plan(&r, n_stages, n_stages == 3 && m < 2 ? 2 : 1, NULL, 0);
      OPI_ASSERT_OK(status, &r.err);
      if (status == OPIPE_OK)
        check_memory(&r, MODELS[m], n_stages);
    }
    close_rig(&r);
  }
}

static opipe_status append(void *ctx, const void *data, size_t n) {
  opi_text_add(ctx, data, n);
  return OPIPE_OK;
}

/* The same plan with another cap: its text with another number, read again. */
static opipe_status cap_plan(rig *r, uint64_t memory_bytes) {
  static const char key[] = "\"memory_bytes\": ";
  opi_text text, capped;
  opi_text_init(&text, opi_allocator_system());
  opi_text_init(&capped, opi_allocator_system());
  opipe_status status = r->api->plan_write(r->plan, append, &text, &r->err);
  const char *at = status == OPIPE_OK ? strstr(text.data, key) : NULL;
  OPI_ASSERT(at != NULL);
  if (at != NULL) {
    const char *number = at + sizeof key - 1;
    opi_text_add(&capped, text.data, (size_t)(number - text.data));
    opi_text_printf(&capped, "%llu", (unsigned long long)memory_bytes);
    opi_text_puts(&capped, number + strspn(number, "0123456789"));
    opipe_plan *plan = NULL;
    status = r->api->plan_read(r->model, capped.data, capped.n, &plan, &r->err);
    if (status == OPIPE_OK) {
      r->api->plan_destroy(r->plan);
      r->plan = plan;
    }
  }
  opi_text_release(&text);
  opi_text_release(&capped);
  return status;
}

static void test_the_predicted_memory_is_just_enough(void) {
  for (size_t m = 0; m < 3; ++m) {
    rig r;
    opipe_memory_info memory = {.struct_size = (uint32_t)sizeof memory};
    opipe_session *session = NULL;
    opipe_request *request = NULL;
    OPI_ASSERT_OK_FATAL(open_rig(&r, MODELS[m]), &r.err);
    OPI_ASSERT_OK_FATAL(make_plan(&r, 1, 1, NULL, 0), &r.err);
    OPI_ASSERT_OK(r.api->plan_memory(r.plan, 0, &memory, &r.err), &r.err);
    OPI_ASSERT_ERROR(cap_plan(&r, memory.total_bytes - 1), OPIPE_E_LIMIT, &r.err, "by 1 byte");
    OPI_ASSERT_OK(cap_plan(&r, memory.total_bytes), &r.err);
    OPI_ASSERT_OK(open_session(&r, 0, &session), &r.err);
    if (session != NULL) {
      OPI_ASSERT_OK(submit(&r, session, 0, 1, &request), &r.err);
      r.api->request_release(request);
      request = NULL;
      /* A shape more does not fit, and harms nothing. */
      OPI_ASSERT_ERROR(submit(&r, session, 2, 1, &request), OPIPE_E_LIMIT, &r.err, "rank 0");
      OPI_ASSERT_OK(submit(&r, session, 0, 2, &request), &r.err);
      r.api->request_release(request);
    }
    r.api->session_close(session);
    close_rig(&r);
  }
}

/* The ranks of one device have its cap together, in a session as in a plan: a shape that takes more
 * than all of it is refused, though each rank alone would have room. */
static void test_ranks_share_a_cap(void) {
  rig r;
  uint64_t sum = 0;
  opipe_session *session = NULL;
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(open_rig(&r, MODELS[0]), &r.err);
  OPI_ASSERT_OK_FATAL(make_plan(&r, 2, 1, NULL, 0), &r.err);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    opipe_memory_info memory = {.struct_size = (uint32_t)sizeof memory};
    OPI_ASSERT_OK(r.api->plan_memory(r.plan, rank, &memory, &r.err), &r.err);
    sum += memory.total_bytes;
  }
  OPI_ASSERT_ERROR(make_plan(&r, 2, 1, NULL, sum / 2 + 4096), OPIPE_E_LIMIT, &r.err,
                   "device cpu:0: ranks 0 and 1 need");
  OPI_ASSERT_OK_FATAL(make_plan(&r, 2, 1, NULL, sum), &r.err);
  OPI_ASSERT_OK_FATAL(open_session(&r, 0, &session), &r.err);
  for (uint32_t round = 0; round < 2; ++round) {
    OPI_ASSERT_OK(submit(&r, session, 0, 1, &request), &r.err);
    r.api->request_release(request);
    request = NULL;
    OPI_ASSERT_ERROR(submit(&r, session, 2, 1, &request), OPIPE_E_LIMIT, &r.err, "of device cpu:0");
  }
  r.api->session_close(session);
  close_rig(&r);
}

OPI_TEST_MAIN("models", OPI_TEST(test_every_cut_has_the_bits_of_its_reference),
              OPI_TEST(test_micro_batches_have_the_bits_of_their_reference),
              OPI_TEST(test_tensor_groups_have_the_bits_of_their_reference),
              OPI_TEST(test_one_byte_less_is_too_little_for_a_member),
              OPI_TEST(test_a_stalled_member_is_named),
              OPI_TEST(test_measured_memory_is_the_prediction),
              OPI_TEST(test_the_predicted_memory_is_just_enough), OPI_TEST(test_ranks_share_a_cap))
