/* SPDX-License-Identifier: Apache-2.0 */
/* Functions shared by fusions: looking at a bound graph by producers and consumers, and replacing
 * an old node by a new one.
 *
 * A fusion looks at one node at a time. When it recognises a group whose last value is V, it emits
 * canonical nodes through the builder and lets the new node produce V itself (name, flags and
 * readers stay); the old nodes die afterwards. A value inside a group must have no reader outside,
 * and must not be a graph output or a barrier (opi_f_free). Groups never join nodes with different
 * stage annotations.
 */
#ifndef OPI_FUSE_H
#define OPI_FUSE_H

#include "loader/ops/kit.h"
#include "loader/passes/passes.h"

/* A value made once and used by several groups (a halved cosine table, a joined mask). */
typedef struct opi_fuse_memo {
  uint32_t key[3];
  uint32_t value;
  double number; /* for masks: value of a dropped score */
} opi_fuse_memo;

typedef struct opi_fuse {
  opi_builder *b;
  opi_uses uses;     /* when the pass began */
  uint32_t n_values; /* when the pass began */
  uint32_t n_fused;
  int32_t stage; /* of the current node */
  opi_fuse_memo *memos;
  uint32_t n_memos, room_memos;
  const uint8_t *mask_bits; /* of the known mask examined last, by fuse_mask.c; NULL: none */
  uint32_t mask_value;
  uint32_t mask_flags;
} opi_fuse;

typedef opipe_status (*opi_fuse_visit)(opi_fuse *f, uint32_t node, opipe_error *err);

/* The fusions, in execution order. Each is called for every node of the graph. */
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
/* The producer of `v`, if it is `op` (NULL: any) in the current stage, and `v` is not a barrier;
 * else NULL. */
const opi_node *opi_f_made(const opi_fuse *f, uint32_t v, const char *op);
/* Number of uses of `v` in the graph; a node that reads it twice counts twice. */
uint32_t opi_f_uses(const opi_fuse *f, uint32_t v);
/* The only node that reads `v` (perhaps twice), if it is `op` (NULL: any) and nothing else needs
 * `v`; else OPIPE_NONE. */
uint32_t opi_f_next(const opi_fuse *f, uint32_t v, const char *op);
/* True if `v` may be removed along with `n` of its uses. */
bool opi_f_free(const opi_fuse *f, uint32_t v, uint32_t n);
/* True if `v` is known and a single number. */
bool opi_f_number(const opi_fuse *f, uint32_t v, double *out);
/* |a - b| is within the precision of the constant's type. */
bool opi_f_near(uint32_t dtype, double a, double b);
bool opi_f_same_shape(const opi_fuse *f, uint32_t a, uint32_t b);
/* Skips Casts between floating-point types, upwards. */
uint32_t opi_f_uncast(const opi_fuse *f, uint32_t v);
/* The other operand of a node with two inputs. */
static inline uint32_t opi_f_other(const opi_node *node, uint32_t i) {
  return node->in[1 - i];
}
/* True if the permutation swaps exactly the last two dimensions. */
bool opi_f_swaps_last(const opi_node *transpose);

/* Makes the producer of `fresh` produce `old` from now on. Checks that shapes and types are equal.
 */
opipe_status opi_f_replace(opi_fuse *f, uint32_t old, uint32_t fresh, uint32_t pattern,
                           opipe_error *err);
/* Redirects every reader of `old` to `v`. `old` must have existed when the pass began, and must not
 * be a graph output or a barrier. */
void opi_f_forward(opi_fuse *f, uint32_t old, uint32_t v);
/* Records the pattern on the node that produces `v`. */
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
