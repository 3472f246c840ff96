/* SPDX-License-Identifier: Apache-2.0 */
/* See rows.h. */
#include "runtime/rows/rows.h"

#include <opipe/host_helpers.h>
#include <string.h>

#include "loader/passes/row_model.h"
#include "partition/program/states.h"

enum { IDS, POSITION, SEQUENCE, TABLE, WANTED, COPIES, INPUTS };
enum { SEQUENCES_FOR_ACTIVE = 4 };

/* A pass in flight. */
typedef struct group {
  int64_t *data[INPUTS]; /* of the largest class; ids of their own type */
  int64_t shape[INPUTS][2];
  void *logits;         /* of the largest class */
  opi_request *request; /* NULL: none */
} group;

typedef struct rows {
  opi_session *session;
  opi_pass_caller caller;
  uint32_t home; /* the replica that computes the passes */
  const opi_row_model *model;
  const char *names[INPUTS], *output;
  uint32_t ids_dtype, logits_dtype;
  int64_t logits_shape[OPIPE_MAX_RANK];          /* of the largest class */
  int32_t logits_rank, logits_axis;              /* axis: of wanted rows; all before it are 1 */
  uint32_t n_classes, n_groups, first, n_flying; /* first: of the oldest */
  uint32_t table_room;
  group *groups; /* [n_groups] */
  opi_arena arena;
} rows;

static const opi_generation *decided(const rows *r) {
  return &r->session->setup->plan->decided.binding.generation;
}

/* ---- begin ---- */

/* The smallest class with room for the pass. */
static opipe_status find_class(const rows *r, const opi_pass_rows *pass, opi_row_wish *out,
                               opipe_error *err) {
  *out = (opi_row_wish){.rows = 0};
  for (uint32_t c = 0; c < r->n_classes; ++c) {
    *out = opi_row_model_wish(r->model, opi_generation_rows(decided(r), c));
    if (pass->n_rows <= out->rows && pass->n_wanted <= out->wanted &&
        pass->n_sequences <= out->sequences && pass->n_copies <= out->copies)
      return OPIPE_OK;
  }
  return opi_fail(err, OPIPE_E_INVALID,
                  "a pass of %u rows, %u of them wanted, of %u sequences with %u copies: the plan "
                  "has room for %lld, %lld, %lld and %lld",
                  pass->n_rows, pass->n_wanted, pass->n_sequences, pass->n_copies,
                  (long long)out->rows, (long long)out->wanted, (long long)out->sequences,
                  (long long)out->copies);
}

static void put_ids(const rows *r, void *to, const int64_t *ids, uint32_t n) {
  for (uint32_t i = 0; i < n && r->ids_dtype == OPIPE_INT32; ++i)
    ((int32_t *)to)[i] = (int32_t)ids[i];
  if (r->ids_dtype == OPIPE_INT64)
    memcpy(to, ids, n * sizeof *ids);
}

/* Numbers behind the pass's own, up to the class's. */
static void pad(int64_t *to, uint64_t n, uint64_t room, int64_t with) {
  for (uint64_t i = n; i < room; ++i)
    to[i] = with;
}

static void fill(const rows *r, const opi_pass_rows *pass, const opi_row_wish *wish, group *g) {
  const uint64_t n = pass->n_rows, room = r->table_room;
  const uint64_t dims[INPUTS] = {(uint64_t)wish->rows,   (uint64_t)wish->rows,
                                 (uint64_t)wish->rows,   (uint64_t)wish->sequences,
                                 (uint64_t)wish->wanted, (uint64_t)wish->copies};
  for (uint32_t i = 0; i < INPUTS; ++i)
    g->shape[i][0] = (int64_t)dims[i];
  memset(g->data[IDS], 0, dims[IDS] * sizeof(int64_t));
  put_ids(r, g->data[IDS], pass->ids, pass->n_rows);
  memcpy(g->data[POSITION], pass->position, n * sizeof(int64_t));
  memcpy(g->data[SEQUENCE], pass->sequence, n * sizeof(int64_t));
  memcpy(g->data[WANTED], pass->wanted, pass->n_wanted * sizeof(int64_t));
  memcpy(g->data[TABLE], pass->table, pass->n_sequences * room * sizeof(int64_t));
  for (uint32_t c = 0; c < pass->n_copies; ++c) {
    g->data[COPIES][3 * c] = pass->copies[c].from;
    g->data[COPIES][3 * c + 1] = pass->copies[c].to;
    g->data[COPIES][3 * c + 2] = pass->copies[c].n_tokens;
  }
  pad(g->data[POSITION], n, dims[POSITION], 0);
  pad(g->data[SEQUENCE], n, dims[SEQUENCE], -1);
  pad(g->data[WANTED], pass->n_wanted, dims[WANTED], 0);
  pad(g->data[TABLE], pass->n_sequences * room, dims[TABLE] * room, -1);
  pad(g->data[COPIES], 3 * (uint64_t)pass->n_copies, 3 * dims[COPIES], -1);
}

static opipe_status call(const rows *r, const opipe_submit_params *params, opi_request **out,
                         opipe_error *err) {
  return r->caller.submit == NULL ? opi_session_submit(r->session, params, out, NULL, err)
                                  : r->caller.submit(r->caller.ctx, params, out, err);
}

static opipe_status submit(const rows *r, group *g, opipe_error *err) {
  opipe_binding_io io[INPUTS], out;
  int64_t shape[OPIPE_MAX_RANK];
  memcpy(shape, r->logits_shape, sizeof shape);
  shape[r->logits_axis] = g->shape[WANTED][0];
  out = (opipe_binding_io){.name = r->output,
                           .tensor = {.data = g->logits,
                                      .device_type = OPIPE_DL_CPU,
                                      .rank = r->logits_rank,
                                      .dtype = opipe_dl_dtype(r->logits_dtype),
                                      .shape = shape}};
  for (uint32_t i = 0; i < INPUTS; ++i) {
    const opipe_tensor tensor = {
        .data = g->data[i],
        .device_type = OPIPE_DL_CPU,
        .rank = i == TABLE || i == COPIES ? 2 : 1,
        .dtype = opipe_dl_dtype(i == IDS ? r->ids_dtype : (uint32_t)OPIPE_INT64),
        .shape = g->shape[i]};
    io[i] = (opipe_binding_io){.name = r->names[i], .tensor = tensor};
  }
  const opipe_submit_params params = {.struct_size = (uint32_t)sizeof params,
                                      .n_inputs = INPUTS,
                                      .n_outputs = 1,
                                      .io_stride = sizeof *io,
                                      .inputs = io,
                                      .outputs = &out,
                                      .stream = r->home};
  const bool waits = r->session->setup->threads != OPIPE_THREADS_HOST; /* else nobody would drive */
  opipe_status status = call(r, &params, &g->request, err);
  while (status == OPIPE_PENDING && waits) {
    OPI_TRY(opi_session_wait_room(r->session, UINT64_MAX, err));
    status = call(r, &params, &g->request, err);
  }
  if (status != OPIPE_OK)
    g->request = NULL;
  return status;
}

static opipe_status begin(void *ctx, const opi_pass_rows *pass, opipe_error *err) {
  rows *r = ctx;
  opi_row_wish wish;
  if (r->n_flying == r->n_groups) {
    return opi_fail(err, OPIPE_E_STATE,
                    "pass %llu: %u are in flight, as many as the plan has groups",
                    (unsigned long long)pass->number, r->n_flying);
  }
  if (pass->table_room != r->table_room) {
    return opi_fail(err, OPIPE_E_INVALID, "pass %llu: a table of %u pages, the plan's has %u",
                    (unsigned long long)pass->number, pass->table_room, r->table_room);
  }
  OPI_TRY(find_class(r, pass, &wish, err));
  group *g = &r->groups[(r->first + r->n_flying) % r->n_groups];
  fill(r, pass, &wish, g);
  const opipe_status status = submit(r, g, err);
  r->n_flying += status == OPIPE_OK;
  return status;
}

/* ---- end ---- */

static opipe_status end(void *ctx, uint64_t timeout_ns, void **out_logits, opipe_error *err) {
  rows *r = ctx;
  if (r->n_flying == 0)
    return opi_fail(err, OPIPE_E_STATE, "no pass is in flight");
  opi_request *request = r->groups[r->first].request;
  const opipe_status status =
      timeout_ns == 0 ? opi_request_poll(request, err) : opi_request_wait(request, timeout_ns, err);
  if (status != OPIPE_OK)
    return status == OPIPE_E_TIMEOUT ? OPIPE_PENDING : status;
  *out_logits = r->groups[r->first].logits;
  return OPIPE_OK;
}

static void finish(void *ctx) {
  rows *r = ctx;
  if (r->n_flying == 0)
    return;
  opi_request_release(r->groups[r->first].request);
  r->groups[r->first].request = NULL;
  r->first = (r->first + 1) % r->n_groups;
  --r->n_flying;
}

/* ---- open ---- */

/* Inputs in the order of the row model: the file's own, which must be ids alone, then the others.
 */
static opipe_status name_inputs(rows *r, opipe_error *err) {
  const opi_graph *g = r->model->model.graph;
  const opi_value *ids = &g->values[g->inputs[0]];
  if (g->n_inputs != INPUTS) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "generation: the model reads '%s' for each token, beside '%s'",
                    g->values[g->inputs[g->n_inputs > INPUTS ? 1 : 0]].name, ids->name);
  }
  if (ids->rank != 1 || (ids->dtype != OPIPE_INT64 && ids->dtype != OPIPE_INT32)) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "generation: input '%s' is %s of rank %d for all rows, not one id for each",
                    ids->name, opi_dtype_name(ids->dtype), ids->rank);
  }
  for (uint32_t i = 0; i < INPUTS; ++i)
    r->names[i] = g->values[g->inputs[i]].name;
  r->ids_dtype = ids->dtype;
  r->output = g->values[g->outputs[0]].name;
  return OPIPE_OK;
}

static opipe_status read_logits(rows *r, opi_pass_facts *facts, opipe_error *err) {
  const opi_graph *g = r->model->model.graph;
  const opi_value *x = &g->values[g->outputs[0]];
  const int64_t wanted = opi_row_model_wish(r->model, decided(r)->rows).wanted;
  int64_t n = 1;
  for (int32_t d = 0; d + 1 < x->rank; ++d) {
    n *= x->shape[d];
    r->logits_axis = x->shape[d] == wanted ? d : r->logits_axis;
  }
  if (x->rank < 2 || n != wanted || x->shape[x->rank - 1] > UINT32_MAX) {
    char shape[128];
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "generation: output '%s' has shape %s for %lld wanted rows, not one row of "
                    "logits for each",
                    x->name, opi_shape_text(shape, sizeof shape, x->shape, (uint32_t)x->rank),
                    (long long)wanted);
  }
  facts->n_vocab = (uint32_t)x->shape[x->rank - 1];
  facts->dtype = r->logits_dtype = x->dtype;
  r->logits_rank = x->rank;
  memcpy(r->logits_shape, x->shape, (size_t)x->rank * sizeof *x->shape);
  facts->row_bytes = (uint64_t)facts->n_vocab * (opi_dtype_bits(x->dtype) / 8);
  facts->n_known = r->model->n_known != 0 && r->model->n_known < INT32_MAX
                       ? (uint32_t)r->model->n_known
                       : facts->n_vocab;
  return OPIPE_OK;
}

static void read_plan(const rows *r, opi_pass_facts *facts) {
  const opi_generation *g = decided(r);
  const opi_prediction *predicted = &r->session->setup->plan->predicted;
  const uint32_t decode = (g->active + g->groups - 1) / g->groups;
  uint32_t c = 0;
  facts->batch = (opi_batch_params){.pool = {.page = g->page,
                                             .n_pages = g->n_pages,
                                             .n_sequences = g->active * SEQUENCES_FOR_ACTIVE,
                                             .context = g->context,
                                             .reuse = true},
                                    .active = g->active,
                                    .rows = g->rows,
                                    .groups = g->groups,
                                    .draft = g->draft,
                                    .key_time = predicted->key_ns,
                                    .slice_rows = predicted->passes.slice_rows,
                                    .slice_time = predicted->passes.slice_ns};
  memcpy(facts->batch.class_time, predicted->pass_ns, sizeof facts->batch.class_time);
  while (c + 1 < r->n_classes && opi_generation_rows(g, c) < decode)
    ++c;
  facts->batch.gap = g->gap_ms > 0 ? g->gap_ms * 1e6 : g->gap * predicted->pass_ns[c];
}

static opipe_status take_groups(rows *r, uint64_t row_bytes, opipe_error *err) {
  const opi_row_wish most = opi_row_model_wish(r->model, decided(r)->rows);
  const int64_t n[INPUTS] = {most.rows,   most.rows,      most.rows, most.sequences * r->table_room,
                             most.wanted, most.copies * 3};
  r->groups = OPI_ARENA_ARRAY(&r->arena, group, r->n_groups);
  if (r->groups == NULL)
    return opi_fail_nomem(err, r->n_groups * sizeof(group), "passes");
  for (uint32_t k = 0; k < r->n_groups; ++k) {
    r->groups[k].logits = opi_arena_alloc(&r->arena, (size_t)(row_bytes * (uint64_t)most.wanted));
    if (r->groups[k].logits == NULL)
      return opi_fail_nomem(err, row_bytes * (uint64_t)most.wanted, "logits");
  }
  for (uint32_t k = 0; k < r->n_groups * INPUTS; ++k) {
    const uint32_t i = k % INPUTS;
    group *g = &r->groups[k / INPUTS];
    g->data[i] = OPI_ARENA_ARRAY(&r->arena, int64_t, (size_t)n[i]);
    g->shape[i][1] = i == TABLE ? r->table_room : 3;
    if (g->data[i] == NULL)
      return opi_fail_nomem(err, (size_t)n[i] * sizeof(int64_t), "passes");
  }
  return OPIPE_OK;
}

static opipe_status open_rows(rows *r, opi_pass_facts *facts, opipe_error *err) {
  const opi_generation *g = decided(r);
  r->n_classes = opi_generation_classes(g);
  r->n_groups = g->groups;
  r->table_room = (g->context - 1) / g->page + 1;
  OPI_TRY(name_inputs(r, err));
  OPI_TRY(read_logits(r, facts, err));
  read_plan(r, facts);
  return take_groups(r, facts->row_bytes, err);
}

uint32_t opi_rows_homes(const opi_session *session) {
  const opi_setup *s = session->setup;
  return s->reference ? 1 : opi_states_homes(&s->plan->decided);
}

opipe_status opi_rows_open(opi_session *session, const opi_pass_caller *caller, uint32_t home,
                           opi_pass_runner *out_runner, opi_pass_facts *out_facts,
                           opipe_error *err) {
  const opi_setup *s = session->setup;
  if (s->plan->rows == NULL)
    return opi_fail(err, OPIPE_E_STATE, "the session's plan is not one for generation");
  rows *r = opi_alloc_zero(s->allocator, 1, sizeof *r);
  if (r == NULL)
    return opi_fail_nomem(err, sizeof *r, "passes");
  opi_arena_init(&r->arena, s->allocator, 0);
  r->session = session;
  r->caller = *caller;
  r->home = home;
  r->model = s->plan->rows;
  *out_facts = (opi_pass_facts){.n_vocab = 0};
  *out_runner = (opi_pass_runner){.ctx = r, .begin = begin, .end = end, .finish = finish};
  const opipe_status status = open_rows(r, out_facts, err);
  if (status < 0)
    opi_rows_close(out_runner);
  return status;
}

void opi_rows_close(opi_pass_runner *runner) {
  rows *r = runner->ctx;
  if (r == NULL)
    return;
  const opipe_allocator *allocator = r->arena.allocator;
  while (r->n_flying != 0)
    finish(r);
  opi_arena_release(&r->arena);
  opi_free(allocator, r, sizeof *r);
  *runner = (opi_pass_runner){.ctx = NULL};
}
