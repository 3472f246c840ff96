/* SPDX-License-Identifier: Apache-2.0 */
/* State of dividing a graph. labels.c has labels and what unites them; rules.c, heads.c and
 * back.c how operators pass them; walk.c the walk; settle.c who gets what; writer.h has
 * those that write a member's graph. Private to loader/shard.
 */
#ifndef OPI_SHARDER_H
#define OPI_SHARDER_H

#include "loader/ops/common.h"
#include "loader/ops/group.h"
#include "loader/shard/shard.h"

/* Labels of a value: an atom for every combination of the entries of `dims`, row-major; entries
 * with the same atom (opi_sh_find) go to the same member. */
typedef struct opi_labels {
  uint32_t n_dims;
  uint8_t dims[OPIPE_MAX_RANK]; /* rising */
  uint64_t n;
  uint32_t *atoms; /* [n] */
} opi_labels;

/* How a node reads an input. */
enum {
  OPI_READ_WHOLE = 0, /* or not at all */
  OPI_READ_SPREAD,    /* whole, beside something divided: its gradient is a partial sum */
  OPI_READ_OWN,       /* in its own form: divided or partial */
  OPI_READ_CUT,       /* a whole value, cut by `labels` for this reader */
  OPI_READ_ROWS       /* the member's rows: of a value in rows, or cut from a whole one */
};
typedef struct opi_read {
  uint32_t kind;
  opi_labels *labels;
} opi_read;

/* How all readers read a value without a producer. */
enum {
  OPI_LEAF_UNREAD = 0,
  OPI_LEAF_WHOLE = 1,
  OPI_LEAF_SPREAD = 2, /* a parameter whose gradients in the members are partial sums */
  OPI_LEAF_SEVERAL = 3 /* in several ways: it stays whole, and is spread or cut at each reader */
};

/* A node's form in the members' graphs. */
enum {
  OPI_MODE_WHOLE = 0,
  OPI_MODE_CUT,  /* divided inputs, divided outputs */
  OPI_MODE_SUM,  /* divided inputs, partial output */
  OPI_MODE_ROWS, /* picks rows of a divided table: partial output */
  OPI_MODE_PASS, /* partial input and output */
  OPI_MODE_ADD,  /* an addition to a partial sum of what is whole: kept aside, added behind the
                    sum */
  OPI_MODE_LOSS, /* cross entropy over divided classes */
  OPI_MODE_NORM  /* normalises over a divided axis */
};
typedef struct opi_shard_decision {
  uint32_t mode;
  opi_read *reads; /* [n_in] */
} opi_shard_decision;

/* A parameter whose columns or rows got atoms of their own. */
typedef struct opi_opening {
  uint32_t node;
  uint32_t first, n; /* atoms */
  uint32_t parent;   /* of the region, by opening */
  bool failed;       /* of the root: the region */
  bool heads;        /* of the root: it has an attention */
  const char *why;
} opi_opening;

typedef struct opi_follow {  /* keys and values that members hold for their queries */
  uint32_t leader, follower; /* atoms */
} opi_follow;

/* Who has the entries of a component: members lo..hi. */
typedef struct opi_shard_holder {
  uint32_t lo, hi;
} opi_shard_holder;

/* rows.c: what is in rows, and how it is read. */
typedef struct opi_sharder_rows {
  uint8_t *dims;      /* [n_values] of values in rows: dimensions that are flattened; else 0 */
  bool *nodes;        /* [n_nodes] computed by rows */
  bool *gathered;     /* [n_values] read whole where gradients are no partial sums */
  bool *early;        /* [n_values] computed whole from values that depend on no sum, or moved */
  const char **mixes; /* [n_nodes] why it needs all rows of what it reads */
} opi_sharder_rows;

typedef struct opi_sharder {
  const opi_bound *bound;
  const opi_graph *g;
  const opi_shard_wish *wish;
  uint32_t width;
  opi_arena keep;    /* for all attempts */
  opi_arena scratch; /* of one attempt */
  bool failed;       /* out of memory */

  /* facts about the graph */
  bool *weight;   /* [n_values] made from parameters and constants alone */
  bool *main;     /* [n_values] behind a product or table that could be divided */
  bool *trains;   /* [n_values] depends on a float parameter */
  uint32_t *uses; /* [n_values] readers and graph outputs */

  /* of all attempts */
  const char **closed; /* [n_nodes] why it is not opened; NULL: it may be */
  bool *fine;          /* [n_nodes] attentions whose queries are divided within groups */
  bool *plain;         /* [n_nodes] norms that must not be divided */

  /* of one attempt */
  uint32_t *parent; /* [n_atoms] */
  uint32_t n_atoms, room_atoms;
  opi_opening *openings;
  uint32_t n_openings, room_openings;
  opi_follow *follows;
  uint32_t n_follows, room_follows;
  opi_labels **labels;           /* [n_values] NULL: not divided */
  bool *partial;                 /* [n_values] */
  bool *aside;                   /* [n_values] partial, and something is kept aside to be added */
  opi_shard_decision *decisions; /* [n_nodes] */
  opipe_error why;               /* the last refusal of a rule */

  opi_sharder_rows rows; /* without OPI_SHARD_SEQUENCE all zero */

  /* settled */
  opi_shard_holder *holders; /* [n_atoms] of roots */
  bool *needed;              /* [n_values] */
  uint64_t *leaf;            /* [n_values] OPI_LEAF_*, or the hash of its only cut */
  opi_labels **cut;          /* [n_values] labels of that cut */
} opi_sharder;

/* ---- labels.c ---- */
uint32_t opi_sh_fresh(opi_sharder *s, uint32_t n); /* first of n new atoms */
uint32_t opi_sh_find(opi_sharder *s, uint32_t atom);
void opi_sh_unite(opi_sharder *s, uint32_t a, uint32_t b);
uint32_t opi_sh_opening(opi_sharder *s, uint32_t atom); /* root of the atom's region */
opi_labels *opi_sh_labels(opi_sharder *s, const int64_t *shape, const uint8_t *dims,
                          uint32_t n_dims);
/* Drops dimensions along which all atoms are united; no dimension left: one unit. */
void opi_sh_reduce(opi_sharder *s, opi_labels *l, const int64_t *shape);
/* Unites all atoms along dimension d, which is dropped. */
void opi_sh_mix(opi_sharder *s, opi_labels *l, const int64_t *shape, uint32_t d);
bool opi_sh_has(const opi_labels *l, uint32_t d);
opi_labels *opi_sh_copy(opi_sharder *s, const opi_labels *l);
/* Unites entry by entry; the same shape. */
void opi_sh_equate(opi_sharder *s, const opi_labels *a, const opi_labels *b, const int64_t *shape);
/* The labels in another shape of the same elements; NULL: shapes do not fit, or out of memory. */
opi_labels *opi_sh_reshape(opi_sharder *s, const opi_labels *l, const opi_value *from,
                           const opi_value *to);
/* Entries list[0 .. n) along `axis`. */
opi_labels *opi_sh_select(opi_sharder *s, const opi_labels *l, const opi_value *from, uint32_t axis,
                          const int64_t *list, uint64_t n);
/* ---- rules.c: labels of outputs from those of inputs ---- */
/* out [n_out], zeroed; reads of cut inputs are set. UNSUPPORTED: s->why says why. */
opipe_status opi_sh_rule(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out);
opipe_status opi_sh_refuse(opi_sharder *s, const opi_node *node, const char *fmt, ...)
    OPIPE_PRINTF(3, 4);
/* Can value v be cut by labels l at a reader? */
bool opi_sh_demand(opi_sharder *s, uint32_t v, const opi_labels *l);
/* ---- heads.c ---- */
opipe_status opi_sh_attention(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out);
opipe_status opi_sh_row_attention(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out);
opipe_status opi_sh_rotary(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out);
/* ---- back.c: labels of inputs from those of output 0 ---- */
/* in [n_in]: NULL where the input stays whole. False: unknown. */
bool opi_sh_back(opi_sharder *s, const opi_node *node, const opi_labels *out, opi_labels **in);
/* ---- walk.c ---- */
opipe_status opi_sh_walk(opi_sharder *s, opipe_error *err);
/* Axes of a product's operands: -1 where there is none. */
typedef struct opi_product_axes {
  int32_t m, ka, kb, n;
} opi_product_axes;
opi_product_axes opi_sh_product_axes(const opi_graph *g, const opi_node *node);
bool opi_sh_is_product(const opi_node *node);
/* The entries of known integers of input i; NULL: unknown. */
const int64_t *opi_sh_ints(opi_sharder *s, uint32_t v, uint64_t *out_n);
/* ---- settle.c ---- */
/* *out_again: something was closed, walk once more. */
opipe_status opi_sh_settle(opi_sharder *s, bool *out_again, opipe_error *err);
/* Entries of member r along the only axis of l. NULL: out of memory. */
opi_shard_run *opi_sh_runs(opi_sharder *s, const opi_labels *l, uint32_t r, opi_arena *arena,
                           uint32_t *out_n, int64_t *out_sum, bool *out_shared);
uint64_t opi_sh_cut_hash(opi_sharder *s, const opi_labels *l); /* none of OPI_LEAF_* */
/* Is v, cut by l, computed from parts of its producer's inputs? in [n_in]: NULL where whole. */
bool opi_sh_by_parts(opi_sharder *s, uint32_t v, const opi_labels *l, opi_labels **in);
uint64_t opi_sh_leaf_form(const opi_sharder *s,
                          uint32_t v); /* of a leaf read beside what is divided */
opi_shard_holder opi_sh_holder(opi_sharder *s, const opi_labels *l, int64_t i);
/* Is v made from parameters alone (or `early`), and read only where gradients are partial sums?
 * Then those of what it is made from are, and no node sums v's own. */
bool opi_sh_is_pushed(const opi_sharder *s, uint32_t v);
/* ---- rows.c ---- */
/* Decides what is in rows, once all else is settled and `needed` is known. */
opipe_status opi_sh_rows(opi_sharder *s, opipe_error *err);
/* Rows of the first k dimensions of a shape. */
int64_t opi_sh_count_rows(const int64_t *shape, uint32_t k);
/* Rows of member r: consecutive, the first members one more where they do not divide. */
opi_shard_run opi_sh_row_run(const opi_sharder *s, int64_t rows, uint32_t r);
/* ---- member.c ---- */
/* Writes member r's graph. */
opipe_status opi_sh_write(opi_sharder *s, uint32_t r, opi_shard_member *out, opipe_error *err);

#endif /* OPI_SHARDER_H */
