/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that build a token slice share: slice_tokens.c walks, slice_attention.c knows
 * Attention, slice_planes.c scores that stand unfused. */
#ifndef OPI_SLICER_H
#define OPI_SLICER_H

#include "loader/ops/common.h"
#include "loader/ops/kit.h"
#include "loader/passes/token_mask.h"

/* Scores and weights of attention that are no Attention: rows of this slice (its carry says where),
 * and columns of all tokens so far. column -1: no such value. */
typedef struct slicer {
  const opi_tokens *t;
  const opi_graph *whole;
  int64_t first, length;
  const opi_evaluator *evaluator;
  opi_arena scratch;
  opi_builder b;
  uint32_t *map;          /* [n_values] in the slice's graph, OPIPE_NONE: not made */
  opi_carry *carry;       /* [n_values] of sliced values; axis -1: whole */
  int64_t *before;        /* [n_values] entries in front of the tokens (keys that are wanted) */
  const uint32_t *wanted; /* [n_wanted] values of the whole graph */
  uint32_t n_wanted;
  opi_token_plane *planes; /* [n_values] column -1: not one of tokens by tokens */
  bool *weighty;           /* [n_values] depends on a parameter */
  bool *needed;            /* [n_nodes] */
  bool *main;              /* [n_nodes] not only for masks of attention */
  bool *scores; /* [n_values] of the whole graph: made of a product of queries and keys, tokens
                   by tokens */
  const char **state_names;
  uint32_t *pasts, *presents; /* [n_states] in the graph under construction */
  uint32_t n_states;
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
/* Emits what stands for the node, under its name. */
opipe_status opi_s_emit_as(slicer *s, const opi_node *node, const opi_emit *emit, uint32_t *out);
/* Emits a copy with these inputs; the outputs keep their names. */
opipe_status opi_s_emit(slicer *s, const opi_node *node, const uint32_t *in);
/* How the operator carries an axis; `why` of the operator in err. */
opipe_status opi_s_rule(const slicer *s, const opi_node *node, const opi_carry *in, opi_carry *out,
                        opipe_error *err);
/* slice_attention.c: an Attention whose keys are sliced. */
opipe_status opi_s_attention(slicer *s, const opi_node *node);
/* A past of `shape` for the next state, OPIPE_NONE in the first slice. */
opipe_status opi_s_past(slicer *s, uint32_t dtype, const int64_t *shape, uint32_t rank,
                        uint32_t *out);

/* Marks what stands for scores in the whole graph. */
opipe_status opi_s_find_scores(slicer *s);
/* Does operand i only add to the scores of a node, or choose among them, by key? It is computed
 * whole then. */
bool opi_s_is_mask(const slicer *s, const opi_node *node, uint32_t i);
/* A node that makes scores, or reads them; all is refused that the scores do not allow. */
bool opi_s_at_scores(const slicer *s, const opi_node *node);
opipe_status opi_s_walk_scores(slicer *s, const opi_node *node);

#endif /* OPI_SLICER_H */
