/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: what a graph becomes.
 *
 *   graph -> steps (fuse.c groups nodes, ops/ chooses a kernel per group)
 *         -> storages (place.c: views share, element-wise results overwrite, the rest gets an
 *            offset in the arena by lifetime)
 *         -> bindings (bind.c: every operand is a pointer) -> run.c
 *
 * Invariants: a program is immutable after compile. Every value of an executed step has a storage;
 * two storages whose lifetimes overlap never overlap in the arena.
 */
#ifndef OPIPE_BACKEND_CPU_PROGRAM_H_
#define OPIPE_BACKEND_CPU_PROGRAM_H_

#include "cpu.h"

/* How a kernel wants a parameter. RAW: the source's own bytes, in place, at any alignment. */
enum {
  CPU_LAYOUT_RAW = 0,
  CPU_LAYOUT_COPY = 1,    /* the same bytes, aligned */
  CPU_LAYOUT_F32 = 2,     /* fp32 from fp16, bf16 or fp32, aligned */
  CPU_LAYOUT_PANEL = 3,   /* panels of B[K,N]: parameter stored [K,N] */
  CPU_LAYOUT_PANEL_T = 4, /* panels of B[K,N]: parameter stored [N,K] */
  CPU_LAYOUT_CONV =
      5, /* panels of a convolution's [C_out, C_in, kernel], of one group, or depthwise */
  CPU_LAYOUT_HALF = 6,   /* PANEL of fp16 or bf16, whose elements stay as they are */
  CPU_LAYOUT_HALF_T = 7, /* the same of PANEL_T */
  CPU_LAYOUT_COUNT = 8,
  CPU_LAYOUT_MASTER = 8, /* that of the parameter's master copy, whichever it is */
  CPU_LAYOUT_CODES = 9   /* codes with their scales and zero points: cpu_step.matrix */
};

/* Panels; of tensors with more than two axes: of each matrix, one behind the other. */
static inline bool cpu_layout_is_panel(uint32_t kind) {
  return kind == CPU_LAYOUT_PANEL || kind == CPU_LAYOUT_PANEL_T || kind == CPU_LAYOUT_HALF ||
         kind == CPU_LAYOUT_HALF_T;
}

/* Panels of a parameter stored [N,K]. */
static inline bool cpu_layout_is_turned(uint32_t kind) {
  return kind == CPU_LAYOUT_PANEL_T || kind == CPU_LAYOUT_HALF_T;
}

typedef struct cpu_matrix cpu_matrix; /* codes.h */

/* A tensor as a kernel sees it. data NULL: absent. */
typedef struct cpu_tensor {
  void *data;
  const int64_t *shape;
  uint64_t n; /* elements */
  uint64_t n_bytes;
  uint32_t dtype;
  uint32_t rank;
  uint32_t layout; /* CPU_LAYOUT_*, of parameters and accumulators */
} cpu_tensor;

typedef struct cpu_call {
  const cpu_exec *exec;
  const opipe_node *node;
  const void *plan; /* made by prepare */
  const cpu_tensor *in;
  const cpu_tensor *out;
  void *workspace;
  uint32_t n_in, n_out;
} cpu_call;

typedef opipe_status (*cpu_kernel)(const cpu_call *call, opipe_error *err);

typedef struct cpu_operand {
  uint32_t value;  /* index in the graph, OPIPE_NONE: absent */
  uint32_t layout; /* CPU_LAYOUT_*, for parameters and gradients */
} cpu_operand;

/* A kernel and its operands. */
typedef struct cpu_step {
  const opipe_node *node; /* the node, or the first of a group: names it in messages */
  cpu_kernel run;         /* NULL: a view, nothing runs */
  const void *plan;
  cpu_operand *in, *out;
  uint32_t n_in, n_out;
  uint64_t workspace_bytes;
  uint32_t inplace;         /* bit i: out[0] may be written over in[i] */
  uint32_t panels;          /* bit i: in[i] may come as PANEL where it is asked for otherwise */
  uint32_t narrow;          /* bit i: in[i] is read in its half type, not widened (widen.c) */
  const cpu_matrix *matrix; /* of in[1], whose value is then the codes; NULL: none */
  bool is_view;             /* out[0] has the bytes of in[0] */
  bool rounds;              /* a product whose rows of in[0] are rounded to 8 bits a block */
} cpu_step;

enum {
  CPU_PLACE_NONE = 0,
  CPU_PLACE_ARENA,
  CPU_PLACE_CONSTANT,
  CPU_PLACE_BOUNDARY,
  CPU_PLACE_PARAM,
  CPU_PLACE_SCALAR,  /* the run's table of scalars */
  CPU_PLACE_GRADIENT /* an accumulator of the bound gradient set */
};

/* Where the bytes of one or several values lie. */
typedef struct cpu_storage {
  uint32_t kind;   /* CPU_PLACE_* */
  uint32_t slot;   /* BOUNDARY, PARAM */
  uint64_t offset; /* ARENA */
  uint64_t n_bytes;
  const void *data; /* CONSTANT */
  uint32_t first;   /* first and last step that touches it */
  uint32_t last;
} cpu_storage;

typedef struct cpu_layout {
  uint32_t slot;
  uint32_t kind;  /* CPU_LAYOUT_* */
  uint32_t value; /* a value of the graph that stands for the parameter */
  uint32_t reserved;
  uint64_t n_bytes;         /* device memory, 0 for RAW */
  const cpu_matrix *matrix; /* of CODES */
} cpu_layout;

struct opipe_program {
  opipe_device *device;
  const opipe_graph *graph;
  cpu_pool pool;
  uint32_t flags; /* OPIPE_COMPILE_* */
  cpu_step *steps;
  uint32_t n_steps;
  uint32_t n_kernels;
  uint32_t n_rounded;   /* steps that round */
  uint32_t *storage_of; /* [n_values], OPIPE_NONE: no step touches it */
  cpu_storage *storages;
  uint32_t n_storages;
  uint32_t n_layouts;
  cpu_layout *layouts; /* sorted by slot, then kind */
  uint32_t n_gradients;
  cpu_layout *gradients; /* accumulators, sorted likewise */
  uint64_t temp_bytes;
  uint64_t workspace_bytes;
  uint64_t arena_bytes;
};

enum { CPU_RED_ZONE = 64 }; /* bytes on either side of a storage with OPIPE_COMPILE_POISON */

/* fuse.c: groups nodes and prepares a step for each group: program->steps. */
opipe_status cpu_build_steps(opipe_program *program, opipe_error *err);
/* layouts.c: collects which parameters are wanted how: program->layouts. */
opipe_status cpu_collect_layouts(opipe_program *program, opipe_error *err);
/* Bytes of a parameter in a layout; false when it does not fit. */
bool cpu_layout_bytes(uint32_t kind, const int64_t *shape, uint32_t rank, uint32_t dtype,
                      uint64_t *out_bytes);
/* Bytes of one matrix of K by N in panels of `kind`. */
bool cpu_layout_matrix_bytes(uint32_t kind, uint32_t dtype, int64_t k, int64_t n,
                             uint64_t *out_bytes);
/* Format of panels of `kind`. */
cpu_pack_format cpu_layout_format(uint32_t kind, uint32_t dtype);
/* Fills `data` (cpu_layout_bytes, aligned) from the dense source, piece by piece: what has been
 * read of `dense` is given back where it is a mapped file (device NULL: it is not). */
void cpu_layout_fill(const opipe_device *device, const cpu_exec *exec, uint32_t kind,
                     const opipe_param_source *source, const void *dense, void *data);
/* place.c: storages, their offsets, and the program's sizes. */
opipe_status cpu_place(opipe_program *program, opipe_error *err);
/* arena.c: offsets of the arena's storages, by kind, n_bytes, first and last, and temp_bytes; their
 * n_bytes become what is taken, rounded, with red zones. */
opipe_status cpu_place_arena(opipe_program *program, opipe_error *err);

/* layouts.c: dense fp32 `to` = / += what stands in a layout of fp32 (COPY, F32, PANEL, PANEL_T) of
 * a tensor of `shape`, and back. PANEL kinds are of rank 2. */
void cpu_layout_export(const cpu_exec *exec, uint32_t kind, const int64_t *shape, uint32_t rank,
                       const void *data, float *to);
void cpu_layout_import(const cpu_exec *exec, uint32_t kind, const int64_t *shape, uint32_t rank,
                       const float *from, void *data);
/* data += dense `from` */
void cpu_layout_add(const cpu_exec *exec, uint32_t kind, const int64_t *shape, uint32_t rank,
                    const float *from, void *data);

/* params.c: the bytes of parameter `slot` in a layout, NULL when the set does not have it. */
const void *cpu_params_data(const opipe_params *params, uint32_t slot, uint32_t kind);
/* codes.c: the packed copy of a matrix, NULL when the set does not have it. */
const void *cpu_params_matrix(const opipe_params *params, const cpu_matrix *matrix);
/* Layout of the master copy of `slot`, CPU_LAYOUT_MASTER when there is none (yet). For a gradient
 * set, that of its accumulator. */
uint32_t cpu_params_master_kind(const opipe_params *params, uint32_t slot);
uint64_t cpu_params_version(const opipe_params *params);
uint32_t cpu_params_count(const opipe_params *params);

#endif
