/* SPDX-License-Identifier: Apache-2.0 */
/* What the fusions share: looking at a bound graph by producers and consumers, and putting a new
 * node in an old one's place.
 *
 * A fusion looks at one node at a time. When it recognises a group whose last value is V, it emits
 * canonical nodes through the builder and lets the new node produce V itself (name, flags and
 * readers stay); the old nodes die afterwards. A value inside a group must have no reader outside,
 * be no graph output and no barrier (opi_f_free); groups never join nodes of different stage
 * annotations.
 */
#ifndef OPI_FUSE_H
#define OPI_FUSE_H

#include "loader/ops/kit.h"
#include "loader/passes/passes.h"

/* A value made once and used by several groups (a halved cosine table, a joined mask). */
typedef struct opi_fuse_memo {
  uint32_t key[3];
  uint32_t value;
  double number; /* of masks: what a dropped score becomes */
} opi_fuse_memo;

typedef struct opi_fuse {
  opi_builder *b;
  opi_uses uses;     /* as the pass began */
  uint32_t n_values; /* as the pass began */
  uint32_t n_fused;
  int32_t stage; /* of the node being looked at */
  opi_fuse_memo *memos;
  uint32_t n_memos, room_memos;
  const uint8_t *mask_bits; /* of the known mask looked at last, by fuse_mask.c; NULL: none */
  uint32_t mask_value;
  uint32_t mask_flags;
} opi_fuse;

typedef opipe_status (*opi_fuse_visit)(opi_fuse *f, uint32_t node, opipe_error *err);

/* The fusions, in the order in which they run. Each is called for every node of the graph. */
opipe_status opi_fuse_tidy(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_activation(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_norm(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_rotary(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_attention(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_repeats(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_flat_attention(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_unpack(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_sink(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_noise(opi_fuse *f, uint32_t node, opipe_error *err); /* not a fusion */
opipe_status opi_fuse_integer(opi_fuse *f, uint32_t node, opipe_error *err);
opipe_status opi_fuse_matmul(opi_fuse *f, uint32_t node, opipe_error *err);

static inline opi_value *opi_f_value(const opi_fuse *f, uint32_t v) {
  return &f->b->graph->values[v];
}
static inline opi_node *opi_f_node(const opi_fuse *f, uint32_t n) {
  return &f->b->graph->nodes[n];
}
static inline bool opi_f_is(const opi_node *node, const char *op) {
  return node->domain[0] == '\0' && strcmp(node->op, op) == 0;
}
/* The node that makes `v`, when it is `op` (any when NULL), of the stage being looked at, and `v`
 * is no barrier; NULL otherwise. */
const opi_node *opi_f_made(const opi_fuse *f, uint32_t v, const char *op);
/* Readers of `v` in the graph (entries, a node that reads it twice counts twice). */
uint32_t opi_f_uses(const opi_fuse *f, uint32_t v);
/* The only node that reads `v` (perhaps twice), when it is `op` (any when NULL) and nothing else
 * needs `v`; OPIPE_NONE otherwise. */
uint32_t opi_f_next(const opi_fuse *f, uint32_t v, const char *op);
/* May `v` vanish when `n` of its uses do? */
bool opi_f_free(const opi_fuse *f, uint32_t v, uint32_t n);
/* `v` is known and one number. */
bool opi_f_number(const opi_fuse *f, uint32_t v, double *out);
/* |a - b| within what the constant's type can tell. */
bool opi_f_near(uint32_t dtype, double a, double b);
bool opi_f_same_shape(const opi_fuse *f, uint32_t a, uint32_t b);
/* Through Casts between floating-point types, upwards. */
uint32_t opi_f_uncast(const opi_fuse *f, uint32_t v);
/* The other operand of a node of two inputs. */
static inline uint32_t opi_f_other(const opi_node *node, uint32_t i) {
  return node->in[1 - i];
}
/* Are the permutation's last two entries swapped and the rest in place? */
bool opi_f_swaps_last(const opi_node *transpose);

/* Lets what made `fresh` produce `old` from now on. Shapes and types must be equal: checked. */
opipe_status opi_f_replace(opi_fuse *f, uint32_t old, uint32_t fresh, uint32_t pattern,
                           opipe_error *err);
/* Lets every reader of `old` read `v` instead; `old` must be made as the pass began, and be no
 * graph output and no barrier. */
void opi_f_forward(opi_fuse *f, uint32_t old, uint32_t v);
/* Notes the pattern on the node that makes `v`. */
void opi_f_mark(const opi_fuse *f, uint32_t v, uint32_t pattern);
/* Memo of a made value; OPIPE_NONE: not made yet. */
uint32_t opi_f_recall(const opi_fuse *f, uint32_t kind, uint32_t a, uint32_t b);
opipe_status opi_f_remember(opi_fuse *f, uint32_t kind, uint32_t a, uint32_t b, uint32_t value,
                            opipe_error *err);
enum {
  OPI_MEMO_HALF = 1,
  OPI_MEMO_EVEN,
  OPI_MEMO_MASK,
  OPI_MEMO_SUM,
  OPI_MEMO_KEEP,
  OPI_MEMO_SCALED,
  OPI_MEMO_TURNED
};

#endif /* OPI_FUSE_H */
