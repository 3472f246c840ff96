/* SPDX-License-Identifier: Apache-2.0 */
/* An accepted plan runs: two requests, or two steps of training, by its schedule and by its
 * reference; see plans.h. Data is seeded: the same plan, the same outcome.
 */
#include "partition/program/batch.h"
#include "tests/fuzz/plans.h"
#include "tests/support/support.h"

enum {
  INPUTS = 16,
  ROUNDS = 2,
  RANKS_MOST = 8,
  ACTIONS_MOST = 512,
  THREADS_MOST = 4,
  WORK_MOST = 1 << 16 /* elements of all inputs */
};
static const uint64_t BYTES_MOST = UINT64_C(64) << 20, ELEMENTS_MOST = WORK_MOST;
static const uint64_t SECOND = UINT64_C(1000000000);

typedef struct batch {
  opipe_binding_io inputs[INPUTS];
  int64_t labels_shape[OPIPE_MAX_RANK];
  uint32_t n;
} batch;

typedef struct running {
  const plan_bench *bench;
  opipe_plan *plan;
  opi_bound *bound; /* of a whole request */
  opi_arena arena;
  batch batches[ROUNDS];
  opipe_error err;
} running;

/* ---- plans that are worth running ---- */

/* Delays that a plan asks for are no finding: only the seeds' devices and transports run. */
static bool is_seeded(const plan_bench *b, const opi_plan *p) {
  bool transport = false;
  for (uint32_t i = 0; i < b->n_seeds && !transport; ++i) {
    const char *text = json_string_value(json_object_get(b->seeds[i].root, "transport"));
    transport = text != NULL && strcmp(text, p->decided.transport) == 0;
  }
  for (uint32_t r = 0; r < p->decided.n_ranks; ++r) {
    if (strcmp(p->decided.devices[r].kind, "cpu") != 0 ||
        p->decided.devices[r].threads > THREADS_MOST)
      return false;
  }
  return transport;
}

static bool is_small(const opi_plan *p) {
  uint64_t total = 0;
  if (p->decided.n_ranks > RANKS_MOST || p->decided.n_actions > ACTIONS_MOST)
    return false;
  for (uint32_t r = 0; r < p->decided.n_ranks; ++r) {
    total += p->predicted.memory[r].total_bytes;
    if (p->predicted.memory[r].total_bytes > BYTES_MOST)
      return false;
  }
  return total <= BYTES_MOST;
}

/* ---- data ---- */

static void put_elements(opi_test_random *random, const opi_value *value, int64_t limit,
                         uint8_t *data) {
  if (value->dtype == OPIPE_FLOAT) {
    opi_test_fill_f32(random, (float *)(void *)data, (size_t)value->n_bytes / 4, -1, 1);
  } else if (value->dtype == OPIPE_INT64) {
    for (uint64_t e = 0; e < value->n_bytes / 8; ++e)
      ((int64_t *)(void *)data)[e] = (int64_t)(opi_test_next(random) % (uint64_t)limit);
  } else {
    for (uint64_t e = 0; e < value->n_bytes; ++e)
      data[e] = (uint8_t)(opi_test_next(random) % 2);
  }
}

static bool put_input(running *run, batch *b, const char *name, uint32_t dtype,
                      const int64_t *shape, int32_t rank, int64_t limit, opi_test_random *random) {
  opi_value value = {.dtype = dtype};
  if (b->n == INPUTS || !opi_tensor_bytes(dtype, shape, (uint32_t)rank, &value.n_bytes) ||
      value.n_bytes > 8 * ELEMENTS_MOST)
    return false;
  uint8_t *data = opi_arena_alloc(&run->arena, (size_t)value.n_bytes + 8);
  if (data == NULL)
    return false;
  put_elements(random, &value, limit > 0 ? limit : 2, data);
  b->inputs[b->n++] = (opipe_binding_io){.name = name,
                                         .tensor = {.data = data,
                                                    .device_type = OPIPE_DL_CPU,
                                                    .rank = rank,
                                                    .dtype = opi_dtype_to_dl(dtype),
                                                    .shape = shape}};
  return true;
}

/* The output that the loss reads: the one it names, or the only one. */
static const opi_value *judged(const opi_graph *g, const char *name) {
  for (uint32_t i = 0; i < g->n_outputs; ++i) {
    if (name == NULL || strcmp(g->values[g->outputs[i]].name, name) == 0)
      return &g->values[g->outputs[i]];
  }
  return &g->values[g->outputs[0]];
}

static bool put_labels(running *run, batch *b, opi_test_random *random) {
  const opi_loss *loss = &plan_behind(run->plan)->decided.train->loss;
  const opi_value *output = judged(run->bound->graph, loss->output);
  const bool classes = loss->kind == OPI_LOSS_CROSS_ENTROPY;
  const int32_t rank = output->rank - (classes ? 1 : 0);
  if (loss->kind == OPI_LOSS_OUTPUT || loss->labels == NULL)
    return true;
  for (uint32_t i = 0; i < b->n; ++i) {
    if (strcmp(b->inputs[i].name, loss->labels) == 0)
      return true;
  }
  for (int32_t d = 0; d < rank; ++d)
    b->labels_shape[d] = output->shape[d];
  return rank >= 0 &&
         put_input(run, b, loss->labels, classes ? OPIPE_INT64 : OPIPE_FLOAT, b->labels_shape, rank,
                   classes ? output->shape[output->rank - 1] : 0, random);
}

static bool make_batches(running *run) {
  const opi_graph *g = run->bound->graph;
  opi_test_random random = {17};
  for (uint32_t round = 0; round < ROUNDS; ++round) {
    batch *b = &run->batches[round];
    for (uint32_t i = 0; i < g->n_inputs; ++i) {
      const opi_value *v = &g->values[g->inputs[i]];
      if (!put_input(run, b, v->name, v->dtype, v->shape, v->rank, run->bound->index_limits[i],
                     &random))
        return false;
    }
    if (plan_behind(run->plan)->decided.train != NULL && !put_labels(run, b, &random))
      return false;
  }
  return g->n_outputs > 0;
}

/* ---- runs ---- */

static opipe_status submit(running *run, opipe_session *session, uint32_t round,
                           opipe_request **out_request) {
  const opipe_api *api = run->bench->api;
  const batch *b = &run->batches[round];
  const opipe_submit_params params = {.struct_size = (uint32_t)sizeof params,
                                      .n_inputs = b->n,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = b->inputs};
  return plan_behind(run->plan)->decided.train != NULL
             ? api->session_train_step(session, &params, out_request, &run->err)
             : api->session_submit(session, &params, out_request, &run->err);
}

static void take_outputs(running *run, opipe_request *request, plan_text *out) {
  opipe_tensor tensor;
  for (uint32_t i = 0; run->bench->api->request_output(request, i, &tensor, NULL) == OPIPE_OK;
       ++i) {
    size_t n = (size_t)tensor.dtype.bits / 8 * tensor.dtype.lanes;
    (void)plan_take(out, &tensor.rank, sizeof tensor.rank); /* an output may have no element */
    for (int32_t d = 0; d < tensor.rank; ++d)
      n *= (size_t)tensor.shape[d];
    if (n != 0)
      (void)plan_take(out, (const char *)tensor.data + tensor.byte_offset, n);
  }
}

static void take_weights(running *run, opipe_session *session, plan_text *out) {
  const opipe_api *api = run->bench->api;
  opipe_parameter_info info = {.struct_size = (uint32_t)sizeof info};
  for (uint32_t i = 0; api->session_parameter(session, i, &info, NULL) == OPIPE_OK; ++i) {
    void *data = malloc((size_t)info.n_bytes + 1);
    must(data != NULL && api->session_get(session, info.name, OPIPE_STATE_WEIGHT, 0, data,
                                          info.n_bytes, &run->err) == OPIPE_OK,
         run->err.message);
    (void)plan_take(out, data, (size_t)info.n_bytes);
    free(data);
  }
}

/* The prediction stands in the file, changed or not; the session counted for itself. */
static void check_memory(running *run, opipe_session *session) {
  const opipe_api *api = run->bench->api;
  for (uint32_t r = 0; r < plan_behind(run->plan)->decided.n_ranks; ++r) {
    opipe_memory_info p = {.struct_size = (uint32_t)sizeof p};
    opipe_memory_info m = {.struct_size = (uint32_t)sizeof m};
    must(api->plan_memory(run->plan, r, &p, &run->err) == OPIPE_OK, run->err.message);
    must(api->session_memory(session, r, &m, &run->err) == OPIPE_OK, run->err.message);
    char text[200];
    (void)snprintf(text, sizeof text, "rank %u: %llu bytes measured, its cap is %llu", r,
                   (unsigned long long)m.total_bytes, (unsigned long long)p.cap_bytes);
    must(m.total_bytes <= p.cap_bytes, text);
  }
}

/* All rounds in flight together; the last one first, which flushes. */
static opipe_status run_rounds(running *run, opipe_session *session, plan_text *out) {
  const opipe_api *api = run->bench->api;
  opipe_request *requests[ROUNDS] = {NULL};
  opipe_status status = OPIPE_OK;
  uint32_t n = 0;
  while (n < ROUNDS && status == OPIPE_OK) {
    status = submit(run, session, n, &requests[n]);
    n += status == OPIPE_OK;
  }
  must(status != OPIPE_PENDING, "a session takes no request");
  if (status < 0)
    plan_must_refuse("a submission", status, &run->err);
  for (uint32_t i = n; i-- > 0 && status == OPIPE_OK;) {
    status = api->request_wait(requests[i], 60 * SECOND, &run->err);
    must(status == OPIPE_OK, run->err.message);
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (status == OPIPE_OK)
      take_outputs(run, requests[i], out);
    api->request_release(requests[i]);
  }
  if (status == OPIPE_OK)
    take_weights(run, session, out);
  return status;
}

/* False: refused, with its reason. */
static bool run_under(running *run, uint32_t flags, plan_text *out) {
  const opipe_api *api = run->bench->api;
  opipe_session *session = NULL;
  const opipe_session_params params = {.struct_size = (uint32_t)sizeof params,
                                       .flags = flags,
                                       .max_in_flight = 4,
                                       .watchdog_ns = 15 * SECOND,
                                       .spin_us = UINT32_MAX};
  opipe_status status =
      api->session_open(run->bench->context, run->plan, &params, &session, &run->err);
  if (status < 0) {
    plan_must_refuse("a session", status, &run->err);
    return false;
  }
  status = run_rounds(run, session, out);
  if (status == OPIPE_OK && flags == 0) /* red zones take more */
    check_memory(run, session);
  api->session_close(session);
  return status == OPIPE_OK;
}

void plan_run(const plan_bench *bench, opipe_plan *plan, uint32_t choice, plan_tally *tally) {
  const opi_plan *p = plan_behind(plan);
  const opi_plan_object *object = plan_object(plan, OPI_HANDLE_PLAN);
  running run = {.bench = bench, .plan = plan, .err = OPIPE_ERROR_INIT};
  plan_text a = {.data = NULL}, b = {.data = NULL};
  opi_bind_options base = {.allocator = opi_allocator_system()};
  if (!is_small(p) || !is_seeded(bench, p))
    return;
  opi_arena_init(&run.arena, opi_allocator_system(), 0);
  must(opi_context_evaluator(plan_object(bench->context, OPI_HANDLE_CONTEXT), &base.evaluator,
                             &run.err) == OPIPE_OK,
       run.err.message);
  must(opi_plan_bind(&p->decided, object->model->file, &base,
                     p->decided.binding.batch_dim == NULL ? 0 : p->decided.binding.batch_rows,
                     &run.bound, &run.err) == OPIPE_OK,
       run.err.message);
  if (make_batches(&run)) {
    const bool opened = run_under(&run, choice % 2 == 0 ? 0 : OPIPE_SESSION_POISON, &a);
    tally->not_opened += !opened;
    tally->ran += opened && p->decided.train == NULL;
    tally->trained += opened && p->decided.train != NULL;
    must(!opened || run_under(&run, OPIPE_SESSION_REFERENCE, &b), run.err.message);
    must(!opened || (a.n > 0 && a.n == b.n && memcmp(a.data, b.data, a.n) == 0),
         "results are not the reference's");
  }
  free(a.data);
  free(b.data);
  opi_bound_free(run.bound);
  opi_arena_release(&run.arena);
}
