/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: what a graph becomes.
 *
 *   graph -> steps (ops/: a rule per operator emits launches and products; views emit nothing)
 *         -> storages (arrange.c: views share, element-wise results overwrite, the rest gets an
 *            offset in the arena by lifetime)
 *         -> bindings (bind.c: every step has its addresses) -> run.c
 *
 * A step is a template: an argument block without addresses, and patches that say which value's
 * address goes where. Bound, it is launched as it is in every run; what changes from run to run
 * goes through the run's block, in the arena, written in the queue's order.
 *
 *   arena slot   [ run block | constants | values by lifetime | kept | workspace ]
 *
 * Invariant: a program is immutable after compile.
 */
#ifndef OPIPE_BACKEND_CUDA_PROGRAM_H_
#define OPIPE_BACKEND_CUDA_PROGRAM_H_

#include "cuda.h"

/* Targets of a patch beside values of the graph: where bad data is reported, the step's scratch,
 * the run's counters. */
#define CUDA_AT_STATUS 0xfffffff0u
#define CUDA_AT_WORKSPACE 0xfffffff1u
#define CUDA_AT_COUNTERS 0xfffffff2u
#define CUDA_AT_KEPT 0xfffffff3u /* made by a step for later ones */

/* The eight bytes at `offset` of a step's arguments become an address. */
typedef struct cuda_patch {
  struct cuda_patch *next;
  uint32_t value; /* of the graph, or CUDA_AT_* */
  uint32_t offset;
  int64_t bytes; /* added */
} cuda_patch;

/* Functions applied to the sums of a product before they are rounded. */
enum {
  CUDA_THROUGH_NOTHING = 0,
  CUDA_THROUGH_GELU, /* by tanh */
  CUDA_THROUGH_DGELU /* times GELU's derivative of aux */
};

/* Sums over k that a product makes along, and writes where bias points: fp32, not added to it. */
enum {
  CUDA_SUMS_NOTHING = 0,
  CUDA_SUMS_A, /* [m], of op(A)'s rows */
  CUDA_SUMS_B  /* [n], of op(B)'s columns */
};

/* A product D = op(A) op(B) (+ C) (+ bias), as cublasLt sees it: column-major. See product.c. C and
 * aux lie as D does, each at an address of its own. */
typedef struct cuda_product {
  int64_t m, n, k; /* D is [m, n] */
  int64_t batch;
  int64_t a_distance, b_distance, d_distance; /* leading dimensions */
  int64_t a_stride, b_stride, d_stride;       /* between matrices of the batch, in elements */
  uint64_t a_offset, b_offset, d_offset;      /* of the first from its value's address, in bytes */
  uint64_t bias_offset;
  uint64_t workspace_at; /* where the library's begins, behind our scratch */
  double alpha, beta;
  uint32_t dtype, d_dtype; /* OPIPE_*, of A and B; of D */
  uint32_t trans_a, trans_b;
  uint32_t has_bias; /* [m], added to every column */
  uint32_t through;  /* CUDA_THROUGH_* */
  uint32_t sums;     /* CUDA_SUMS_*; without bias */
  bool has_aux;      /* GELU: what it is of is written too; DGELU: always, read */
  bool is_given;     /* the choice came from kernels_use */
  cuda_lt_choice choice;
} cuda_product;

/* Attention by cuDNN: a graph that it has compiled. See cudnn.h. */
typedef struct cuda_dnn_plan cuda_dnn_plan;
typedef struct cuda_bound_plan cuda_bound_plan;

/* The tensors of a plan, by their place in cuda_dnn_args. */
enum {
  CUDA_DNN_AT_Q = 0,
  CUDA_DNN_AT_K,
  CUDA_DNN_AT_V,
  CUDA_DNN_AT_O,     /* the result of attention */
  CUDA_DNN_AT_STATS, /* float [batch, heads, queries]: logarithms of the softmax's sums */
  CUDA_DNN_AT_DO,    /* its gradient, as those of Q, K and V below */
  CUDA_DNN_AT_SUMS,  /* float [batch, heads, queries]: scratch */
  CUDA_DNN_AT_DQ,
  CUDA_DNN_AT_DK,
  CUDA_DNN_AT_DV,
  CUDA_DNN_AT_ACC,  /* float [batch, heads, queries, depth]: scratch of an unsteady plan */
  CUDA_DNN_AT_MASK, /* numbers that are added to scores */
  CUDA_DNN_TENSORS
};
/* Arguments of a plan's step: NULL where it has no such tensor. */
typedef struct cuda_dnn_args {
  void *at[CUDA_DNN_TENSORS];
  void *workspace;
} cuda_dnn_args;

/* Arguments of a product's step. */
typedef struct cuda_product_args {
  const void *a, *b, *bias;
  const void *c; /* NULL: D */
  void *aux, *d;
} cuda_product_args;

enum {
  CUDA_STEP_LAUNCH = 0,
  CUDA_STEP_PRODUCT = 1,
  CUDA_STEP_COPY = 2,
  /* of a section that the CPU runs (fallback.c) */
  CUDA_STEP_FETCH = 3, /* from the device to the section's memory */
  CUDA_STEP_CALL = 4,  /* the section's program */
  CUDA_STEP_STORE = 5, /* and back */
  CUDA_STEP_PLAN = 6   /* of cuDNN */
};

/* Arguments of a copy on the device. */
typedef struct cuda_copy_args {
  CUdeviceptr to, from;
  uint64_t n_bytes;
} cuda_copy_args;

/* Arguments of a section's steps. */
typedef struct cuda_host_args {
  CUdeviceptr device;
  uint64_t offset; /* in the section's memory */
  uint64_t n_bytes;
} cuda_host_args;

/* Nodes that the device lacks, neighbours in the order, as a program of the CPU backend. */
typedef struct cuda_section cuda_section;

typedef struct cuda_step {
  struct cuda_step *next;
  const opipe_node *node;
  cuda_patch *patches;
  cuda_product *product;     /* PRODUCT */
  cuda_section *section;     /* FETCH, CALL, STORE */
  const cuda_dnn_plan *plan; /* PLAN; the device's */
  cuda_launch launch;        /* LAUNCH; block_args: of every kind */
  uint64_t workspace_bytes;
  uint32_t kind;
  uint32_t index;      /* place in the order */
  uint32_t overwrites; /* value whose bytes the step may write its result over; OPIPE_NONE */
  uint32_t result;     /* the value that it may put there */
} cuda_step;

enum {
  CUDA_PLACE_NONE = 0,
  CUDA_PLACE_ARENA,
  CUDA_PLACE_CONSTANT,
  CUDA_PLACE_BOUNDARY,
  CUDA_PLACE_PARAM,
  CUDA_PLACE_SCALAR,
  CUDA_PLACE_GRADIENT
};

/* Where the bytes of one or several values lie. */
typedef struct cuda_storage {
  uint32_t kind;        /* CUDA_PLACE_* */
  uint32_t slot;        /* BOUNDARY, PARAM, SCALAR, GRADIENT */
  uint32_t key;         /* PARAM: the copy, CUDA_LAYOUT_* */
  uint32_t first, last; /* steps that touch it */
  uint64_t n_bytes;
  uint64_t offset; /* ARENA, CONSTANT: in the arena slot */
} cuda_storage;

typedef struct cuda_layout {
  uint32_t slot;
  uint32_t key;   /* CUDA_LAYOUT_* */
  uint32_t value; /* stands for the parameter */
} cuda_layout;

/* Copies of a parameter. A program reads the first, or one of the last; where it is to be trained
 * (an owned set), the master of half types is the second. */
enum {
  CUDA_LAYOUT_OWN = 1, /* the source's type */
  CUDA_LAYOUT_F32 = 2,
  CUDA_LAYOUT_BF16 = 3, /* of a parameter of fp32, rounded (fuse_rounded.c) */
  CUDA_LAYOUT_F16 = 4,
  CUDA_LAYOUTS = 4
};

enum { CUDA_TAIL_NODES = 6 };

/* Work that a product does along: nodes behind it that have no steps (fuse_product.c); or, for a
 * norm's gradient, the Add behind it (fuse_norms.c). */
typedef struct cuda_tail {
  uint32_t row;     /* value added to every row; OPIPE_NONE */
  uint32_t addend;  /* value of the result's shape that is added; OPIPE_NONE */
  uint32_t aux;     /* value that CUDA_THROUGH_* writes or reads; OPIPE_NONE */
  uint32_t through; /* CUDA_THROUGH_* */
  uint32_t n;
  uint32_t nodes[CUDA_TAIL_NODES]; /* in their order: the last one's results are written */
  bool splits;                     /* it is a Split: the product makes its parts one by one */
} cuda_tail;

/* A bias' gradient, which the product of the weight's makes along (fuse_sums.c): node `node` sums
 * the columns of the product's input `input`. */
typedef struct cuda_beside {
  uint32_t node, input;
} cuda_beside;

/* A value that lies in another one, as columns of its rows (fuse_parts.c). */
typedef struct cuda_part {
  uint32_t whole; /* OPIPE_NONE: it lies by itself */
  int64_t first;  /* column; in elements */
  int64_t row;    /* of the whole; in elements */
} cuda_part;

/* Findings of the passes over the graph (the cuda_match functions below), before steps are made. */
typedef struct cuda_matches {
  uint32_t
      *adds_to; /* [n_values]: the gradient that its maker adds it to; OPIPE_NONE; NULL: none */
  bool *taken;  /* [n_nodes]: another node's steps do its work; NULL: none is */
  cuda_tail **tails;     /* [n_nodes], of products; NULL: none */
  uint32_t *hosts;       /* [n_nodes]: the product that ends there; OPIPE_NONE; NULL: none does */
  uint32_t *fronts;      /* [n_nodes]: the node in front that its steps do along; OPIPE_NONE; NULL:
                            none does */
  uint32_t *scales;      /* [n_nodes], of norms' gradients: that of the scale, whose steps are
                            theirs; OPIPE_NONE; NULL: none are */
  uint32_t *columns;     /* [n_nodes], of norms' gradients: sums of the columns of what they make;
                            OPIPE_NONE; NULL: none are */
  cuda_beside **besides; /* [n_nodes], of products; NULL: none does */
  cuda_part *parts;      /* [n_values]; NULL: all lie by themselves */
  uint32_t *joins;       /* [n_values]: the Concat whose two pieces attention reads instead;
                            OPIPE_NONE; NULL: of none */
  int64_t *pitches;      /* [n_values]: elements between rows that are longer than their own; 0:
                            none are; NULL: of no value */
  uint32_t *narrow;      /* [n_values]: what stands for it, before it was widened or when it is
                            narrowed again; OPIPE_NONE; NULL: nothing does */
  uint32_t *rounded;     /* [n_values]: the parameter whose rounded copy it is; OPIPE_NONE; NULL:
                            none is */
  uint32_t *reader;      /* [n_values]: the node that reads it, if one alone does; of fuse.c */
} cuda_matches;

struct opipe_program {
  opipe_device *device;
  const opipe_graph *graph;
  cuda_pool pool;
  uint32_t flags; /* OPIPE_COMPILE_* */
  cuda_step *steps, **last_step;
  uint32_t n_steps, n_kernels;
  cuda_matches matched;
  uint32_t *alias;        /* [n_values]: the value whose storage it shares; itself: none */
  cuda_storage *storages; /* [n_values], of values that are their own alias */
  cuda_layout *layouts;
  uint32_t n_layouts;
  cuda_layout *gradients;
  uint32_t n_gradients;
  bool has_block;                 /* runs write the run's block: scalars, reports or counters */
  bool has_counters;              /* it has counters */
  bool has_reports;               /* a step may report bad data */
  void *constants;                /* pinned [constant_bytes]; made by the first binding */
  struct cuda_sections *sections; /* nodes that the CPU runs (fallback.c); NULL: none */
  uint32_t n_fallback;            /* such nodes */
  uint64_t host_bytes;            /* that they keep */
  struct cuda_kept_mask *masks;   /* that steps so far prepared, the newest first */
  uint64_t block_bytes, constant_bytes, temp_bytes, kept_bytes, workspace_bytes, arena_bytes;
};

/* ops/attention_mask.c: steps from `n_steps` on are no longer there. */
void cuda_masks_forget(opipe_program *program, uint32_t n_steps);

static inline uint32_t cuda_root(const opipe_program *program, uint32_t value) {
  while (program->alias[value] != value)
    value = program->alias[value];
  return value;
}

/* check.c: everything about the graph that rules and bindings rely on. */
opipe_status cuda_check_graph(const opipe_graph *graph, cuda_pool *pool, opipe_error *err);
/* fuse.c: what is added straight into accumulators, and all below: adds_to, taken. */
opipe_status cuda_match(opipe_program *program, opipe_error *err);
/* fuse_loss.c: losses that read scores of a half type: narrow, taken. */
opipe_status cuda_match_losses(opipe_program *program, opipe_error *err);
/* The value that a loss' rule reads or writes in place of a value of its node: itself, or that of a
 * half type. */
uint32_t cuda_narrow(const opipe_program *program, uint32_t value);
/* A node writes its results after all, and the nodes behind it do their own work. */
void cuda_unmatch(opipe_program *program, const opipe_node *node);
/* fuse_rounded.c: rounded, taken. */
opipe_status cuda_match_rounded(opipe_program *program, opipe_error *err);
/* fuse_past.c: joins, taken. */
opipe_status cuda_match_past(opipe_program *program, opipe_error *err);
/* The node whose inputs are read instead of the value, first the earlier rows; NULL: none. */
const opipe_node *cuda_join_of(const opipe_program *program, uint32_t value);
/* fuse_parts.c: parts, of Split and Concat along the last axis. */
opipe_status cuda_match_parts(opipe_program *program, opipe_error *err);
/* fuse_pitch.c: pitches. After cuda_match_parts and cuda_match_losses. */
opipe_status cuda_match_pitches(opipe_program *program, opipe_error *err);
/* Elements from one row to the next; of one axis: all. */
int64_t cuda_row_distance(const opipe_program *program, uint32_t value);
/* Bytes where it lies. */
uint64_t cuda_stored_bytes(const opipe_program *program, uint32_t value);
/* Elements between rows of n where these begin with lines of memory. */
int64_t cuda_pitch(uint32_t dtype, int64_t n);
/* Are rows at this distance no whole vectors, as the library's fast kernels want them? */
bool cuda_is_odd_row(uint32_t dtype, int64_t distance);
/* Has the library such kernels for the type? */
bool cuda_takes_vectors(const opipe_device *device, uint32_t dtype);
/* Is a product large enough for launches beside it? By the device's option. */
bool cuda_is_large_product(const opipe_device *device, int64_t m, int64_t n, int64_t k);
/* Do operations on an element, a pair for each of `other`, take longer than bytes that are read and
 * written for it? */
bool cuda_repays_moves(int64_t other, int64_t moved_bytes);
/* fuse_product.c: tails, hosts. */
opipe_status cuda_match_tails(opipe_program *program, opipe_error *err);
/* NULL: it does nothing along. */
const cuda_tail *cuda_tail_of(const opipe_program *program, const opipe_node *node);
/* fuse_sums.c: besides. After cuda_match_tails. */
opipe_status cuda_match_sums(opipe_program *program, opipe_error *err);
/* NULL: none. */
const cuda_beside *cuda_beside_of(const opipe_program *program, const opipe_node *node);
/* fuse_norms.c: scales, columns; tails of norms' gradients. After cuda_match_sums. */
opipe_status cuda_match_norms(opipe_program *program, opipe_error *err);
/* NULL: none. */
const opipe_node *cuda_scale_of(const opipe_program *program, const opipe_node *node);
const opipe_node *cuda_columns_of(const opipe_program *program, const opipe_node *node);
/* fuse_rows.c: fronts. After cuda_match_norms. */
opipe_status cuda_match_rows(opipe_program *program, opipe_error *err);
/* NULL: none. */
const opipe_node *cuda_front_of(const opipe_program *program, const opipe_node *node);
/* Does anything but the node read what its front makes? It is then written. */
bool cuda_keeps_front(const opipe_program *program, const opipe_node *node);
/* compile.c: what the node's rule answers; its steps are thrown away. probe: of the same graph. */
opipe_status cuda_probe(opipe_program *probe, uint32_t node, opipe_error *err);
/* Does the node's rule take what was noted for it? Errors are those of memory and the device. */
opipe_status cuda_probe_takes(opipe_program *probe, uint32_t node, bool *out_taken,
                              opipe_error *err);
/* A program to ask so: its pool is the caller's to release. */
opipe_status cuda_probe_make(const opipe_program *program, opipe_program *out_probe,
                             opipe_error *err);
/* fallback.c: see there. */
bool cuda_may_fall_back(const opipe_device *device, uint32_t compile_flags);
/* Answers for the nodes that the device lacks: supported where the inner device does, else with
 * both reasons. */
opipe_status cuda_support_inner(opipe_device *device, const opipe_graph *graph, const bool *lacks,
                                cuda_pool *pool, opipe_support *out_support, opipe_error *err);
/* Appends the steps of a section of n nodes, from `first` on. Within an entry. */
opipe_status cuda_section_emit(opipe_program *program, uint32_t first, uint32_t n,
                               opipe_error *err);
/* Memory and bindings of the sections, unless they have them. pool: for scratch. Within an entry.
 */
opipe_status cuda_sections_prepare(const opipe_program *program, cuda_pool *pool, opipe_error *err);
void cuda_sections_free(opipe_program *program);
/* Brackets the steps of a run of a program with sections. */
opipe_status cuda_sections_enter(const opipe_program *program, CUstream stream, opipe_error *err);
opipe_status cuda_sections_leave(const opipe_program *program, CUstream stream, opipe_status status,
                                 opipe_error *err);
opipe_status cuda_section_step(const opipe_device *device, const cuda_step *step,
                               const unsigned char *args, CUstream stream, opipe_error *err);
/* arrange.c: storages, offsets, sizes, layouts. */
opipe_status cuda_arrange(opipe_program *program, opipe_error *err);

/* compile.c: program_params and its like, of a list of layouts. */
opipe_status cuda_put_layouts(const opipe_program *program, const cuda_layout *layouts, uint32_t n,
                              const char *what, opipe_param_layout *out_layouts, uint32_t *io_count,
                              opipe_error *err);

/* product.c */
/* Chooses the algorithm: product->choice. UNSUPPORTED where the library has none. */
opipe_status cuda_product_choose(opipe_device *device, cuda_product *product, opipe_error *err);
typedef struct cuda_bound_product cuda_bound_product;
opipe_status cuda_product_bind(opipe_device *device, const cuda_product *product,
                               const cuda_product_args *args, cuda_bound_product **out,
                               opipe_error *err);
void cuda_product_free(opipe_device *device, cuda_bound_product *bound);
opipe_status cuda_product_run(opipe_device *device, const cuda_bound_product *bound,
                              CUdeviceptr workspace, uint64_t workspace_bytes, CUstream stream,
                              opipe_error *err);

/* cudnn.c */
opipe_status cuda_dnn_bind(opipe_device *device, const cuda_dnn_plan *plan,
                           const unsigned char *args, cuda_bound_plan **out, opipe_error *err);
void cuda_dnn_unbind(opipe_device *device, cuda_bound_plan *bound);
opipe_status cuda_dnn_run(opipe_device *device, const cuda_bound_plan *bound, CUstream stream,
                          opipe_error *err);

/* params.c: address of a copy; 0: the set does not have it. */
CUdeviceptr cuda_params_address(const opipe_params *params, uint32_t slot, uint32_t key);
uint32_t cuda_params_count(const opipe_params *params);
bool cuda_params_is_gradients(const opipe_params *params);

#endif /* OPIPE_BACKEND_CUDA_PROGRAM_H_ */
