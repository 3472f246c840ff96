/* SPDX-License-Identifier: Apache-2.0 */
/* Binds a decoder for one whole sequence without a past. The inputs beside its tokens are pinned to
 * what is known of such a sequence: by the operator that reads them, else by their names, which
 * exporters agree upon. Earlier keys and values get no rows. */
#include <ctype.h>
#include <inttypes.h>

#include "loader/base/halves.h"
#include "loader/passes/private.h"
#include "loader/passes/rower.h"

enum { PLACES_TOKENS = 100, PLACES_STATE, PLACES_BRANCH };
enum { FOREIGN_TOKENS = 3 };

typedef struct inputs {
  const opi_model *model;
  const opi_bind_options *given;
  int64_t n_tokens;
  opi_arena arena;
  uint32_t *places; /* [n_inputs] OPI_PLACES_*, PLACES_* */
  opi_dim_binding *dims;
  opi_pin *pins;
  uint32_t n_dims, n_pins, first_branch; /* pins from there on are branches */
  opipe_error *err;
} inputs;

static const opi_value *input_of(const inputs *in, uint32_t i) {
  return &in->model->graph->values[in->model->graph->inputs[i]];
}

/* ---- kinds of inputs ---- */

/* Does the name contain the word, in any case? */
static bool says(const char *name, const char *word) {
  for (; *name != '\0'; ++name) {
    size_t n = 0;
    while (word[n] != '\0' && tolower((unsigned char)name[n]) == word[n])
      ++n;
    if (word[n] == '\0')
      return true;
  }
  return false;
}

static uint32_t by_name(const opi_value *x) {
  static const struct {
    const char *word;
    uint32_t places;
  } words[] = {{"mask", OPI_PLACES_ONES},           {"use_cache", PLACES_BRANCH},
               {"position", OPI_PLACES_COUNTED},    {"past_seq", OPI_PLACES_BEFORE},
               {"past_len", OPI_PLACES_BEFORE},     {"past_key", OPI_PLACES_BEFORE},
               {"write_ind", OPI_PLACES_BEFORE},    {"start_pos", OPI_PLACES_BEFORE},
               {"seqlens_k", OPI_PLACES_LAST},      {"total_seq", OPI_PLACES_KEYS},
               {"seq_len", OPI_PLACES_KEYS},        {"seqlen", OPI_PLACES_KEYS},
               {"sequence_length", OPI_PLACES_KEYS}};
  for (uint32_t i = 0; i < OPI_COUNT(words); ++i) {
    const bool fits = words[i].places == OPI_PLACES_ONES || !opi_dtype_is_float(x->dtype);
    if (fits && says(x->name, words[i].word))
      return words[i].places;
  }
  return x->dtype == OPIPE_BOOL && x->rank < 2 ? PLACES_BRANCH : PLACES_TOKENS;
}

static bool is_state(const opi_value *x) {
  return x->rank > 3 || (opi_dtype_is_float(x->dtype) && says(x->name, "past"));
}

/* The first reader that knows; then the name. */
static uint32_t places_of(const inputs *in, uint32_t i) {
  const opi_graph *g = in->model->graph;
  const opi_value *x = input_of(in, i);
  const uint32_t v = g->inputs[i];
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t k = 0; k < g->nodes[n].n_in; ++k) {
      const uint32_t found =
          g->nodes[n].in[k] == v ? opi_places_of(&g->nodes[n], k) : OPI_PLACES_NONE;
      if (found != OPI_PLACES_NONE && !opi_dtype_is_float(x->dtype))
        return found;
    }
  }
  if (is_state(x) && !says(x->name, "mask"))
    return PLACES_STATE;
  return by_name(x);
}

static bool is_pinned(const inputs *in, const char *name) {
  uint32_t i = 0;
  while (i < in->given->n_pins && strcmp(in->given->pins[i].input, name) != 0)
    ++i;
  return i < in->given->n_pins;
}

/* ---- dimensions ---- */

static bool has_dim(const inputs *in, const char *key) {
  uint32_t i = 0;
  while (i < in->n_dims && strcmp(in->dims[i].name, key) != 0)
    ++i;
  return i < in->n_dims;
}

/* A free dimension of an input, unless the host gave it or its name is an expression. */
static opipe_status set_dim(inputs *in, const opi_value *x, int32_t axis, int64_t n) {
  const char *key =
      axis < x->rank && x->shape[axis] < 0 ? opi_dim_key(&in->arena, x, (uint32_t)axis) : "";
  if (key == NULL)
    return opi_fail_nomem(in->err, 64, "a dimension's name");
  if (key[0] == '\0' || strpbrk(key, "+-*/%() ") != NULL || has_dim(in, key))
    return OPIPE_OK;
  in->dims[in->n_dims++] = (opi_dim_binding){key, n};
  return OPIPE_OK;
}

/* The axis of an input's tokens. */
static int32_t token_axis(const opi_value *x) {
  return x->rank == 0 ? 0 : opi_dtype_is_float(x->dtype) && x->rank > 1 ? x->rank - 2 : x->rank - 1;
}

/* Keys of before in input i: none, unless their buffer must have some. */
static int64_t least_past(const inputs *in, uint32_t i) {
  const opi_graph *g = in->model->graph;
  int64_t least = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t k = 0; k < g->nodes[n].n_in; ++k) {
      const int64_t needs = g->nodes[n].in[k] == g->inputs[i] ? opi_least_past(&g->nodes[n], k) : 0;
      least = needs > least ? needs : least;
    }
  }
  return least;
}

/* Activations beside ids are of another sequence: an encoder's. */
static bool is_foreign(const inputs *in, uint32_t i) {
  bool ids = false;
  for (uint32_t k = 0; k < in->model->graph->n_inputs; ++k)
    ids = ids || (in->places[k] == PLACES_TOKENS && !opi_dtype_is_float(input_of(in, k)->dtype));
  return ids && opi_dtype_is_float(input_of(in, i)->dtype);
}

/* One sequence; keys of before: none. All other free dimensions get the number of
 * tokens. */
static opipe_status set_dims(inputs *in) {
  const uint32_t n = in->model->graph->n_inputs;
  for (uint32_t i = 0; i < n; ++i) {
    const opi_value *x = input_of(in, i);
    if (in->places[i] != PLACES_TOKENS || x->rank < 1)
      continue;
    const int32_t axis = token_axis(x);
    OPI_TRY(set_dim(in, x, axis, is_foreign(in, i) ? FOREIGN_TOKENS : in->n_tokens));
    for (int32_t d = 0; d < axis; ++d)
      OPI_TRY(set_dim(in, x, d, 1));
  }
  for (uint32_t i = 0; i < n; ++i) {
    const opi_value *x = input_of(in, i);
    if (in->places[i] != PLACES_STATE || x->rank < 3)
      continue;
    const int32_t batch = x->rank > 4 ? 1 : 0;
    OPI_TRY(set_dim(in, x, batch, 1));
    for (int32_t d = batch + 1; d + 1 < x->rank; ++d)
      OPI_TRY(set_dim(in, x, d, least_past(in, i)));
  }
  return OPIPE_OK;
}

/* ---- pins ---- */

static int64_t dim_of(const opi_dim_binding *dims, uint32_t n, const char *place, const char *key) {
  int64_t found = 1;
  for (uint32_t i = n; i-- > 0;) {
    if (strcmp(dims[i].name, place) == 0)
      return dims[i].value;
    found = strcmp(dims[i].name, key) == 0 ? dims[i].value : found;
  }
  return found;
}

static void put(void *to, uint32_t dtype, uint64_t i, int64_t x) {
  const uint32_t bits = opi_dtype_bits(dtype);
  if (dtype == OPIPE_FLOAT)
    ((float *)to)[i] = (float)x;
  else if (dtype == OPIPE_DOUBLE)
    ((double *)to)[i] = (double)x;
  else if (dtype == OPIPE_FLOAT16)
    ((uint16_t *)to)[i] = opi_half_of((float)x);
  else if (dtype == OPIPE_BFLOAT16)
    ((uint16_t *)to)[i] = opi_bfloat_of((float)x);
  else if (bits == 64)
    ((int64_t *)to)[i] = x;
  else if (bits == 32)
    ((int32_t *)to)[i] = (int32_t)x;
  else if (bits == 16)
    ((int16_t *)to)[i] = (int16_t)x;
  else
    ((uint8_t *)to)[i] = (uint8_t)x;
}

/* The number at entry i of an input of rows of `last` entries. A mask of all rows and keys shows
 * what lies before. */
static int64_t number_of(const inputs *in, uint32_t places, const opi_value *x, uint64_t i,
                         int64_t last, int64_t rows) {
  const int64_t column = (int64_t)i % last;
  if (places == OPI_PLACES_ONES)
    return x->rank < 3 || rows != in->n_tokens || column <= (int64_t)i / last % rows;
  if (places == OPI_PLACES_COUNTED)
    return column;
  return places == OPI_PLACES_KEYS   ? in->n_tokens
         : places == OPI_PLACES_LAST ? in->n_tokens - 1
                                     : 0;
}

static opipe_status add_pin(inputs *in, uint32_t i, const opi_dim_binding *dims, uint32_t n_dims) {
  const opi_value *x = input_of(in, i);
  int64_t *shape = OPI_ARENA_ARRAY(&in->arena, int64_t, OPIPE_MAX_RANK);
  uint64_t n_bytes = 0, n = 1;
  if (x->rank < 0 || x->rank > OPIPE_MAX_RANK) {
    return opi_fail(in->err, OPIPE_E_UNSUPPORTED,
                    "no row form: input '%s' has rank %" PRId32 " in the file", x->name, x->rank);
  }
  if (shape == NULL)
    return opi_fail_nomem(in->err, 64, "a pin");
  for (int32_t d = 0; d < x->rank; ++d) {
    shape[d] = x->shape[d];
    if (shape[d] < 0) {
      const char *place = opi_dim_place(&in->arena, x, (uint32_t)d);
      const char *key = opi_dim_key(&in->arena, x, (uint32_t)d);
      if (place == NULL || key == NULL)
        return opi_fail_nomem(in->err, 64, "a dimension's name");
      shape[d] = dim_of(dims, n_dims, place, key);
    }
    n *= (uint64_t)shape[d];
  }
  if (!opi_tensor_bytes(x->dtype, shape, (uint32_t)x->rank, &n_bytes) ||
      opi_dtype_bits(x->dtype) < 8) {
    return opi_fail(in->err, OPIPE_E_UNSUPPORTED, "no row form: input '%s' cannot be pinned",
                    x->name);
  }
  void *data = opi_arena_alloc(&in->arena, n_bytes + 8);
  if (data == NULL)
    return opi_fail_nomem(in->err, n_bytes, "a pin");
  const int64_t last = x->rank == 0 || shape[x->rank - 1] == 0 ? 1 : shape[x->rank - 1];
  const int64_t rows = x->rank < 2 || shape[x->rank - 2] == 0 ? 1 : shape[x->rank - 2];
  for (uint64_t k = 0; k < n; ++k)
    put(data, x->dtype, k, number_of(in, in->places[i], x, k, last, rows));
  in->pins[in->n_pins++] = (opi_pin){x->name, data, shape, (uint32_t)x->rank, x->dtype};
  return OPIPE_OK;
}

static bool is_pin(uint32_t places) {
  return places != OPI_PLACES_NONE && places != PLACES_TOKENS && places != PLACES_STATE;
}

static opipe_status add_pins(inputs *in, const opi_bind_options *options) {
  const uint32_t n = in->model->graph->n_inputs;
  opi_dim_binding *dims;
  uint32_t n_dims;
  OPI_TRY(opi_solve_dims(in->model, options, &in->arena, &dims, &n_dims, in->err));
  for (uint32_t i = 0; i < n; ++i) {
    if (is_pin(in->places[i]) && in->places[i] != PLACES_BRANCH)
      OPI_TRY(add_pin(in, i, dims, n_dims));
  }
  in->first_branch = in->n_pins;
  for (uint32_t i = 0; i < n; ++i) {
    if (in->places[i] == PLACES_BRANCH)
      OPI_TRY(add_pin(in, i, dims, n_dims));
  }
  return OPIPE_OK;
}

/* ---- binding ---- */

/* Every input with tokens must have n_tokens of them. */
static opipe_status check_bound(const inputs *in, const opi_bound *bound) {
  for (uint32_t i = 0; i < bound->graph->n_inputs; ++i) {
    const opi_value *x = &bound->graph->values[bound->graph->inputs[i]];
    uint32_t k = 0;
    while (k < in->model->graph->n_inputs && strcmp(input_of(in, k)->name, x->name) != 0)
      ++k;
    if (k == in->model->graph->n_inputs || in->places[k] != PLACES_TOKENS || x->rank == 0 ||
        is_foreign(in, k))
      continue;
    const int64_t n = x->shape[token_axis(x)];
    if (n != in->n_tokens) {
      return opi_fail(in->err, OPIPE_E_UNSUPPORTED,
                      "no row form: input '%s' has %" PRId64 " tokens, not %" PRId64, x->name, n,
                      in->n_tokens);
    }
  }
  return OPIPE_OK;
}

static opipe_status open_inputs(inputs *in) {
  const uint32_t n = in->model->graph->n_inputs;
  uint32_t most = in->given->n_dims;
  for (uint32_t i = 0; i < n; ++i)
    most += input_of(in, i)->rank > 0 ? (uint32_t)input_of(in, i)->rank : 0;
  in->places = OPI_ARENA_ARRAY(&in->arena, uint32_t, n + 1);
  in->dims = OPI_ARENA_ARRAY(&in->arena, opi_dim_binding, most + 1);
  in->pins = OPI_ARENA_ARRAY(&in->arena, opi_pin, n + in->given->n_pins + 1);
  if (in->places == NULL || in->dims == NULL || in->pins == NULL)
    return opi_fail_nomem(in->err, n * sizeof *in->pins, "inputs");
  for (uint32_t i = 0; i < in->given->n_dims; ++i)
    in->dims[in->n_dims++] = in->given->dims[i];
  for (uint32_t i = 0; i < in->given->n_pins; ++i)
    in->pins[in->n_pins++] = in->given->pins[i];
  for (uint32_t i = 0; i < n; ++i)
    in->places[i] = is_pinned(in, input_of(in, i)->name) ? OPI_PLACES_NONE : places_of(in, i);
  return OPIPE_OK;
}

static opipe_status bind(inputs *in, opi_bound **out_bound) {
  opi_bind_options options = *in->given;
  OPI_TRY(open_inputs(in));
  OPI_TRY(set_dims(in));
  options.flags |= OPI_BIND_DEFAULTS;
  options.default_batch = 1;
  options.default_length = in->n_tokens;
  options.dims = in->dims;
  options.n_dims = in->n_dims;
  OPI_TRY(add_pins(in, &options));
  options.pins = in->pins;
  options.n_pins = in->n_pins;
  opipe_status status = opi_bind(in->model, &options, out_bound, in->err);
  if (status >= 0 || status == OPIPE_E_NOMEM || in->first_branch == in->n_pins)
    return status;
  for (uint32_t i = in->first_branch; i < in->n_pins; ++i)
    *(uint8_t *)(uintptr_t)in->pins[i].data = 1; /* the other branch of a merged decoder */
  return opi_bind(in->model, &options, out_bound, in->err);
}

opipe_status opi_row_bind(const opi_model *model, const opi_bind_options *options, int64_t n_tokens,
                          opi_bound **out_bound, opipe_error *err) {
  inputs in = {.model = model, .given = options, .n_tokens = n_tokens, .err = err};
  opi_arena_init(&in.arena, options->allocator, 0);
  *out_bound = NULL;
  opipe_status status = bind(&in, out_bound);
  if (status >= 0)
    status = check_bound(&in, *out_bound);
  if (status < 0) {
    opi_bound_free(*out_bound);
    *out_bound = NULL;
  }
  opi_arena_release(&in.arena);
  return status;
}
