/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults that do not bind as they are: a constraint that the file does not write down, nearly
 * always that a mask is as long as past and new tokens together.
 *
 * A dimension that no name calls a length or the batch, such as the size of a cached head, first
 * takes the number that the refusing operator needs. When nothing binds with it, all begins again
 * without.
 *
 * For each free dimension (those of masks first) the sums of pairs of lengths are tried, for its
 * name and, since some files give it the name of another length, for its place alone; then all
 * lengths are halved (short position tables) and it begins again. Then they are doubled, as long as
 * nothing binds (the first convolutions over sound take hundreds of samples). The first choice that
 * binds is taken. When none does, the first failure is reported with the defaults taken.
 *
 * A trial binds the whole graph, so trials are counted in nodes and inputs: large graphs get few
 * sums. Every length is tried as it is, whatever the sums before it took.
 */
#include "loader/passes/private.h"

#include <inttypes.h>

enum {
  MOST_TRIALS = 48,    /* of a round with sums */
  MOST_WORK = 1000000, /* of the whole search: nodes and inputs of all its trials, then no sums */
  MOST_LENGTHS = 16,   /* different ones that are paired */
  LONGEST = 1 << 14
};

typedef struct search {
  const opi_model *model;
  const opi_bind_options *options;
  opi_bind_options current;      /* options with this round's default length */
  int64_t lengths[MOST_LENGTHS]; /* this round's, each once */
  bool shared[MOST_LENGTHS];     /* two dimensions are that long */
  uint32_t n_lengths;
  uint32_t n_trials; /* of this round */
  uint64_t work;     /* of all rounds */
  bool is_full;      /* this round has had its trials */
  bool gave_up;      /* there was more to try */
  opi_arena arena;
  opi_bound *found;
} search;

/* A free dimension of an input: what a trial gives another number to. */
typedef struct target {
  const char *name;  /* of the dimension, NULL: it has none */
  const char *place; /* "INPUT.axis" */
} target;

static bool is_given(const search *s, const char *key) {
  for (uint32_t d = 0; key != NULL && d < s->options->n_dims; ++d) {
    if (strcmp(s->options->dims[d].name, key) == 0)
      return true;
  }
  return false;
}

static bool has_given_shape(const search *s, const char *input) {
  for (uint32_t i = 0; i < s->options->n_shapes; ++i) {
    if (strcmp(s->options->shapes[i].input, input) == 0)
      return true;
  }
  return false;
}

static void count_trial(search *s) {
  const opi_graph *graph = s->model->graph;
  ++s->n_trials;
  s->work += (uint64_t)graph->n_nodes + graph->n_inputs + 1;
}

/* A sum more, unless a bound is reached. */
static bool may_try(search *s) {
  if (s->n_trials >= MOST_TRIALS || s->work >= MOST_WORK) {
    s->is_full = s->gave_up = true;
    return false;
  }
  count_trial(s);
  return true;
}

/* Once by its name (every dimension of the name moves), once by its place alone. */
static opipe_status try_value(search *s, const target *t, bool by_name, int64_t value,
                              opipe_error *err) {
  opi_bind_options options = s->current;
  const opi_dim_binding one = {by_name ? t->name : t->place, value};
  opi_dim_binding *given = OPI_ARENA_ARRAY(&s->arena, opi_dim_binding, options.n_dims + 1);
  opi_dim_binding *dims = NULL;
  uint32_t n_dims = 0;
  if (given == NULL)
    return opi_fail_nomem(err, sizeof(*given), "dimensions");
  if (options.n_dims != 0)
    memcpy(given, options.dims, options.n_dims * sizeof(*given));
  if (by_name)
    given[options.n_dims++] = one;
  options.dims = given;
  OPI_TRY(opi_solve_with(s->model, &options, by_name ? NULL : &one, &s->arena, &dims, &n_dims, NULL,
                         err));
  return opi_bind_solved(s->model, &options, dims, n_dims, &s->found, NULL, err);
}

/* The target = the sum of two lengths, for every sum that lengths of two dimensions can have. */
static opipe_status try_sums(search *s, const target *t, bool by_name, opipe_error *err) {
  int64_t tried[MOST_LENGTHS * MOST_LENGTHS];
  uint32_t n_tried = 0;
  for (uint32_t a = 0; a < s->n_lengths; ++a) {
    for (uint32_t c = a; c < s->n_lengths; ++c) {
      if (a == c && !s->shared[a])
        continue;
      const int64_t sum = s->lengths[a] + s->lengths[c];
      uint32_t seen = 0;
      while (seen < n_tried && tried[seen] != sum)
        ++seen;
      if (seen < n_tried)
        continue;
      tried[n_tried++] = sum;
      if (!may_try(s))
        return OPIPE_E_INVALID;
      const opipe_status status = try_value(s, t, by_name, sum, err);
      if (status != OPIPE_E_INVALID)
        return status;
    }
  }
  return OPIPE_E_INVALID;
}

/* The lengths of `dims`, each once. */
static void take_lengths(search *s, const opi_dim_binding *dims, uint32_t n_dims) {
  s->n_lengths = 0;
  for (uint32_t d = 0; d < n_dims; ++d) {
    const int64_t length = dims[d].value;
    uint32_t seen = 0;
    while (seen < s->n_lengths && s->lengths[seen] != length)
      ++seen;
    if (seen < s->n_lengths) {
      s->shared[seen] = true;
    } else if (seen < MOST_LENGTHS && length >= 1 && length <= INT64_MAX / 2) {
      s->lengths[seen] = length;
      s->shared[seen] = false;
      ++s->n_lengths;
    }
  }
}

static opipe_status try_input(search *s, const opi_value *input, opipe_error *err) {
  for (int32_t d = input->rank; d-- > 0;) { /* lengths stand last */
    if (input->shape[d] >= 0)
      continue;
    const char *name = input->dim_names != NULL ? input->dim_names[d] : NULL;
    const target t = {name, opi_dim_place(&s->arena, input, (uint32_t)d)};
    if (t.place == NULL)
      return opi_fail_nomem(err, 32, "a dimension's name");
    if (is_given(s, t.name) || is_given(s, t.place))
      continue;
    if (s->is_full)
      return OPIPE_E_INVALID;
    opipe_status status = OPIPE_E_INVALID;
    if (name != NULL && name[0] != '\0')
      status = try_sums(s, &t, true, err);
    if (status == OPIPE_E_INVALID)
      status = try_sums(s, &t, false, err);
    if (status != OPIPE_E_INVALID)
      return status;
  }
  return OPIPE_E_INVALID;
}

static opipe_status try_all(search *s, opipe_error *err) {
  const opi_graph *graph = s->model->graph;
  for (uint32_t pass = 0; pass < 2; ++pass) { /* masks first */
    for (uint32_t i = 0; i < graph->n_inputs; ++i) {
      const opi_value *input = &graph->values[graph->inputs[i]];
      const bool mask = strcasestr(input->name, "mask") != NULL;
      if (s->is_full || mask != (pass == 0) || has_given_shape(s, input->name))
        continue;
      const opipe_status status = try_input(s, input, err);
      if (status != OPIPE_E_INVALID)
        return status;
    }
  }
  return OPIPE_E_INVALID;
}

static opipe_status report(const search *s, const opi_dim_binding *dims, uint32_t n_dims,
                           const opipe_error *first, opipe_error *err) {
  opi_text text;
  opi_text_init(&text, s->options->allocator);
  for (uint32_t d = 0; d < n_dims; ++d)
    opi_text_printf(&text, "%s%s=%" PRId64, d == 0 ? "" : ",", dims[d].name, dims[d].value);
  const opipe_status status =
      opi_fail(err, OPIPE_E_INVALID, "no default fits: bind the dimensions (tried %.160s%s): %s",
               text.data != NULL ? text.data : "",
               s->gave_up ? " and others, but not every combination" : "", first->message);
  opi_text_release(&text);
  return status;
}

/* All lengths at `length`: as they are, then, when asked for, with sums. */
static opipe_status try_length(search *s, int64_t length, bool sums, opipe_error *err) {
  opi_dim_binding *dims = NULL;
  uint32_t n_dims = 0;
  s->current = *s->options;
  s->current.default_length = length;
  s->n_trials = 0;
  s->is_full = false;
  count_trial(s); /* always made: there are few lengths */
  OPI_TRY(opi_solve_dims(s->model, &s->current, &s->arena, &dims, &n_dims, err));
  take_lengths(s, dims, n_dims);
  const opipe_status status =
      opi_bind_solved(s->model, &s->current, dims, n_dims, &s->found, NULL, err);
  return status == OPIPE_E_INVALID && sums ? try_all(s, err) : status;
}

/* Gives the dimensions of the input that was refused the numbers that it needs. */
static opipe_status give_needed(search *s, const opi_needed *needed, opi_bind_options *options,
                                opipe_error *err) {
  const opi_value *input = &s->model->graph->values[needed->source];
  opi_dim_binding *dims =
      OPI_ARENA_ARRAY(&s->arena, opi_dim_binding, (size_t)options->n_dims + needed->rank + 1);
  if (dims == NULL)
    return opi_fail_nomem(err, sizeof *dims, "dimensions");
  if (options->n_dims != 0)
    memcpy(dims, options->dims, options->n_dims * sizeof *dims);
  options->dims = dims;
  for (uint32_t d = 0; d < needed->rank && (int32_t)d < input->rank; ++d) {
    if (input->shape[d] >= 0 || has_given_shape(s, input->name))
      continue;
    const char *key = opi_dim_key(&s->arena, input, d);
    const char *place = opi_dim_place(&s->arena, input, d);
    if (key == NULL || place == NULL)
      return opi_fail_nomem(err, 32, "a dimension's name");
    if (!opi_is_length_name(key) && !opi_is_batch_name(key) && !is_given(s, key) &&
        !is_given(s, place))
      dims[options->n_dims++] = (opi_dim_binding){key, needed->shape[d]};
  }
  return OPIPE_OK;
}

/* Binds with what operators need, as often as that is news. `options`, *io_dims and *io_n become
 * those of the last trial; without any, err is not set. */
static opipe_status try_needed(search *s, const opi_needed *first, opi_bind_options *options,
                               const opi_dim_binding **io_dims, uint32_t *io_n, opipe_error *err) {
  opi_needed needed = *first;
  opipe_status status = OPIPE_E_INVALID;
  s->options = options;
  while (status == OPIPE_E_INVALID && needed.source != OPIPE_NONE && s->work < MOST_WORK) {
    const uint32_t n_before = options->n_dims;
    opi_dim_binding *dims = NULL;
    uint32_t n_dims = 0;
    OPI_TRY(give_needed(s, &needed, options, err));
    if (options->n_dims == n_before)
      break;
    count_trial(s);
    OPI_TRY(opi_solve_dims(s->model, options, &s->arena, &dims, &n_dims, err));
    *io_dims = dims;
    *io_n = n_dims;
    status = opi_bind_solved(s->model, options, dims, n_dims, &s->found, &needed, err);
  }
  return status;
}

static opipe_status try_shorter(search *s, int64_t longest, opipe_error *err) {
  opipe_status status = OPIPE_E_INVALID;
  for (int64_t length = longest; length > 0 && status == OPIPE_E_INVALID; length /= 2) {
    status = try_length(s, length, true, err);
    if (s->options->default_length > 0)
      break;
  }
  return status;
}

static opipe_status try_longer(search *s, int64_t longest, const opi_logger *logger,
                               opipe_error *err) {
  opipe_status status = OPIPE_E_INVALID;
  for (int64_t length = 2 * longest;
       s->options->default_length == 0 && length <= LONGEST && status == OPIPE_E_INVALID;
       length *= 2) {
    status = try_length(s, length, false, err);
    if (status >= 0) {
      opi_log(logger, OPIPE_LOG_WARN,
              "free dimensions that are not bound are set to %" PRId64 ": nothing shorter fits",
              length);
    }
  }
  return status;
}

opipe_status opi_bind_search(const opi_model *model, const opi_bind_options *options,
                             const opi_dim_binding *dims, uint32_t n_dims, const opipe_error *first,
                             const opi_needed *needed, opi_bound **out_bound, opipe_error *err) {
  search s = {.model = model};
  opipe_error reason = OPIPE_ERROR_INIT, last = OPIPE_ERROR_INIT;
  opi_logger silent = {NULL, NULL, 0};
  opi_bind_options quiet = *options;
  quiet.logger = &silent;
  quiet.report = NULL;
  opi_bind_options with_needed = quiet;
  opi_arena_init(&s.arena, options->allocator, 0);
  const int64_t longest = options->default_length > 0 ? options->default_length : 8;
  opipe_status status = try_needed(&s, needed, &with_needed, &dims, &n_dims, &reason);
  if (status == OPIPE_E_INVALID && with_needed.n_dims > quiet.n_dims) {
    last = reason;
    first = &last;
    status = try_shorter(&s, longest, &reason);
  }
  s.options = &quiet;
  s.work = 0;
  if (status == OPIPE_E_INVALID)
    status = try_shorter(&s, longest, &reason);
  if (status == OPIPE_E_INVALID)
    status = try_longer(&s, longest, options->logger, &reason);
  if (status == OPIPE_E_INVALID)
    status = report(&s, dims, n_dims, first, err);
  else if (status < 0 && err != NULL)
    *err = reason;
  opi_arena_release(&s.arena);
  if (status >= 0)
    *out_bound = s.found;
  return status;
}
