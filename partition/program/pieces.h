/* SPDX-License-Identifier: Apache-2.0 */
/* A cut in pieces under construction: shared by pieces.c, which places pieces and lists their
 * tensors, joins.c, which routes tensors between them, and member_meetings.c, which lists what the
 * members of tensor groups make together. The stages of a *base* cut, of one graph, are the plan's,
 * or the places of these. */
#ifndef OPI_CUT_PIECES_H
#define OPI_CUT_PIECES_H

#include "partition/program/model.h"

/* One graph of all pieces (a token slice, a member), for the rows of the first variant. The graphs
 * for other rows have the same cells and routes. */
typedef struct opi_composed_graph {
  const opi_cut *base;
  const opi_graph *graph;
  const opi_variant_slice *other; /* a variant with other rows */
  const opi_piece_axes *axes;     /* NULL: no rows are cut */
} opi_composed_graph;

typedef struct opi_composing {
  const opi_decision *plan;
  const opi_cut_model *model;
  const opi_piece *pieces;    /* [cut->n_stages] of the class */
  opi_composed_graph *graphs; /* [opi_model_graphs] */
  int64_t rows;               /* of the first variant */
  opi_cut *cut;
  opi_arena scratch;
  uint32_t **cell_of;    /* [cut->n_stages][cells of the base stage] index in the cut; OPIPE_NONE */
  uint32_t *last_into;   /* [cut->n_stages] the last route into a piece so far; OPIPE_NONE */
  uint32_t *before_into; /* [cut->n_routes] the one before it into the same piece */
  uint32_t n_pieces;     /* of a stage of the base */
  uint32_t room_routes, room_before, room_meetings;
  opipe_error *err;
} opi_composing;

static inline const opi_composed_graph *opi_composed_graph_of(const opi_composing *m,
                                                              uint32_t piece) {
  return &m->graphs[m->pieces[piece].graph];
}
/* A piece's cell by its index in the graph's base. */
static inline uint32_t opi_cell_in_piece(const opi_composing *m, uint32_t piece,
                                         uint32_t base_cell) {
  const uint32_t first = opi_composed_graph_of(m, piece)->base->cell_first[piece / m->n_pieces];
  return m->cell_of[piece][base_cell - first];
}

/* joins.c. Errors: UNSUPPORTED, the tensor that cannot be cut, or that no piece passes on. */
opipe_status opi_pieces_join(opi_composing *composing);

/* member_meetings.c: lists the meetings of tensor groups. Errors: INTERNAL, members whose graphs
 * differ. */
opipe_status opi_pieces_meet(opi_composing *composing);

#endif /* OPI_CUT_PIECES_H */
