/* SPDX-License-Identifier: Apache-2.0 */
/* State of building a token slice: slice_tokens.c walks, slice_attention.c handles Attention,
 * slice_planes.c unfused scores. */
#ifndef OPI_SLICER_H
#define OPI_SLICER_H

#include "loader/ops/common.h"
#include "loader/ops/kit.h"
#include "loader/passes/token_mask.h"

/* Scores and weights of unfused attention have rows of this slice (their carry says where) and
 * columns of all tokens so far. column -1: not such a value. */
typedef struct slicer {
  const opi_tokens *t;
  const opi_graph *whole;
  int64_t first, length;
  const opi_evaluator *evaluator;
  opi_arena scratch;
  opi_builder b;
  uint32_t *map;          /* [n_values] in the slice's graph; OPIPE_NONE: not made */
  opi_carry *carry;       /* [n_values] of sliced values; axis -1: whole */
  int64_t *before;        /* [n_values] entries before the tokens (keys that are wanted) */
  const uint32_t *wanted; /* [n_wanted] values of the whole graph */
  uint32_t n_wanted;
  opi_token_plane *planes; /* [n_values] column -1: not tokens by tokens */
  bool *weighty;           /* [n_values] true if it depends on a parameter */
  bool *needed;            /* [n_nodes] */
  bool *main;              /* [n_nodes] true if not only masks of attention need it */
  bool *scores; /* [n_values] of the whole graph: computed from a product of queries and keys,
                   tokens by tokens */
  const char **state_names;
  uint32_t *pasts, *presents; /* [n_states] in the graph under construction */
  uint32_t n_states;
  bool folds;                 /* nodes are computed if all that they read is known */
  const char *noun, *refusal; /* in names of what replaces a node; before reasons */
  opipe_error *err;
} slicer;

static inline bool opi_s_sliced(const slicer *s, uint32_t v) {
  return v != OPIPE_NONE && opi_carries(&s->carry[v]);
}
static inline bool opi_s_plane(const slicer *s, uint32_t v) {
  return v != OPIPE_NONE && s->planes[v].column >= 0;
}
static inline int64_t opi_s_end(const slicer *s) {
  return s->first + s->length;
}
static inline bool opi_s_is_parameter(const opi_value *v) {
  return v->producer == OPIPE_NONE && (v->flags & OPI_VALUE_INITIALIZER) != 0 &&
         opi_dtype_is_float(v->dtype) && opi_elems(v) > 1;
}
opipe_status opi_s_refuse(const slicer *s, const opi_node *node, const char *why);
/* Emits a replacement for the node, under its name. */
opipe_status opi_s_emit_as(slicer *s, const opi_node *node, const opi_emit *emit, uint32_t *out);
/* Emits a copy with these inputs; the outputs keep their names. */
opipe_status opi_s_emit(slicer *s, const opi_node *node, const uint32_t *in);
/* Applies the operator's carry rule; err has its reason for refusing. */
opipe_status opi_s_rule(const slicer *s, const opi_node *node, const opi_carry *in, opi_carry *out,
                        opipe_error *err);
/* As opi_s_rule, with whole operands taken to carry the axis where they have it; then with each of
 * them, in turn, taken not to. in: as taken. */
opipe_status opi_s_agree(slicer *s, const opi_node *node, opi_carry *in, opi_carry *out);
/* The only token dimension of a whole value, as a carry. */
opi_carry opi_s_plain_carry(const slicer *s, uint32_t v);
/* Names everything that replaces a node after it, with names that no value of the whole graph has.
 */
opipe_status opi_s_name_after(slicer *s, const opi_node *node);
/* The same value in the graph under construction: s->map[v]. */
opipe_status opi_s_copy_value(slicer *s, uint32_t v);
/* Allocates the tables and opens the builder, which opi_b_close closes. */
opipe_status opi_s_open(slicer *s);
/* slice_attention.c: an Attention whose keys are sliced. */
opipe_status opi_s_attention(slicer *s, const opi_node *node);
/* A past of `shape` for the next state; OPIPE_NONE in the first slice. */
opipe_status opi_s_past(slicer *s, uint32_t dtype, const int64_t *shape, uint32_t rank,
                        uint32_t *out);

/* Marks the scores in the whole graph. */
opipe_status opi_s_find_scores(slicer *s);
/* True if operand i is only added to the scores of a node, or selects them, by key. It is then
 * computed whole. */
bool opi_s_is_mask(const slicer *s, const opi_node *node, uint32_t i);
/* True for a node that makes or reads scores; everything that scores do not permit is refused. */
bool opi_s_at_scores(const slicer *s, const opi_node *node);
opipe_status opi_s_walk_scores(slicer *s, const opi_node *node);

#endif /* OPI_SLICER_H */
