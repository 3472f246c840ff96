/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the dimensions that are the batch.
 *
 * Exporters name the first dimension of every input apart, so names say little. First dimensions of
 * one length are tried together. If the model cannot be bound with another number of rows in all of
 * them, some input has that length by chance: each is left out in turn, then each is tried alone,
 * then dimensions of the next length follow. The first proven set is taken. If the model can be
 * bound but some node mixes the rows, the answer is no, and names the node. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/program/batch.h"

enum { MOST_CANDIDATES = 1024, MOST_PROOFS = 24 };

typedef struct candidate {
  const char *name;  /* of the dimension */
  const char *input; /* the first that has it */
  int64_t rows;
} candidate;

typedef struct choice {
  const opi_plan_env *env;
  opi_plan *plan;
  candidate list[MOST_CANDIDATES];
  uint32_t n, n_proofs;
  opipe_error *err;
} choice;

static const opi_value *file_input(const choice *c, uint32_t i) {
  const opi_graph *file = c->env->model->graph;
  return &file->values[file->inputs[i]];
}

static bool is_candidate(const choice *c, const char *name) {
  for (uint32_t i = 0; i < c->n; ++i) {
    if (strcmp(c->list[i].name, name) == 0)
      return true;
  }
  return false;
}

/* Lists the free first dimensions, each name once, in the order of the inputs. */
static opipe_status list_candidates(choice *c) {
  char buffer[256];
  const opi_decision *plan = &c->plan->decided;
  for (uint32_t i = 0; i < c->env->model->graph->n_inputs && c->n < MOST_CANDIDATES; ++i) {
    const opi_value *input = file_input(c, i);
    if (input->rank < 1)
      continue;
    const char *key = opi_batch_dim_key(input, 0, buffer, sizeof buffer);
    uint32_t d = 0;
    while (d < plan->binding.n_dims && strcmp(plan->binding.dims[d].name, key) != 0)
      ++d;
    if (d == plan->binding.n_dims || is_candidate(c, key))
      continue;
    c->list[c->n++] =
        (candidate){plan->binding.dims[d].name, input->name, plan->binding.dims[d].value};
  }
  return OPIPE_OK;
}

/* ---- messages ---- */

/* Writes "'ids' (2), 'mask' (2)": the free dimensions that may be named. */
static void list_dims(const choice *c, char *out, size_t room) {
  size_t n = 0;
  out[0] = '\0';
  for (uint32_t d = 0; d < c->plan->decided.binding.n_dims && n + 1 < room; ++d) {
    const int wrote =
        snprintf(out + n, room - n, "%s%.40s=%" PRId64, d == 0 ? "" : ", ",
                 c->plan->decided.binding.dims[d].name, c->plan->decided.binding.dims[d].value);
    n += wrote < 0 ? 0 : (size_t)wrote;
  }
  if (n >= room)
    memcpy(out + room - 4, "...", 4);
}

/* The first input that holds one of `names` anywhere. */
static const char *input_of(const choice *c, const char *names) {
  for (uint32_t i = 0; i < c->env->model->graph->n_inputs; ++i) {
    if (opi_batch_axis(c->env->model, names, i) >= 0)
      return file_input(c, i)->name;
  }
  return "";
}

/* Puts before the reason: the dimensions that are split, and the option that would split others. */
static opipe_status explain(choice *c, const char *names, int64_t rows, opipe_status status) {
  char dims[160];
  list_dims(c, dims, sizeof dims);
  (void)opi_error_prefix(c->err,
                         "%u micro-batch%s along '%.80s' (%" PRId64
                         " row%s of input '%.60s'; "
                         "--batch-dim NAME[,NAME] (batch_dim) splits others of %s): ",
                         c->plan->decided.n_microbatches,
                         c->plan->decided.n_microbatches == 1 ? "" : "es", names, rows,
                         rows == 1 ? "" : "s", input_of(c, names), dims);
  return status;
}

static opipe_status none_free(const choice *c) {
  char dims[160];
  list_dims(c, dims, sizeof dims);
  return opi_fail(c->err, OPIPE_E_INVALID,
                  "%u micro-batches: no input has a free dimension 0 to split%s%s",
                  c->plan->decided.n_microbatches,
                  c->plan->decided.binding.n_dims == 0
                      ? "; the file fixes all shapes"
                      : "; --batch-dim NAME[,NAME] (batch_dim) splits others of ",
                  dims);
}

/* ---- names from the caller ---- */

static opipe_status take_name(choice *c, const char *name, size_t length, int64_t *io_rows) {
  opi_decision *plan = &c->plan->decided;
  char dims[160];
  uint32_t d = 0;
  while (d < plan->binding.n_dims && (strlen(plan->binding.dims[d].name) != length ||
                                      memcmp(plan->binding.dims[d].name, name, length) != 0))
    ++d;
  if (d == plan->binding.n_dims) {
    list_dims(c, dims, sizeof dims);
    return opi_fail(c->err, OPIPE_E_NOTFOUND,
                    "the model has no free dimension '%.*s' to split; there are: %s", (int)length,
                    name, plan->binding.n_dims == 0 ? "none" : dims);
  }
  if (*io_rows != 0 && plan->binding.dims[d].value != *io_rows) {
    return opi_fail(c->err, OPIPE_E_INVALID,
                    "the batch '%.120s': '%.*s' is %" PRId64 ", those before it %" PRId64,
                    plan->binding.batch_dim, (int)length, name, plan->binding.dims[d].value,
                    *io_rows);
  }
  *io_rows = plan->binding.dims[d].value;
  return OPIPE_OK;
}

static opipe_status take_asked(choice *c, const char *asked) {
  opi_plan *plan = c->plan;
  plan->decided.binding.batch_dim = opi_arena_strdup(&plan->arena, asked);
  if (plan->decided.binding.batch_dim == NULL)
    return opi_fail_nomem(c->err, strlen(asked), "a plan");
  for (const char *at = asked; at != NULL;) {
    const char *end = strchr(at, ',');
    OPI_TRY(take_name(c, at, end == NULL ? strlen(at) : (size_t)(end - at),
                      &plan->decided.binding.batch_rows));
    at = end == NULL ? NULL : end + 1;
  }
  return OPIPE_OK;
}

/* ---- sets to try ---- */

/* Whether an input would hold the batch twice, which is not allowed. */
static bool is_twice(const choice *c, const char *names, const char *more) {
  char buffer[256];
  for (uint32_t i = 0; i < c->env->model->graph->n_inputs; ++i) {
    const opi_value *input = file_input(c, i);
    uint32_t held = 0;
    for (int32_t d = 0; d < input->rank; ++d)
      held += strcmp(opi_batch_dim_key(input, (uint32_t)d, buffer, sizeof buffer), more) == 0;
    for (int32_t d = 0; held == 1 && d < input->rank; ++d) {
      if (opi_is_batch_dim(names, opi_batch_dim_key(input, (uint32_t)d, buffer, sizeof buffer)))
        return true;
    }
    if (held > 1)
      return true;
  }
  return false;
}

/* Joins the candidates of `rows` rows, without number `left_out`, or only number `alone`
 * (OPIPE_NONE: neither). NULL: out of memory if *out_failed, else there is none. */
static const char *join(choice *c, int64_t rows, uint32_t left_out, uint32_t alone,
                        bool *out_failed) {
  const char *names = NULL;
  for (uint32_t i = 0; i < c->n; ++i) {
    if (c->list[i].rows != rows || i == left_out || (alone != OPIPE_NONE && i != alone) ||
        (names != NULL && is_twice(c, names, c->list[i].name)))
      continue;
    names = names == NULL ? opi_arena_strdup(&c->plan->arena, c->list[i].name)
                          : opi_arena_printf(&c->plan->arena, "%s,%s", names, c->list[i].name);
    *out_failed = names == NULL;
    if (names == NULL)
      return NULL;
  }
  return names;
}

static uint32_t first_of(const choice *c, int64_t rows) {
  uint32_t i = 0;
  while (i < c->n && c->list[i].rows != rows)
    ++i;
  return i;
}

static opipe_status too_few(const choice *c, const char *names, int64_t rows) {
  return opi_fail(c->err, OPIPE_E_INVALID,
                  "%u micro-batches of a request of %" PRId64 " rows ('%.80s' of input '%.60s')",
                  c->plan->decided.n_microbatches, rows, names, input_of(c, names));
}

static opipe_status prove(choice *c, const char *names, int64_t rows) {
  opi_decision *plan = &c->plan->decided;
  plan->binding.batch_dim = names;
  plan->binding.batch_rows = rows;
  ++c->n_proofs;
  if (rows < plan->n_microbatches)
    return too_few(c, names, rows);
  const opipe_status status =
      opi_batch_prove(plan, c->env->model, c->env->bind, NULL, &c->plan->arena, c->err);
  const bool of_rows = status != OPIPE_OK && status != OPIPE_E_NOTFOUND && status != OPIPE_E_NOMEM;
  return of_rows ? explain(c, names, rows, status) : status;
}

/* Whether no other set can help; contradictory shapes allow another try. */
static bool is_final(opipe_status status) {
  return status != OPIPE_E_INVALID;
}

static opipe_status try_set(choice *c, int64_t rows, uint32_t left_out, uint32_t alone,
                            opipe_error *first) {
  bool failed = false;
  if (c->n_proofs >= MOST_PROOFS)
    return OPIPE_E_INVALID;
  const char *names = join(c, rows, left_out, alone, &failed);
  if (failed)
    return opi_fail_nomem(c->err, 0, "a plan");
  const opipe_status status = prove(c, names, rows);
  if (status == OPIPE_OK)
    return status;
  const bool says_more = first->status == OPIPE_OK || is_final(status);
  if (says_more && c->err != NULL)
    *first = *c->err;
  if (says_more)
    first->status = status;
  return status;
}

/* Tries all of one length, all but one, each alone. *first: the first reason, or the final one. */
static opipe_status try_rows(choice *c, int64_t rows, opipe_error *first) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->n; ++i)
    n += c->list[i].rows == rows;
  opipe_status status = try_set(c, rows, OPIPE_NONE, OPIPE_NONE, first);
  for (uint32_t i = c->n; n > 2 && i-- > 0 && !is_final(status);) {
    if (c->list[i].rows == rows)
      status = try_set(c, rows, i, OPIPE_NONE, first);
  }
  for (uint32_t i = 0; n > 1 && i < c->n && !is_final(status); ++i) {
    if (c->list[i].rows == rows)
      status = try_set(c, rows, OPIPE_NONE, i, first);
  }
  return status;
}

static opipe_status try_all(choice *c) {
  opipe_error first = OPIPE_ERROR_INIT;
  opi_decision *plan = &c->plan->decided;
  const char *names = plan->binding.batch_dim;
  const int64_t rows = plan->binding.batch_rows;
  if (c->n == 0)
    return none_free(c);
  for (uint32_t i = 0; i < c->n; ++i) {
    if (first_of(c, c->list[i].rows) != i)
      continue;
    const opipe_status status = try_rows(c, c->list[i].rows, &first);
    if (status == OPIPE_OK)
      return status;
    if (is_final(status))
      break;
  }
  plan->binding.batch_dim = names;
  plan->binding.batch_rows = rows;
  if (c->err != NULL)
    *c->err = first;
  return first.status;
}

static opipe_status settle(choice *c, const char *asked) {
  opi_decision *plan = &c->plan->decided;
  const bool cuts = opi_plan_cuts_rows(plan);
  OPI_TRY(list_candidates(c));
  if (!cuts && !opi_plan_trains(plan)) {
    if (asked == NULL && c->n != 0)
      plan->binding.batch_dim = c->list[0].name;
    return OPIPE_OK;
  }
  if (asked == NULL) {
    const char *names = plan->binding.batch_dim;
    const opipe_status status = try_all(c);
    if (cuts || (status != OPIPE_E_INVALID && status != OPIPE_E_UNSUPPORTED))
      return status;
    plan->binding.batch_dim = names; /* a single micro-batch may mix its rows */
    return OPIPE_OK;
  }
  if (!cuts)
    return OPIPE_OK;
  return prove(c, plan->binding.batch_dim, plan->binding.batch_rows);
}

typedef opipe_status (*choose_fn)(choice *c, const char *asked);

static opipe_status with_choice(const opi_plan_env *env, const char *asked, opi_plan *plan,
                                choose_fn run, opipe_error *err) {
  choice *c = opi_alloc_zero(plan->decided.allocator, 1, sizeof *c);
  if (c == NULL)
    return opi_fail_nomem(err, sizeof *c, "a plan");
  c->env = env;
  c->plan = plan;
  c->err = err;
  const opipe_status status = run(c, asked);
  opi_free(plan->decided.allocator, c, sizeof *c);
  return status;
}

/* Whatever the schedule's layout: no order is made of more micro-batches than the limit allows. */
static opipe_status choose(choice *c, const char *asked) {
  bool failed = false;
  int64_t most = 0;
  opi_decision *plan = &c->plan->decided;
  if (asked != NULL) {
    OPI_TRY(take_asked(c, asked));
    return plan->n_microbatches > 1 && plan->binding.batch_rows < plan->n_microbatches
               ? too_few(c, plan->binding.batch_dim, plan->binding.batch_rows)
               : OPIPE_OK;
  }
  OPI_TRY(list_candidates(c));
  if (c->n == 0)
    return plan->n_microbatches > 1 ? none_free(c) : OPIPE_OK;
  plan->binding.batch_rows = c->list[0].rows;
  plan->binding.batch_dim = join(c, plan->binding.batch_rows, OPIPE_NONE, OPIPE_NONE, &failed);
  if (failed)
    return opi_fail_nomem(c->err, 0, "a plan");
  for (uint32_t i = 0; i < c->n; ++i)
    most = c->list[i].rows > most ? c->list[i].rows : most;
  return plan->n_microbatches > 1 && most < plan->n_microbatches
             ? too_few(c, plan->binding.batch_dim, plan->binding.batch_rows)
             : OPIPE_OK;
}

opipe_status opi_batch_choose(const opi_plan_env *env, const char *asked, opi_plan *plan,
                              opipe_error *err) {
  return with_choice(env, asked, plan, choose, err);
}

opipe_status opi_batch_settle(const opi_plan_env *env, const char *asked, opi_plan *plan,
                              opipe_error *err) {
  return plan->decided.binding.batch_dim == NULL ? OPIPE_OK
                                                 : with_choice(env, asked, plan, settle, err);
}
