/* SPDX-License-Identifier: Apache-2.0 */
/* Training: every schedule on six models, 2 and 4 ranks, whole and uneven micro-batches; SGD and
 * AdamW in turn, in bf16 and fp16 ranks too. Three steps each. Bytes are those of the portable
 * kernels; bits are the same for all (of bf16 where it is widened), so the machine's own compute
 * them. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/digests/digests.h"
#include "tests/runtime/train/cases.h"

enum { STEPS = 3, INPUTS = 16, DIMS = 4, CLASSES = 32, TOKENS = 8, PARTS = 24 };

static const struct {
  int64_t rows;
  uint32_t microbatches[2];
} BATCHES[] = {{8, {8, 3}}, {11, {4, 0}}};

/* One model in one batch size. */
typedef struct trainer {
  const opipe_api *api;
  opipe_context *context;
  opipe_model *model, *bound;
  opipe_error err;
  opi_arena arena;
  opipe_binding_io inputs[STEPS][INPUTS];
  uint32_t n_inputs;
  const char *logits;
} trainer;

static opipe_status bind(trainer *t, int64_t rows) {
  opipe_tensor_info info = {.struct_size = sizeof info};
  opipe_dim dims[DIMS];
  uint32_t n = 0;
  int64_t tokens = TOKENS;
  for (uint32_t i = 0; t->api->model_input(t->model, i, &info, NULL) == OPIPE_OK; ++i) {
    for (uint32_t d = 0; d < info.rank; ++d) {
      const char *name = info.dim_names == NULL ? NULL : info.dim_names[d];
      uint32_t j = 0;
      if (info.shape[d] >= 0 || name == NULL)
        continue;
      while (j < n && strcmp(dims[j].name, name) != 0)
        ++j;
      if (j < n || n == DIMS)
        continue;
      dims[n++] = (opipe_dim){name, d == 0 ? rows : tokens};
      tokens -= d == 0 ? 0 : 2; /* a decoder's sequences are shorter */
    }
  }
  const opipe_bind_options options = {.struct_size = sizeof options,
                                      .flags = OPIPE_BIND_DEFAULTS | OPIPE_BIND_TRAIN,
                                      .dims = dims,
                                      .n_dims = n,
                                      .dims_stride = sizeof *dims};
  return t->api->model_bind(t->model, &options, &t->bound, &t->err);
}

static opipe_binding_io tensor(trainer *t, const char *name, uint32_t dtype, const int64_t *shape,
                               uint32_t rank, void *data) {
  int64_t *own = opi_arena_copy(&t->arena, shape, rank * sizeof *shape);
  return (opipe_binding_io){
      .name = name,
      .tensor = {.data = data,
                 .device_type = OPIPE_DL_CPU,
                 .rank = (int32_t)rank,
                 .dtype = {dtype == OPIPE_FLOAT ? OPIPE_DL_FLOAT : OPIPE_DL_INT,
                           dtype == OPIPE_FLOAT ? 32 : 64, 1},
                 .shape = own}};
}

static uint64_t count(const int64_t *shape, uint32_t rank) {
  uint64_t n = 1;
  for (uint32_t d = 0; d < rank; ++d)
    n *= (uint64_t)shape[d];
  return n;
}

/* Seeded inputs; of a mask the last two tokens of the last row are 0. */
static opipe_status fill(trainer *t, uint32_t step) {
  opipe_tensor_info info = {.struct_size = sizeof info};
  opi_test_random random = {500 + step};
  uint32_t i = 0;
  for (; t->api->model_input(t->bound, i, &info, NULL) == OPIPE_OK && i + 1 < INPUTS; ++i) {
    const uint64_t n = count(info.shape, info.rank);
    const uint64_t limit = info.index_limit > 0 ? (uint64_t)info.index_limit : 2;
    const bool mask = strstr(info.name, "mask") != NULL;
    int64_t *data = OPI_ARENA_ARRAY(&t->arena, int64_t, n);
    if (data == NULL || (info.dtype != OPIPE_FLOAT && info.dtype != OPIPE_INT64))
      return opi_fail(&t->err, OPIPE_E_UNSUPPORTED, "input '%s'", info.name);
    if (info.dtype == OPIPE_FLOAT)
      opi_test_fill_f32(&random, (float *)(void *)data, (size_t)n, -1, 1);
    for (uint64_t e = 0; e < n && info.dtype == OPIPE_INT64; ++e)
      data[e] = mask ? e + 2 < n : (int64_t)(opi_test_next(&random) % limit);
    t->inputs[step][i] = tensor(t, info.name, info.dtype, info.shape, info.rank, data);
  }
  OPI_TRY(t->api->model_output(t->bound, 0, &info, &t->err));
  const uint64_t n = count(info.shape, info.rank - 1);
  int64_t *labels = OPI_ARENA_ARRAY(&t->arena, int64_t, n);
  if (labels == NULL)
    return OPIPE_E_NOMEM;
  for (uint64_t e = 0; e < n; ++e) {
    labels[e] =
        opi_test_next(&random) % 7 == 0 ? -100 : (int64_t)(opi_test_next(&random) % CLASSES);
  }
  t->logits = info.name;
  t->inputs[step][i] = tensor(t, "labels", OPIPE_INT64, info.shape, info.rank - 1, labels);
  t->n_inputs = i + 1;
  return OPIPE_OK;
}

static opipe_status open_trainer(trainer *t, const char *path, int64_t rows) {
  const opipe_load_params load = {.struct_size = sizeof load, .path = path};
  memset(t, 0, sizeof *t);
  t->err.struct_size = sizeof t->err;
  opi_arena_init(&t->arena, opi_allocator_system(), 0);
  OPI_TRY(opipe_get_api(OPIPE_VIEW, &t->api, &t->err));
  OPI_TRY(t->api->context_create(NULL, &t->context, &t->err));
  OPI_TRY(t->api->model_load(t->context, &load, &t->model, &t->err));
  OPI_TRY(bind(t, rows));
  for (uint32_t s = 0; s < STEPS; ++s)
    OPI_TRY(fill(t, s));
  return OPIPE_OK;
}

static void close_trainer(trainer *t) {
  if (t->api != NULL) {
    t->api->model_destroy(t->bound);
    t->api->model_destroy(t->model);
    t->api->context_destroy(t->context);
  }
  opi_arena_release(&t->arena);
}

/* ---- one case ---- */

typedef struct choice {
  const kit_schedule *schedule;
  uint32_t n_ranks, n_microbatches, optimizer, dtype;
} choice;

static opipe_status make_plan(trainer *t, const choice *c, const char *kernels,
                              opipe_plan **out_plan) {
  char name[600];
  const opipe_device_choice device = {.kind = "cpu", .options = kernels, .threads = 1};
  opipe_train_options train = {.struct_size = sizeof train,
                               .loss = OPIPE_LOSS_CROSS_ENTROPY,
                               .output = t->logits,
                               .labels = "labels",
                               .ignore = -100,
                               .compute = c->dtype,
                               .optimizer = OPIPE_OPTIMIZER_SGD,
                               .lr = 0.05,
                               .momentum = 0.9};
  if (c->optimizer != 0) {
    train.optimizer = OPIPE_OPTIMIZER_ADAMW;
    train.lr = 0.001;
    train.momentum = 0;
    train.beta1 = 0.9;
    train.beta2 = 0.999;
    train.epsilon = 1e-8;
    train.decay = 0.01;
    train.clip_norm = 1;
  }
  kit_schedule_name(c->schedule, c->n_ranks, c->n_microbatches, name, sizeof name);
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_ranks = c->n_ranks,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof device,
                                    .n_microbatches = c->n_microbatches,
                                    .schedule = name,
                                    .train = &train};
  return t->api->plan_make(t->bound, &params, out_plan, &t->err);
}

static opipe_status hash_weights(trainer *t, opipe_session *session, dg_hash *out) {
  opipe_parameter_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; t->api->session_parameter(session, i, &info, NULL) == OPIPE_OK; ++i) {
    if (info.trained == 0)
      continue;
    void *data = malloc(info.n_bytes);
    opipe_status status = data == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
    if (status == OPIPE_OK) {
      status = t->api->session_get(session, info.name, OPIPE_STATE_WEIGHT, 0, data, info.n_bytes,
                                   &t->err);
    }
    if (status == OPIPE_OK) {
      dg_add(out, info.name, strlen(info.name));
      dg_add(out, data, (size_t)info.n_bytes);
    }
    free(data);
    OPI_TRY(status);
  }
  return OPIPE_OK;
}

static opipe_status train(trainer *t, opipe_session *session, dg_hash *losses, dg_hash *weights) {
  opipe_request *tickets[STEPS] = {NULL};
  opipe_status status = OPIPE_OK;
  for (uint32_t s = 0; s < STEPS && status == OPIPE_OK; ++s) {
    const opipe_submit_params params = {.struct_size = sizeof params,
                                        .n_inputs = t->n_inputs,
                                        .io_stride = sizeof(opipe_binding_io),
                                        .inputs = t->inputs[s]};
    status = t->api->session_train_step(session, &params, &tickets[s], &t->err);
  }
  if (status == OPIPE_OK)
    status = t->api->session_flush(session, &t->err);
  for (uint32_t s = 0; s < STEPS; ++s) {
    opipe_train_report report = {.struct_size = sizeof report};
    if (status == OPIPE_OK)
      status = t->api->request_wait(tickets[s], UINT64_C(60000000000), &t->err);
    if (status == OPIPE_OK)
      status = t->api->request_report(tickets[s], &report, &t->err);
    dg_add(losses, &report.loss, sizeof report.loss);
    t->api->request_release(tickets[s]);
  }
  return status == OPIPE_OK ? hash_weights(t, session, weights) : status;
}

static void one_case(dg_table *table, trainer *t, const choice *c) {
  char item[200], value[100], a[9], b[9];
  const opipe_session_params params = {.struct_size = sizeof params, .max_in_flight = STEPS + 1};
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  dg_plan_text text;
  dg_hash losses = {0}, weights = {0};
  (void)snprintf(item, sizeof item, "%s/%u/%u/%s", c->schedule->name, c->n_ranks, c->n_microbatches,
                 kit_optimizers[c->optimizer].name);
  opipe_status status = make_plan(t, c, "kernels=portable", &plan);
  if (status != OPIPE_OK) {
    (void)snprintf(value, sizeof value, "refused %d", status);
  } else {
    status = dg_plan(t->api, plan, &text, &t->err);
    t->api->plan_destroy(plan);
    plan = NULL;
    if (status == OPIPE_OK)
      status = make_plan(t, c, "bf16=widen", &plan);
    if (status == OPIPE_OK)
      status = t->api->session_open(t->context, plan, &params, &session, &t->err);
    if (status == OPIPE_OK)
      status = train(t, session, &losses, &weights);
    OPI_ASSERT_OK(status, &t->err);
    (void)snprintf(value, sizeof value, "%s %s %s", dg_hex(&losses, a), dg_hex(&weights, b),
                   text.text);
  }
  dg_case(table, item, value);
  t->api->session_close(session);
  t->api->plan_destroy(plan);
}

/* ---- the matrix ---- */

static void one_batch(dg_table *table, trainer *t, size_t batch, uint32_t *io_turn) {
  for (size_t s = 0; s < kit_n_schedules; ++s) {
    for (uint32_t i = 0; i < 2 && BATCHES[batch].microbatches[i] != 0; ++i) {
      for (uint32_t c = 0; c < 2; ++c, ++*io_turn) {
        const choice now = {&kit_schedules[s], 2 + c * 2, BATCHES[batch].microbatches[i],
                            (uint32_t)(s + i + c) % 2, OPIPE_FLOAT};
        if (opi_test_covers(*io_turn, PARTS) && (kit_schedules[s].traits & KIT_BOUNDED) == 0)
          one_case(table, t, &now);
      }
    }
  }
}

static void half_types(dg_table *table, trainer *t, const char *subject) {
  for (size_t h = 1; h < OPI_COUNT(kit_computes); ++h) {
    dg_group(table, "%s %s", subject, kit_computes[h].name);
    for (size_t s = 0; s < kit_n_schedules; ++s) {
      const choice now = {&kit_schedules[s], 2 + (uint32_t)(s + h) % 2 * 2,
                          BATCHES[1].microbatches[0], (uint32_t)s / 2 % 2, kit_computes[h].dtype};
      if (opi_test_covers(s + h, PARTS) && (kit_schedules[s].traits & KIT_BOUNDED) == 0)
        one_case(table, t, &now);
    }
  }
}

void dg_training(size_t subject) {
  const char *found = kit_subject_path(&kit_subjects[subject]);
  char path[1024], name[64];
  uint32_t turn = (uint32_t)subject;
  if (found == NULL)
    return;
  (void)snprintf(path, sizeof path, "%s", found); /* such texts do not last */
  (void)snprintf(name, sizeof name, "training_%s", kit_subjects[subject].name);
  dg_table *table = dg_open(name);
  for (size_t batch = 0; table != NULL && batch < OPI_COUNT(BATCHES); ++batch) {
    trainer t;
    dg_group(table, "%lld rows", (long long)BATCHES[batch].rows);
    if (OPI_ASSERT_OK(open_trainer(&t, path, BATCHES[batch].rows), &t.err)) {
      one_batch(table, &t, batch, &turn);
      if (batch == 1)
        half_types(table, &t, kit_subjects[subject].name);
    }
    close_trainer(&t);
  }
  if (table != NULL)
    dg_close(table);
}
