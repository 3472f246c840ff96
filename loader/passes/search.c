/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults that do not bind as they are: a constraint that the file does not write down, nearly always
 * that a mask is as long as past and new tokens together.
 *
 * For each free dimension (those of masks first) and each pair of others, the sum is tried; the first
 * choice that binds is taken. When none does, the first failure is reported with the defaults taken.
 */
#include "loader/passes/walk.h"

#include <inttypes.h>
#include <strings.h>

enum { MOST_TRIALS = 48 };

typedef struct search {
  const opi_model *model;
  const opi_bind_options *options;
  const opi_dim_binding *dims;
  uint32_t n_dims;
  uint32_t n_trials;
  opi_arena arena;
  opi_bound *found;
} search;

static bool is_given(const search *s, const char *key) {
  int64_t value = 0;
  return opi_dim_find(s->options->dims, s->options->n_dims, key, &value);
}

/* Does an input whose name holds "mask" have this dimension? */
static bool is_of_mask(search *s, const char *key) {
  const opi_graph *graph = s->model->graph;
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *input = &graph->values[graph->inputs[i]];
    if (strcasestr(input->name, "mask") == NULL) continue;
    for (int32_t d = 0; d < input->rank; ++d) {
      if (input->shape[d] >= 0) continue;
      const char *own = opi_dim_key(&s->arena, input, (uint32_t)d);
      if (own != NULL && strcmp(own, key) == 0) return true;
    }
  }
  return false;
}

/* The given dimensions and one more; OPIPE_E_INVALID: this choice does not fit. */
static opipe_status try_value(search *s, const char *key, int64_t value, opipe_error *err) {
  opi_bind_options options = *s->options;
  opi_dim_binding *given = OPI_ARENA_ARRAY(&s->arena, opi_dim_binding, options.n_dims + 1);
  opi_dim_binding *dims = NULL;
  uint32_t n_dims = 0;
  if (given == NULL) return opi_fail_nomem(err, sizeof(*given), "dimensions");
  if (options.n_dims != 0) memcpy(given, options.dims, options.n_dims * sizeof(*given));
  given[options.n_dims++] = (opi_dim_binding){key, value};
  options.dims = given;
  ++s->n_trials;
  OPI_TRY(opi_solve_dims(s->model, &options, &s->arena, &dims, &n_dims, err));
  return opi_bind_solved(s->model, &options, dims, n_dims, &s->found, err);
}

/* Tries dims[t] = dims[a] + dims[c] for every pair. */
static opipe_status try_sums(search *s, uint32_t t, opipe_error *err) {
  for (uint32_t a = 0; a < s->n_dims; ++a) {
    for (uint32_t c = a + 1; c < s->n_dims; ++c) {
      const int64_t sum = s->dims[a].value + s->dims[c].value;
      if (a == t || c == t || s->dims[a].value < 2 || s->dims[c].value < 2) continue;
      if (sum == s->dims[t].value || s->n_trials >= MOST_TRIALS) continue;
      const opipe_status status = try_value(s, s->dims[t].name, sum, err);
      if (status != OPIPE_E_INVALID) return status;
    }
  }
  return OPIPE_E_INVALID;
}

static opipe_status try_all(search *s, opipe_error *err) {
  for (uint32_t pass = 0; pass < 2; ++pass) { /* masks first */
    for (uint32_t t = 0; t < s->n_dims; ++t) {
      if (is_of_mask(s, s->dims[t].name) != (pass == 0) || is_given(s, s->dims[t].name)) continue;
      const opipe_status status = try_sums(s, t, err);
      if (status != OPIPE_E_INVALID) return status;
    }
  }
  return OPIPE_E_INVALID;
}

static opipe_status report(const search *s, const opipe_error *first, opipe_error *err) {
  opi_text text;
  opi_text_init(&text, s->options->allocator);
  for (uint32_t d = 0; d < s->n_dims; ++d) {
    opi_text_printf(&text, "%s%s=%" PRId64, d == 0 ? "" : ",", s->dims[d].name, s->dims[d].value);
  }
  const opipe_status status =
      opi_fail(err, OPIPE_E_INVALID, "no default fits: bind the dimensions (tried %.160s): %s",
               text.data != NULL ? text.data : "", first->message);
  opi_text_release(&text);
  return status;
}

opipe_status opi_bind_search(const opi_model *model, const opi_bind_options *options,
                             const opi_dim_binding *dims, uint32_t n_dims,
                             const opipe_error *first, opi_bound **out_bound, opipe_error *err) {
  search s = {.model = model, .options = options, .dims = dims, .n_dims = n_dims};
  opipe_error reason = OPIPE_ERROR_INIT;
  opi_arena_init(&s.arena, options->allocator, 0);
  opipe_status status = try_all(&s, &reason);
  if (status == OPIPE_E_INVALID) {
    status = report(&s, first, err);
  } else if (status < 0 && err != NULL) {
    *err = reason;
  }
  opi_arena_release(&s.arena);
  if (status >= 0) *out_bound = s.found;
  return status;
}
