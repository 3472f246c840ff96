/* SPDX-License-Identifier: Apache-2.0 */
/* Control flow and sequences, all of which vanish at binding: If Loop SequenceConstruct
 * SequenceEmpty SequenceInsert SequenceErase SequenceAt SequenceLength SplitToSequence
 * ConcatFromSequence.
 *
 *   If     its condition must be known (constant, or decided by shapes): that branch is inlined.
 *   Loop   its trip count or conditions must be known, as many trips as OPI_MOST_TRIPS: unrolled.
 *   Sequences are lists of values known by position; nothing of them is left.
 */
#include "loader/ops/control.h"

const opi_graph *opi_body_of(const opi_node *node, const char *name) {
  const opipe_attr *attr = opi_attr_find(node, name);
  return attr != NULL && attr->kind == OPI_ATTR_GRAPH ? attr->data : NULL;
}

/* -- scan outputs, of Loop and Scan -- */

static opipe_status check_item(opi_builder *b, const opi_node *node, uint32_t item,
                               opipe_error *err) {
  if (opi_is_sequence(item))
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "a scan output is a sequence");
  if (opi_rank_of(b, item) < OPIPE_MAX_RANK)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "a scan output has rank %" PRIu32,
                       opi_rank_of(b, item));
}

/* The shape of an item with `extent` at the axis in front of its own dimension `axis`. */
static uint32_t grown_shape(opi_builder *b, uint32_t item, uint32_t axis, int64_t extent,
                            int64_t *out_shape) {
  const uint32_t rank = opi_rank_of(b, item) + 1;
  const int64_t *shape = opi_shape_of(b, item);
  for (uint32_t d = 0, from = 0; d < rank; ++d)
    out_shape[d] = d == axis ? extent : shape[from++];
  return rank;
}

opipe_status opi_stack_nothing(opi_builder *b, const opi_node *node, uint32_t item, int64_t axis,
                               uint32_t *out, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t at = 0;
  *out = item;
  if (item == OPI_POISONED)
    return OPIPE_OK;
  OPI_TRY(check_item(b, node, item, err));
  OPI_TRY(opi_stack_axis(b, node, item, axis, &at, err));
  const uint32_t rank = grown_shape(b, item, at, 0, shape);
  *out = opi_b_const(b, opi_b_value(b, item)->dtype, shape, rank, NULL);
  return opi_k_const(*out, err);
}

opipe_status opi_stack_axis(opi_builder *b, const opi_node *node, uint32_t item, int64_t axis,
                            uint32_t *out, opipe_error *err) {
  const uint32_t rank = opi_rank_of(b, item) + 1;
  if (opi_axis(axis, rank, out))
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "axis %" PRId64 " is outside a scan output of rank %" PRIu32, axis, rank);
}

opipe_status opi_stack(opi_builder *b, const opi_node *node, const uint32_t *items, uint32_t n,
                       int64_t axis, uint32_t *out, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t at = 0;
  uint32_t *in = OPI_ARENA_ARRAY(b->scratch, uint32_t, n);
  if (in == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 4, "inputs");
  for (uint32_t t = 0; t < n; ++t) {
    *out = items[t];
    if (items[t] == OPI_POISONED)
      return OPIPE_OK;
    OPI_TRY(check_item(b, node, items[t], err));
    OPI_TRY(opi_stack_axis(b, node, items[t], axis, &at, err));
    const uint32_t rank = grown_shape(b, items[t], at, 1, shape);
    OPI_TRY(opi_emit_reshape(b, items[t], shape, rank, NULL, &in[t], err));
  }
  *out = in[0];
  return n == 1 ? OPIPE_OK : opi_k_concat(b, in, n, at, out, err);
}

/* The value without an axis that is 1 long. */
static opipe_status drop_axis(opi_builder *b, uint32_t axis, uint32_t *io_value, opipe_error *err) {
  const opi_value *x = opi_b_value(b, *io_value);
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t d = 0; d < (uint32_t)x->rank; ++d) {
    if (d != axis)
      shape[rank++] = x->shape[d];
  }
  return opi_emit_reshape(b, *io_value, shape, rank, NULL, io_value, err);
}

/* Parts of `sizes` [n] along an axis. */
static opipe_status split_along(opi_builder *b, uint32_t value, uint32_t axis, const int64_t *sizes,
                                uint32_t n, uint32_t *out, opipe_error *err) {
  uint32_t in[2] = {value, OPIPE_NONE};
  out[0] = value;
  if (n == 1)
    return OPIPE_OK;
  OPI_TRY(opi_ints_value(b, sizes, n, &in[1], err));
  const opipe_attr attr = OPI_ATTR_I("axis", axis);
  const opi_emit emit = {
      .op = "Split", .in = in, .n_in = 2, .n_out = n, .attrs = &attr, .n_attrs = 1};
  return opi_b_emit(b, &emit, out, err);
}

opipe_status opi_unstack(opi_builder *b, uint32_t value, uint32_t axis, uint32_t n, uint32_t *out,
                         opipe_error *err) {
  int64_t *ones = OPI_ARENA_ARRAY(b->scratch, int64_t, n);
  if (ones == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 8, "sizes");
  for (uint32_t i = 0; i < n; ++i)
    ones[i] = 1;
  OPI_TRY(split_along(b, value, axis, ones, n, out, err));
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(drop_axis(b, axis, &out[i], err));
  return OPIPE_OK;
}

/* A known bool or integer of one element. */
static opipe_status known_flag(opi_builder *b, const opi_node *node, uint32_t value, bool *out,
                               opipe_error *err) {
  uint32_t n = 0;
  if (value >= b->graph->n_values)
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "its condition is not a tensor");
  if (opi_b_value(b, value)->data == NULL)
    return opi_need_value(b, node, value, err);
  const int64_t *flag = opi_b_ints(b, value, &n);
  if (flag == NULL) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "condition '%s' has type %s",
                         opi_b_value(b, value)->name, opi_dtype_name(opi_b_value(b, value)->dtype));
  }
  if (n != 1) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "condition '%s' has %" PRIu32 " elements",
                         opi_b_value(b, value)->name, n);
  }
  *out = flag[0] != 0;
  return OPIPE_OK;
}

/* -- If -- */

static opipe_status lift_if(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *condition = NULL;
  bool truth = false;
  OPI_TRY(opi_in(b, node, 0, &condition, err));
  OPI_TRY(known_flag(b, node, node->in[0], &truth, err));
  const opi_graph *body = opi_body_of(node, truth ? "then_branch" : "else_branch");
  if (body == NULL || body->n_outputs < node->n_out) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "%s is absent or has too few outputs",
                         truth ? "then_branch" : "else_branch");
  }
  uint32_t *out = OPI_ARENA_ARRAY(b->scratch, uint32_t, body->n_outputs);
  if (out == NULL)
    return opi_fail_nomem(err, body->n_outputs * 4, "outputs");
  OPI_TRY(opi_b_inline(b, body, NULL, 0, out, err));
  for (uint32_t o = 0; o < node->n_out; ++o)
    OPI_TRY(opi_b_result(b, node, o, out[o], err));
  return OPIPE_OK;
}

/* -- Loop -- */

typedef struct loop {
  const opi_node *node;
  const opi_graph *body;
  uint32_t n_carried, n_scans;
  uint32_t *feeds;   /* [2 + n_carried]: trip, condition, carried */
  uint32_t *results; /* [1 + n_carried + n_scans] of one trip */
  uint32_t *scans;   /* [n_scans][room] */
  uint32_t room;     /* trips that may come */
  int64_t trip, most;
  bool go_on, endless;
} loop;

static opipe_status open_loop(opi_builder *b, loop *l, opipe_error *err) {
  const opi_node *node = l->node;
  const int64_t *most = NULL;
  uint32_t n = 0;
  l->body = opi_body_of(node, "body");
  l->n_carried = node->n_in > 2 ? node->n_in - 2 : 0;
  if (l->body == NULL || l->body->n_inputs != 2 + l->n_carried ||
      l->body->n_outputs < 1 + l->n_carried || l->body->n_outputs - 1 != node->n_out) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "body is absent, or its inputs and outputs do not fit the node's %" PRIu32
                         " and %" PRIu32,
                         node->n_in, node->n_out);
  }
  l->n_scans = l->body->n_outputs - 1 - l->n_carried;
  l->most = OPI_MOST_TRIPS;
  l->go_on = true;
  l->endless = opi_node_in(node, 0) == OPIPE_NONE;
  if (!l->endless) {
    OPI_TRY(opi_known_ints(b, node, 0, &most, &n, err));
    if (n != 1)
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "trip count does not have 1 element");
    l->most = most[0];
  }
  if (opi_node_in(node, 1) != OPIPE_NONE)
    OPI_TRY(known_flag(b, node, node->in[1], &l->go_on, err));
  l->room = l->most < 0 ? 0 : l->most < OPI_MOST_TRIPS ? (uint32_t)l->most : OPI_MOST_TRIPS;
  l->feeds = OPI_ARENA_ARRAY(b->scratch, uint32_t, 2 + (size_t)l->n_carried);
  l->results = OPI_ARENA_ARRAY(b->scratch, uint32_t, l->body->n_outputs);
  l->scans = OPI_ARENA_ARRAY(b->scratch, uint32_t, (size_t)l->n_scans * l->room);
  if (l->feeds == NULL || l->results == NULL || l->scans == NULL)
    return opi_fail_nomem(err, (uint64_t)l->n_scans * l->room * 4, "a loop");
  for (uint32_t c = 0; c < l->n_carried; ++c)
    l->feeds[2 + c] = node->in[2 + c];
  return OPIPE_OK;
}

static opipe_status one_trip(opi_builder *b, loop *l, opipe_error *err) {
  const uint8_t truth = 1;
  if (l->trip >= OPI_MOST_TRIPS) {
    return opi_node_fail(b, l->node, err, OPIPE_E_UNSUPPORTED,
                         "more than %d trips are not unrolled", OPI_MOST_TRIPS);
  }
  l->feeds[0] = opi_b_const(b, OPIPE_INT64, NULL, 0, &l->trip);
  l->feeds[1] = opi_b_const(b, OPIPE_BOOL, NULL, 0, &truth);
  if (l->feeds[0] == OPIPE_NONE || l->feeds[1] == OPIPE_NONE)
    return opi_fail_nomem(err, 9, "a constant");
  OPI_TRY(opi_b_inline(b, l->body, l->feeds, 2 + l->n_carried, l->results, err));
  for (uint32_t c = 0; c < l->n_carried; ++c)
    l->feeds[2 + c] = l->results[1 + c];
  for (uint32_t s = 0; s < l->n_scans; ++s)
    l->scans[(size_t)s * l->room + (uint32_t)l->trip] = l->results[1 + l->n_carried + s];
  ++l->trip;
  if (l->results[0] == OPI_POISONED) {
    l->go_on = false;
    return OPIPE_OK;
  }
  return known_flag(b, l->node, l->results[0], &l->go_on, err);
}

/* The result of no trips: an empty tensor; a body made for nothing gives its other dimensions. */
static opipe_status empty_scan(opi_builder *b, loop *l, uint32_t s, uint32_t *out,
                               opipe_error *err) {
  const int64_t zero = 0;
  const uint8_t truth = 1;
  l->feeds[0] = opi_b_const(b, OPIPE_INT64, NULL, 0, &zero);
  l->feeds[1] = opi_b_const(b, OPIPE_BOOL, NULL, 0, &truth);
  if (l->feeds[0] == OPIPE_NONE || l->feeds[1] == OPIPE_NONE)
    return opi_fail_nomem(err, 9, "a constant");
  OPI_TRY(opi_b_inline(b, l->body, l->feeds, 2 + l->n_carried, l->results, err));
  return opi_stack_nothing(b, l->node, l->results[1 + l->n_carried + s], 0, out, err);
}

/* Scan outputs are stacked along a new first axis. */
static opipe_status stack_scan(opi_builder *b, loop *l, uint32_t s, uint32_t *out,
                               opipe_error *err) {
  if (l->trip == 0)
    return empty_scan(b, l, s, out, err);
  return opi_stack(b, l->node, &l->scans[(size_t)s * l->room], (uint32_t)l->trip, 0, out, err);
}

static opipe_status lift_loop(opi_builder *b, const opi_node *node, opipe_error *err) {
  loop l = {.node = node};
  OPI_TRY(open_loop(b, &l, err));
  while (l.go_on && (l.endless || l.trip < l.most))
    OPI_TRY(one_trip(b, &l, err));
  for (uint32_t c = 0; c < l.n_carried; ++c)
    OPI_TRY(opi_b_result(b, node, c, l.feeds[2 + c], err));
  for (uint32_t s = 0; s < l.n_scans; ++s) {
    uint32_t out = OPIPE_NONE;
    if (opi_node_out(node, l.n_carried + s) == OPIPE_NONE)
      continue;
    OPI_TRY(stack_scan(b, &l, s, &out, err));
    OPI_TRY(opi_b_result(b, node, l.n_carried + s, out, err));
  }
  return OPIPE_OK;
}

/* -- sequences -- */

static opipe_status read_sequence(opi_builder *b, const opi_node *node, uint32_t i,
                                  const opi_sequence **out, opipe_error *err) {
  const uint32_t v = opi_node_in(node, i);
  if (v == OPIPE_NONE || !opi_is_sequence(v)) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "input %" PRIu32 " is not a sequence of known tensors", i);
  }
  *out = opi_b_items(b, v);
  return OPIPE_OK;
}

/* Input i as a position in [-n, n), or in [-n, n] with `end`. */
static opipe_status read_position(opi_builder *b, const opi_node *node, uint32_t i, uint32_t n,
                                  bool end, uint32_t *out, opipe_error *err) {
  const int64_t *at = NULL;
  uint32_t n_at = 0;
  OPI_TRY(opi_known_ints(b, node, i, &at, &n_at, err));
  const int64_t most = (int64_t)n + (end ? 1 : 0);
  if (n_at != 1 || at[0] < -(int64_t)n || at[0] >= most) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "position %" PRId64 " is outside a sequence of %" PRIu32,
                         n_at == 1 ? at[0] : -1, n);
  }
  *out = (uint32_t)(at[0] < 0 ? at[0] + (int64_t)n : at[0]);
  return OPIPE_OK;
}

static opipe_status give_sequence(opi_builder *b, const opi_node *node, const uint32_t *items,
                                  uint32_t n, opipe_error *err) {
  uint32_t handle = OPIPE_NONE;
  const uint32_t dtype = n != 0 ? opi_b_value(b, items[0])->dtype : OPIPE_UNDEFINED;
  OPI_TRY(opi_b_sequence(b, items, n, dtype, &handle, err));
  return opi_b_result(b, node, 0, handle, err);
}

static opipe_status lift_sequence_construct(opi_builder *b, const opi_node *node,
                                            opipe_error *err) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const opi_value *x = NULL;
    OPI_TRY(opi_in(b, node, i, &x, err));
  }
  return give_sequence(b, node, node->in, node->n_in, err);
}

static opipe_status lift_sequence_empty(opi_builder *b, const opi_node *node, opipe_error *err) {
  return give_sequence(b, node, NULL, 0, err);
}

static opipe_status lift_sequence_insert(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_sequence *s = NULL;
  const opi_value *x = NULL;
  OPI_TRY(read_sequence(b, node, 0, &s, err));
  OPI_TRY(opi_in(b, node, 1, &x, err));
  uint32_t at = s->n;
  if (opi_node_in(node, 2) != OPIPE_NONE)
    OPI_TRY(read_position(b, node, 2, s->n, true, &at, err));
  uint32_t *items = OPI_ARENA_ARRAY(b->scratch, uint32_t, (size_t)s->n + 1);
  if (items == NULL)
    return opi_fail_nomem(err, ((uint64_t)s->n + 1) * 4, "a sequence");
  for (uint32_t i = 0; i <= s->n; ++i)
    items[i] = i == at ? node->in[1] : s->items[i < at ? i : i - 1];
  return give_sequence(b, node, items, s->n + 1, err);
}

static opipe_status lift_sequence_erase(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_sequence *s = NULL;
  OPI_TRY(read_sequence(b, node, 0, &s, err));
  if (s->n == 0)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "the sequence is empty");
  uint32_t at = s->n - 1, k = 0;
  if (opi_node_in(node, 1) != OPIPE_NONE)
    OPI_TRY(read_position(b, node, 1, s->n, false, &at, err));
  uint32_t *items = OPI_ARENA_ARRAY(b->scratch, uint32_t, s->n);
  if (items == NULL)
    return opi_fail_nomem(err, (uint64_t)s->n * 4, "a sequence");
  for (uint32_t i = 0; i < s->n; ++i) {
    if (i != at)
      items[k++] = s->items[i];
  }
  return give_sequence(b, node, items, k, err);
}

static opipe_status lift_sequence_at(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_sequence *s = NULL;
  uint32_t at = 0;
  OPI_TRY(read_sequence(b, node, 0, &s, err));
  OPI_TRY(read_position(b, node, 1, s->n, false, &at, err));
  return opi_b_result(b, node, 0, s->items[at], err);
}

static opipe_status lift_sequence_length(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_sequence *s = NULL;
  OPI_TRY(read_sequence(b, node, 0, &s, err));
  const int64_t n = s->n;
  const uint32_t out = opi_b_const(b, OPIPE_INT64, NULL, 0, &n);
  if (out == OPIPE_NONE)
    return opi_fail_nomem(err, 8, "a constant");
  return opi_b_result(b, node, 0, out, err);
}

/* Sizes of the parts: absent: ones; a scalar: chunks of that size; a list: as given. */
static opipe_status part_sizes(opi_builder *b, const opi_node *node, int64_t extent,
                               int64_t **out_sizes, uint32_t *out_n, bool *out_single,
                               opipe_error *err) {
  const int64_t *given = NULL;
  uint32_t n = 0;
  int64_t chunk = 1;
  *out_single = opi_node_in(node, 1) == OPIPE_NONE;
  if (!*out_single) {
    OPI_TRY(opi_known_ints(b, node, 1, &given, &n, err));
    if (opi_b_value(b, node->in[1])->rank == 0) {
      chunk = given[0];
      given = NULL;
    }
  }
  if (given == NULL && (chunk <= 0 || (extent + chunk - 1) / chunk > (1 << 20))) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "%" PRId64 " cannot be split into parts of %" PRId64, extent, chunk);
  }
  if (given == NULL)
    n = (uint32_t)((extent + chunk - 1) / chunk);
  int64_t *sizes = OPI_ARENA_ARRAY(b->scratch, int64_t, n);
  if (sizes == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 8, "part sizes");
  for (uint32_t i = 0; i < n; ++i) {
    const int64_t rest = extent - (int64_t)i * chunk;
    sizes[i] = given != NULL ? given[i] : rest < chunk ? rest : chunk;
  }
  *out_sizes = sizes;
  *out_n = n;
  return OPIPE_OK;
}

static opipe_status lift_split_to_sequence(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t *sizes = NULL;
  uint32_t axis = 0, n = 0;
  bool single = false;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  OPI_TRY(part_sizes(b, node, x->shape[axis], &sizes, &n, &single, err));
  uint32_t *items = OPI_ARENA_ARRAY(b->scratch, uint32_t, n);
  if (items == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 4, "a sequence");
  if (n > 0)
    OPI_TRY(split_along(b, node->in[0], axis, sizes, n, items, err));
  for (uint32_t i = 0; single && i < n && opi_attr_int(node, "keepdims", 1) == 0; ++i)
    OPI_TRY(drop_axis(b, axis, &items[i], err));
  return give_sequence(b, node, items, n, err);
}

static opipe_status lift_concat_from_sequence(opi_builder *b, const opi_node *node,
                                              opipe_error *err) {
  const opi_sequence *s = NULL;
  OPI_TRY(read_sequence(b, node, 0, &s, err));
  if (s->n == 0)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "the sequence is empty");
  uint32_t *in = opi_arena_copy(b->scratch, s->items, s->n * sizeof(*in));
  uint32_t axis = 0, out = OPIPE_NONE;
  if (in == NULL)
    return opi_fail_nomem(err, s->n * 4, "inputs");
  const bool fresh = opi_attr_int(node, "new_axis", 0) != 0;
  if (fresh && opi_rank_of(b, in[0]) >= OPIPE_MAX_RANK)
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "rank %d cannot grow", OPIPE_MAX_RANK);
  const uint32_t n = s->n, rank = opi_rank_of(b, in[0]) + (fresh ? 1 : 0);
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, rank, &axis, err));
  for (uint32_t i = 0; fresh && i < n; ++i) {
    int64_t shape[OPIPE_MAX_RANK + 1];
    uint32_t from = 0;
    for (uint32_t d = 0; d < rank; ++d)
      shape[d] = d == axis || from >= opi_rank_of(b, in[i]) ? 1 : opi_shape_of(b, in[i])[from++];
    OPI_TRY(opi_emit_reshape(b, in[i], shape, rank, NULL, &in[i], err));
  }
  if (n == 1)
    return opi_b_result(b, node, 0, in[0], err);
  const opipe_attr attr = OPI_ATTR_I("axis", axis);
  const opi_emit emit = {
      .op = "Concat", .in = in, .n_in = n, .n_out = 1, .attrs = &attr, .n_attrs = 1};
  OPI_TRY(opi_b_emit(b, &emit, &out, err));
  return opi_b_result(b, node, 0, out, err);
}

static const opi_op ops[] = {
    {OPI_OP("If", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 255),
     OPI_ATTRS(25, OPI_A_GRAPH("else_branch"), OPI_A_GRAPH("then_branch")), .lift = lift_if},
    {OPI_OP("Loop", "", 1, OPI_NEWEST_ONNX, 0, 255, 1, 255), OPI_ATTRS(25, OPI_A_GRAPH("body")),
     .lift = lift_loop, .sequences = ~UINT64_C(3)},
    {OPI_OP("SequenceConstruct", "", 11, OPI_NEWEST_ONNX, 1, 255, 1, 1), OPI_NO_ATTRS(11),
     .lift = lift_sequence_construct},
    {OPI_OP("SequenceEmpty", "", 11, OPI_NEWEST_ONNX, 0, 0, 1, 1),
     OPI_ATTRS(11, OPI_A(INT, "dtype", OPI_NO_EFFECT)), .lift = lift_sequence_empty},
    {OPI_OP("SequenceInsert", "", 11, OPI_NEWEST_ONNX, 2, 3, 1, 1), OPI_NO_ATTRS(11),
     .lift = lift_sequence_insert, .sequences = 1},
    {OPI_OP("SequenceErase", "", 11, OPI_NEWEST_ONNX, 1, 2, 1, 1), OPI_NO_ATTRS(11),
     .lift = lift_sequence_erase, .sequences = 1},
    {OPI_OP("SequenceAt", "", 11, OPI_NEWEST_ONNX, 2, 2, 1, 1), OPI_NO_ATTRS(11),
     .lift = lift_sequence_at, .sequences = 1},
    {OPI_OP("SequenceLength", "", 11, OPI_NEWEST_ONNX, 1, 1, 1, 1), OPI_NO_ATTRS(11),
     .lift = lift_sequence_length, .sequences = 1},
    {OPI_OP("SplitToSequence", "", 11, OPI_NEWEST_ONNX, 1, 2, 1, 1),
     OPI_ATTRS(24, OPI_A(INT, "keepdims", OPI_PRESET(1)), OPI_A(INT, "axis", OPI_PRESET(0))),
     .lift = lift_split_to_sequence},
    {OPI_OP("ConcatFromSequence", "", 11, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(11, OPI_A(INT, "new_axis", OPI_PRESET(0)), OPI_A(INT, "axis")),
     .lift = lift_concat_from_sequence, .sequences = 1},
};
extern const opi_op_family opi_ops_control;
const opi_op_family opi_ops_control = {ops, OPI_COUNT(ops)};
