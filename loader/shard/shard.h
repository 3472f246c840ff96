/* SPDX-License-Identifier: Apache-2.0 */
/* Divides a bound graph among the members of a tensor group: one graph per member, with its parts
 * of the parameters and collective nodes (loader/ops/group.h) between them.
 *
 * Nothing knows a model: operators' rows alone say what may be divided. Products with a parameter
 * give every column a label; labels are followed through the graph, and an operator that mixes
 * entries unites their labels (walk.c). Columns that are still apart in the end are *units*
 * (heads with their keys and values, hidden features, rows of a vocabulary); members get
 * consecutive units, as equally as possible. A product that sums over labelled entries makes a
 * partial sum, which passes through whatever its row allows (opi_op.sums) to a GroupSum.
 *
 * Values are *whole* (the same in all members), *divided* (each member has some entries along one
 * axis), *partial* (the sum over the members is meant), or, in the sequence form, in *rows*.
 */
#ifndef OPI_SHARD_H
#define OPI_SHARD_H

#include "loader/ops/collective.h"
#include "loader/passes/passes.h"

enum {
  OPI_SHARD_TRAIN = 1u, /* GroupSpread where gradients of whole values must be summed */
  /* Parts of parameters that are not one piece of the file: by default dense copies up to 64 KiB,
   * no data above (OPI_VALUE_MISSING). */
  OPI_SHARD_DENSE = 2u, /* dense copies always */
  OPI_SHARD_BARE = 4u,  /* no copies: whoever runs the graph packs them */
  /* The sequence form (Korthikanti et al. 2022): between a partial sum and the next node that needs
   * all rows (samples x tokens), each member has some of the rows. A sum becomes a GroupScatter,
   * and a GroupGather stands where all rows are needed. */
  OPI_SHARD_SEQUENCE = 8u
};

/* An input that a caller feeds with an earlier run's output, each member with its own. */
typedef struct opi_shard_pair {
  uint32_t input, output; /* values of the bound graph; input OPIPE_NONE: it is not in the graph */
} opi_shard_pair;

typedef struct opi_shard_wish {
  uint32_t width;           /* members, at least 1 */
  uint32_t flags;           /* OPI_SHARD_* */
  const char *const *whole; /* [n_whole] outputs that must be whole in every member */
  uint32_t n_whole;
  const uint32_t *stages; /* [n_nodes of the graph] with `scatters` */
  /* [n_stages * n_stages] by from * n_stages + to: whole values go from one stage to the other in
   * the members' parts, along their last axis (sent.c). NULL: none does. Not with
   * OPI_SHARD_SEQUENCE. */
  const bool *scatters;
  uint32_t n_stages;
  const opi_carry *samples; /* [n_values of the graph] where samples lie, with `scatters`: values
                               that have them last stay whole; NULL: not known */
  const opi_shard_pair
      *pairs; /* [n_pairs] a member has the same entries of both: one run, or all */
  uint32_t n_pairs;
  struct opi_choices *choices; /* [width] of each member's graph, begun anew here; NULL: none */
  const opi_evaluator *evaluator;
  const opipe_allocator *allocator;
} opi_shard_wish;

/* Entries [first, first + n) along an axis. */
typedef struct opi_shard_run {
  int64_t first, n;
} opi_shard_run;

enum {
  OPI_PART_SHARED = 1u /* other members have some of its entries, too (keys and values of a group
                          whose queries are divided): their gradients are partial sums */
};

/* A member's part of a parameter, input or output. In the file's tensor, rows of `runs` repeat
 * for every combination of the axes before `axis`: see opi_shard_segments. */
typedef struct opi_shard_part {
  const char *name; /* of the whole value */
  uint32_t whole;   /* value of the bound graph */
  uint32_t value;   /* value of the member's graph */
  int32_t axis;
  uint32_t n_runs;
  opi_shard_run *runs; /* [n_runs] rising */
  uint32_t flags;      /* OPI_PART_* */
  uint32_t reserved;
} opi_shard_part;

/* n pieces of `bytes`, `stride` apart, from `offset` on in the whole tensor. */
typedef struct opi_shard_segment {
  uint64_t offset, bytes, stride, n;
} opi_shard_segment;
/* One segment for each run of a part of `whole`; out [part->n_runs], in the part's order within a
 * row of the axis. */
void opi_shard_segments(const opi_value *whole, const opi_shard_part *part,
                        opi_shard_segment *out_segments);

/* A value of which the member has rows [first, first + n) of `of`: the whole value's dimensions
 * 0 .. axis, flattened. In the member's graph it has n entries along `axis` and 1 before. */
typedef struct opi_shard_rows {
  uint32_t whole; /* value of the bound graph */
  uint32_t value; /* value of the member's graph */
  int32_t axis;
  uint32_t reserved;
  int64_t first, n, of;
} opi_shard_rows;

typedef struct opi_shard_member {
  opi_bound *bound;   /* its graph; aliases as in the whole graph where the value exists */
  uint32_t *node_of;  /* [graph->n_nodes] node of the whole graph that it belongs to */
  uint32_t *value_of; /* [whole graph's n_values] its own form in this graph (part, partial or
                         rows, whole, whichever it is in); OPIPE_NONE: not in it */
  opi_shard_part *params, *inputs, *outputs; /* only divided ones; outputs in file order */
  uint32_t n_params, n_inputs, n_outputs;
  uint32_t *sums; /* [n_sums] values of this graph: whole parameters whose gradients in members are
                     partial sums (K and V norms, scales of heads, whatever is read beside rows);
                     sum them over the group */
  uint32_t n_sums;
  uint32_t
      n_repeated; /* heads of keys and values that are repeated because queries fall unevenly */
  uint32_t n_rows;
  opi_shard_rows *rows; /* [n_rows] values in rows; none without OPI_SHARD_SEQUENCE */
  uint32_t n_sent;
  uint32_t *sent; /* [n_sent] values of this graph: its parts of what goes to other stages */
} opi_shard_member;

/* Why a product or table that could have been divided stays whole, or a node needs all rows. */
typedef struct opi_shard_reason {
  const char *node; /* of the whole graph */
  const char *why;
} opi_shard_reason;

typedef struct opi_shards {
  opi_arena arena;
  opi_shard_member *members; /* [width] */
  uint32_t width;
  uint32_t n_reasons;
  opi_shard_reason *reasons; /* [n_reasons] in graph order */
  uint32_t n_divided;        /* products and tables that are divided */
  uint32_t n_attention;      /* attentions (products of two activations, too) whose heads are */
  uint32_t n_mixed;
  opi_shard_reason *mixed; /* [n_mixed] whole nodes and outputs that rows are gathered for */
} opi_shards;

/* Divides `bound`, which must outlive the result. Width 1 gives a copy. Errors: INVALID, width 0;
 * NOMEM. A graph in which nothing can be divided is no error (n_divided 0): callers refuse it. */
opipe_status opi_shard(const opi_bound *bound, const opi_shard_wish *wish, opi_shards **out_shards,
                       opipe_error *err);
void opi_shards_free(opi_shards *shards); /* accepts NULL */

/* Where an axis of samples or tokens lies in a member's values, from where it lies in the whole
 * graph's (carry, by opi_carry_axis; [whole->n_values]). Values in rows hold it in their rows, of
 * which the member has some: outer and inner count whole rows. out [member's n_values]. */
opipe_status opi_shard_carry(const opi_graph *whole, const opi_shard_member *member,
                             const opi_carry *carry, opi_carry *out, opipe_error *err);
/* Entries of every member along the divided axis of an output (a value of the whole graph), parts
 * [width]; false: it is not divided. *out_consecutive: members have them in order, one run each. */
bool opi_shard_extents(const opi_shards *shards, uint32_t output, int64_t *parts, int32_t *out_axis,
                       bool *out_consecutive);

#endif /* OPI_SHARD_H */
