/* SPDX-License-Identifier: Apache-2.0 */
/* Scan, which vanishes at binding: it has as many trips as its scan inputs have entries along their
 * axes, a number once shapes are known, and is unrolled like Loop (control.c).
 *
 *   opset 9 and later   states and scan inputs go to the body as they are; each scan input has an
 *                       axis and a direction, each scan output, too
 *   opset 8             everything has a batch in axis 0 and the sequence in axis 1: every row is a
 *                       scan of its own, as long as sequence_lens says; zeros fill up scan outputs
 */
#include "loader/ops/control.h"

enum { SCAN_ROWS_BY_ROW = 8 }; /* the version with a batch axis of its own */

typedef struct scan {
  const opi_node *node;
  const opi_graph *body;
  uint32_t n_states, n_in, n_scans; /* states, scan inputs, scan outputs */
  uint32_t *feeds;                  /* [n_states + n_in] of the next trip */
  uint32_t *results;                /* [n_states + n_scans] of the last */
  uint32_t *parts;                  /* [n_in][most] of scan inputs, in the order of trips */
  uint32_t *items;                  /* [n_scans][most], in the order of scan outputs' entries */
  uint32_t most;                    /* trips, and at least 1 */
} scan;

/* Entry i of a list of `n` flags or axes; 0 where it is absent. */
static opipe_status entry(opi_builder *b, const opi_node *node, const char *name, uint32_t n,
                          uint32_t i, int64_t *out, opipe_error *err) {
  uint32_t given = 0;
  const int64_t *list = opi_attr_ints(node, name, &given);
  *out = 0;
  if (given == 0)
    return OPIPE_OK;
  if (given != n) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute %s has %" PRIu32 " entries, %" PRIu32 " are needed", name,
                         given, n);
  }
  *out = list[i];
  return OPIPE_OK;
}

static opipe_status is_backwards(opi_builder *b, const opi_node *node, const char *name, uint32_t n,
                                 uint32_t i, bool *out, opipe_error *err) {
  int64_t flag = 0;
  OPI_TRY(entry(b, node, name, n, i, &flag, err));
  *out = flag == 1;
  if (flag == 0 || flag == 1)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "attribute %s has entry %" PRId64 ", not 0 or 1", name, flag);
}

static opipe_status open_scan(opi_builder *b, scan *s, uint32_t n_given, opipe_error *err) {
  int64_t n_in = 0;
  OPI_TRY(opi_need_int(b, s->node, "num_scan_inputs", 1, n_given, &n_in, err));
  s->n_in = (uint32_t)n_in;
  s->n_states = n_given - s->n_in;
  s->body = opi_body_of(s->node, "body");
  if (s->body == NULL || s->body->n_inputs != n_given || s->body->n_outputs < s->node->n_out ||
      s->body->n_outputs < s->n_states) {
    return opi_node_fail(b, s->node, err, OPIPE_E_INVALID,
                         "body is absent, or its inputs and outputs do not fit %" PRIu32
                         " states, %" PRIu32 " scan inputs and %" PRIu32 " outputs",
                         s->n_states, s->n_in, s->node->n_out);
  }
  s->n_scans = s->body->n_outputs - s->n_states;
  return OPIPE_OK;
}

static opipe_status make_room(opi_builder *b, scan *s, int64_t trips, opipe_error *err) {
  if (trips > OPI_MOST_TRIPS) {
    return opi_node_fail(b, s->node, err, OPIPE_E_UNSUPPORTED,
                         "%" PRId64 " trips are not unrolled, at most %d are", trips,
                         OPI_MOST_TRIPS);
  }
  s->most = trips < 1 ? 1 : (uint32_t)trips;
  s->feeds = OPI_ARENA_ARRAY(b->scratch, uint32_t, s->n_states + s->n_in);
  s->results = OPI_ARENA_ARRAY(b->scratch, uint32_t, s->body->n_outputs);
  s->parts = OPI_ARENA_ARRAY(b->scratch, uint32_t, (size_t)s->n_in * s->most);
  s->items = OPI_ARENA_ARRAY(b->scratch, uint32_t, (size_t)s->n_scans * s->most);
  if (s->feeds == NULL || s->results == NULL || s->parts == NULL || s->items == NULL)
    return opi_fail_nomem(err, ((uint64_t)s->n_in + s->n_scans) * s->most * 4, "a scan");
  return OPIPE_OK;
}

/* -- trips -- */

/* The scan input of no trips: zeros of an entry's shape, for a body made for nothing. */
static opipe_status part_of_nothing(opi_builder *b, uint32_t value, uint32_t axis, uint32_t *out,
                                    opipe_error *err) {
  const uint32_t dtype = opi_b_value(b, value)->dtype;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  uint64_t n = 0;
  for (uint32_t d = 0; d < opi_rank_of(b, value); ++d) {
    if (d != axis)
      shape[rank++] = opi_shape_of(b, value)[d];
  }
  if (!opi_shape_elems(shape, rank, &n) || n > UINT32_MAX) {
    return opi_fail(err, OPIPE_E_LIMIT, "an entry of '%s' is too large",
                    opi_b_value(b, value)->name);
  }
  const void *zeros =
      OPI_ARENA_ARRAY(b->scratch, uint8_t, (size_t)n * opi_dtype_bits(dtype) / 8 + 1);
  if (zeros == NULL)
    return opi_fail_nomem(err, n * opi_dtype_bits(dtype) / 8, "an entry of a scan input");
  *out = opi_b_const(b, dtype, shape, rank, zeros);
  return opi_k_const(*out, err);
}

/* Cuts scan input i into its trips' parts. */
static opipe_status cut_input(opi_builder *b, const scan *s, uint32_t i, uint32_t value,
                              uint32_t axis, bool backwards, opipe_error *err) {
  uint32_t *parts = &s->parts[(size_t)i * s->most];
  const uint32_t n = (uint32_t)opi_shape_of(b, value)[axis];
  if (n == 0)
    return part_of_nothing(b, value, axis, parts, err);
  uint32_t *cut = OPI_ARENA_ARRAY(b->scratch, uint32_t, n);
  if (cut == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 4, "the parts of a scan input");
  OPI_TRY(opi_unstack(b, value, axis, n, cut, err));
  for (uint32_t t = 0; t < s->most; ++t)
    parts[t] = cut[backwards ? n - 1 - t : t];
  return OPIPE_OK;
}

static opipe_status one_trip(opi_builder *b, const scan *s, uint32_t t, opipe_error *err) {
  for (uint32_t i = 0; i < s->n_in; ++i)
    s->feeds[s->n_states + i] = s->parts[(size_t)i * s->most + t];
  return opi_b_inline(b, s->body, s->feeds, s->n_states + s->n_in, s->results, err);
}

/* Feeds hold the states before and after; items get what the trips make. */
static opipe_status all_trips(opi_builder *b, const scan *s, uint32_t trips, opipe_error *err) {
  for (uint32_t t = 0; t < trips; ++t) {
    OPI_TRY(one_trip(b, s, t, err));
    for (uint32_t c = 0; c < s->n_states; ++c)
      s->feeds[c] = s->results[c];
    for (uint32_t k = 0; k < s->n_scans; ++k)
      s->items[(size_t)k * s->most + t] = s->results[s->n_states + k];
  }
  if (trips == 0) /* scan outputs have the shape of what the body would make */
    OPI_TRY(one_trip(b, s, 0, err));
  return OPIPE_OK;
}

/* Scan output k of so many trips. */
static opipe_status stack_output(opi_builder *b, const scan *s, uint32_t k, uint32_t trips,
                                 int64_t axis, bool backwards, uint32_t *out, opipe_error *err) {
  uint32_t *items = &s->items[(size_t)k * s->most];
  if (trips == 0)
    return opi_stack_nothing(b, s->node, s->results[s->n_states + k], axis, out, err);
  for (uint32_t t = 0; backwards && t < trips / 2; ++t) {
    const uint32_t item = items[t];
    items[t] = items[trips - 1 - t];
    items[trips - 1 - t] = item;
  }
  return opi_stack(b, s->node, items, trips, axis, out, err);
}

/* -- opset 9 and later -- */

/* The axis of every scan input; they have one length, the number of trips. */
static opipe_status scan_axes(opi_builder *b, const scan *s, uint32_t *axes, int64_t *out_trips,
                              opipe_error *err) {
  for (uint32_t i = 0; i < s->n_in; ++i) {
    const opi_value *x = NULL;
    int64_t axis = 0;
    OPI_TRY(opi_in(b, s->node, s->n_states + i, &x, err));
    OPI_TRY(entry(b, s->node, "scan_input_axes", s->n_in, i, &axis, err));
    if (!opi_axis(axis, (uint32_t)x->rank, &axes[i])) {
      return opi_node_fail(b, s->node, err, OPIPE_E_INVALID,
                           "scan input '%s' of rank %" PRId32 " has no axis %" PRId64, x->name,
                           x->rank, axis);
    }
    const int64_t trips = x->shape[axes[i]];
    if (i > 0 && trips != *out_trips) {
      return opi_node_fail(b, s->node, err, OPIPE_E_INVALID,
                           "scan input '%s' has %" PRId64 " entries along its axis, '%s' %" PRId64,
                           x->name, trips, opi_input(b, s->node, s->n_states)->name, *out_trips);
    }
    *out_trips = trips;
  }
  return OPIPE_OK;
}

static opipe_status scan_whole(opi_builder *b, scan *s, opipe_error *err) {
  const opi_node *node = s->node;
  int64_t trips = 0;
  uint32_t *axes = OPI_ARENA_ARRAY(b->scratch, uint32_t, s->n_in);
  if (axes == NULL)
    return opi_fail_nomem(err, s->n_in * 4, "axes");
  OPI_TRY(scan_axes(b, s, axes, &trips, err));
  OPI_TRY(make_room(b, s, trips, err));
  for (uint32_t c = 0; c < s->n_states; ++c)
    s->feeds[c] = node->in[c];
  for (uint32_t i = 0; i < s->n_in; ++i) {
    bool backwards = false;
    OPI_TRY(is_backwards(b, node, "scan_input_directions", s->n_in, i, &backwards, err));
    OPI_TRY(cut_input(b, s, i, node->in[s->n_states + i], axes[i], backwards, err));
  }
  OPI_TRY(all_trips(b, s, (uint32_t)trips, err));
  for (uint32_t c = 0; c < s->n_states && c < node->n_out; ++c)
    OPI_TRY(opi_b_result(b, node, c, s->feeds[c], err));
  for (uint32_t k = 0; k < s->n_scans; ++k) {
    uint32_t out = OPIPE_NONE;
    int64_t axis = 0;
    bool backwards = false;
    OPI_TRY(is_backwards(b, node, "scan_output_directions", s->n_scans, k, &backwards, err));
    OPI_TRY(entry(b, node, "scan_output_axes", s->n_scans, k, &axis, err));
    if (opi_node_out(node, s->n_states + k) == OPIPE_NONE)
      continue;
    OPI_TRY(stack_output(b, s, k, (uint32_t)trips, axis, backwards, &out, err));
    OPI_TRY(opi_b_result(b, node, s->n_states + k, out, err));
  }
  return OPIPE_OK;
}

/* -- opset 8 -- */

/* Rows and entries of everything; how many trips each row has. */
static opipe_status row_lengths(opi_builder *b, const scan *s, uint32_t *out_rows,
                                int64_t *out_most, const int64_t **out_lengths, opipe_error *err) {
  const opi_node *node = s->node;
  const opi_value *first = NULL;
  uint32_t n = 0;
  OPI_TRY(opi_in(b, node, 1, &first, err));
  for (uint32_t i = 1; i < node->n_in; ++i) {
    const opi_value *x = NULL;
    OPI_TRY(opi_in(b, node, i, &x, err));
    const bool seq = i > s->n_states;
    const opi_value *lead = opi_input(b, node, s->n_states + 1);
    if (x->rank < (seq ? 2 : 1) || first->rank < 1 || x->shape[0] != first->shape[0] ||
        (seq && x->shape[1] != lead->shape[1])) {
      char shape[96];
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "input '%s' has shape %s, its rows or entries are not those of '%s'",
                           x->name,
                           opi_shape_text(shape, sizeof(shape), x->shape, (uint32_t)x->rank),
                           seq ? lead->name : first->name);
    }
    *out_most = seq ? x->shape[1] : 0;
  }
  if (first->shape[0] < 1 || first->shape[0] > OPI_MOST_TRIPS) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "%" PRId64 " rows are not unrolled, 1 to %d are", first->shape[0],
                         OPI_MOST_TRIPS);
  }
  *out_rows = (uint32_t)first->shape[0];
  *out_lengths = NULL;
  if (opi_node_in(node, 0) == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_known_ints(b, node, 0, out_lengths, &n, err));
  if (n != *out_rows) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "sequence_lens has %" PRIu32 " entries, there are %" PRIu32 " rows", n,
                         *out_rows);
  }
  for (uint32_t r = 0; r < n; ++r) {
    if ((*out_lengths)[r] < 0 || (*out_lengths)[r] > *out_most) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "sequence_lens has entry %" PRId64 ", sequences have %" PRId64
                           " entries",
                           (*out_lengths)[r], *out_most);
    }
  }
  return OPIPE_OK;
}

/* Scan output k of one row, with zeros up to `most` entries. */
static opipe_status fill_up(opi_builder *b, uint32_t *io_value, int64_t most, opipe_error *err) {
  int64_t pads[2 * OPIPE_MAX_RANK] = {0};
  if (*io_value == OPI_POISONED || opi_shape_of(b, *io_value)[0] == most)
    return OPIPE_OK;
  pads[opi_rank_of(b, *io_value)] = most - opi_shape_of(b, *io_value)[0];
  return opi_k_pad(b, *io_value, pads, io_value, err);
}

/* rows [n_in][n_rows]: the inputs' rows; made [n_out][n_rows]: the outputs'. */
static opipe_status scan_row(opi_builder *b, const scan *s, uint32_t r, uint32_t n_rows,
                             const uint32_t *rows, int64_t length, int64_t most, uint32_t *made,
                             opipe_error *err) {
  for (uint32_t c = 0; c < s->n_states; ++c)
    s->feeds[c] = rows[(size_t)c * n_rows + r];
  for (uint32_t i = 0; i < s->n_in; ++i) {
    bool backwards = false;
    OPI_TRY(is_backwards(b, s->node, "directions", s->n_in, i, &backwards, err));
    if (backwards && length != most) {
      return opi_node_fail(b, s->node, err, OPIPE_E_UNSUPPORTED,
                           "scans %" PRId64 " of %" PRId64 " entries backwards", length, most);
    }
    OPI_TRY(cut_input(b, s, i, rows[(size_t)(s->n_states + i) * n_rows + r], 0, backwards, err));
  }
  OPI_TRY(all_trips(b, s, (uint32_t)length, err));
  for (uint32_t c = 0; c < s->n_states; ++c)
    made[(size_t)c * n_rows + r] = s->feeds[c];
  for (uint32_t k = 0; k < s->n_scans; ++k) {
    uint32_t *to = &made[(size_t)(s->n_states + k) * n_rows + r];
    OPI_TRY(stack_output(b, s, k, (uint32_t)length, 0, false, to, err));
    OPI_TRY(fill_up(b, to, most, err));
  }
  return OPIPE_OK;
}

static opipe_status scan_by_row(opi_builder *b, scan *s, opipe_error *err) {
  const opi_node *node = s->node;
  const uint32_t n_in = s->n_states + s->n_in, n_out = s->n_states + s->n_scans;
  const int64_t *lengths = NULL;
  int64_t most = 0;
  uint32_t n = 0;
  OPI_TRY(row_lengths(b, s, &n, &most, &lengths, err));
  OPI_TRY(make_room(b, s, most, err));
  uint32_t *rows = OPI_ARENA_ARRAY(b->scratch, uint32_t, (size_t)n_in * n);
  uint32_t *made = OPI_ARENA_ARRAY(b->scratch, uint32_t, (size_t)n_out * n);
  if (rows == NULL || made == NULL)
    return opi_fail_nomem(err, ((uint64_t)n_in + n_out) * n * 4, "the rows of a scan");
  for (uint32_t i = 0; i < n_in; ++i)
    OPI_TRY(opi_unstack(b, node->in[1 + i], 0, n, &rows[(size_t)i * n], err));
  for (uint32_t r = 0; r < n; ++r) {
    const int64_t length = lengths != NULL ? lengths[r] : most;
    OPI_TRY(scan_row(b, s, r, n, rows, length, most, made, err));
  }
  for (uint32_t o = 0; o < n_out && o < node->n_out; ++o) {
    uint32_t out = OPIPE_NONE;
    if (node->out[o] == OPIPE_NONE)
      continue;
    OPI_TRY(opi_stack(b, node, &made[(size_t)o * n], n, 0, &out, err));
    OPI_TRY(opi_b_result(b, node, o, out, err));
  }
  return OPIPE_OK;
}

static opipe_status lift_scan(opi_builder *b, const opi_node *node, opipe_error *err) {
  scan s = {.node = node};
  const bool by_row = node->version == SCAN_ROWS_BY_ROW;
  OPI_TRY(open_scan(b, &s, by_row ? node->n_in - 1 : node->n_in, err));
  return by_row ? scan_by_row(b, &s, err) : scan_whole(b, &s, err);
}

static const opi_op ops[] = {
    {OPI_OP("Scan", "", 8, OPI_NEWEST_ONNX, 1, 255, 1, 255),
     OPI_ATTRS(
         25, OPI_A_GRAPH("body"), OPI_A(INT, "num_scan_inputs"),
         OPI_A(INTS, "directions", .until = 8), OPI_A(INTS, "scan_input_directions", .since = 9),
         OPI_A(INTS, "scan_output_directions", .since = 9),
         OPI_A(INTS, "scan_input_axes", .since = 9), OPI_A(INTS, "scan_output_axes", .since = 9)),
     .lift = lift_scan},
};
extern const opi_op_family opi_ops_scan;
const opi_op_family opi_ops_scan = {ops, OPI_COUNT(ops)};
