/* SPDX-License-Identifier: Apache-2.0 */
/* An order as a value of its own: the problem, its arrays and the list; read from and written as
 * text, CSV or JSON.
 *
 *   text  a versioned header (#onnx-pipe-schedule v1, key=value lines), one line per rank
 *   CSV   one row per rank, one cell per action, an empty cell is an idle slot. Header lines (each
 *         begins with #) only if a plain table cannot express it: replicas, slices, edges ...
 *   JSON  the header's keys and "actions", one array of action texts per rank
 *
 * Dialects of CSV: OPIPE (REDUCE, STEP, FREE ...), TORCH (PyTorch's: REDUCE_GRAD; refuses what it
 * cannot express), TORCH_OLD (B is the input half, BW the whole backward). */
#ifndef OPI_ORDER_H
#define OPI_ORDER_H

#include "partition/schedule/actions.h"

enum { OPI_DIALECT_OPIPE = 0, OPI_DIALECT_TORCH = 1, OPI_DIALECT_TORCH_OLD = 2 };
enum { OPI_ORDER_TEXT = 0, OPI_ORDER_CSV = 1, OPI_ORDER_JSON = 2 };

typedef struct opi_order {
  opi_arena arena;
  opi_problem problem; /* arrays in the arena */
  opi_do_list *list;   /* owned */
} opi_order;

/* Detects the form from its first bytes. A table without header implies ranks, stages,
 * micro-batches and places. Errors: INVALID with row, column and text. */
opipe_status opi_order_read(const char *text, size_t n, uint32_t dialect,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opipe_error *err);
/* The same, read from a file. Errors also: IO. */
opipe_status opi_order_read_file(const char *path, uint32_t dialect,
                                 const opipe_allocator *allocator, opi_order **out_order,
                                 opipe_error *err);
/* Errors: UNSUPPORTED with rank, step and action, if the dialect cannot express the order. */
opipe_status opi_order_write(const opi_order *order, uint32_t format, uint32_t dialect,
                             opi_text *text, opipe_error *err);
/* Makes an order from the problem (arrays copied) and `list`, which it takes over even on failure.
 */
opipe_status opi_order_make(const opi_problem *problem, opi_do_list *list,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opipe_error *err);
void opi_order_free(opi_order *order); /* accepts NULL */
/* Whether it holds messages or (on one rank alone) a step. */
bool opi_order_is_lowered(const opi_order *order);

/* The order lowered; or aligned in time, with idle cells where a rank waits: every action takes one
 * slot (a whole backward two if the order also has halves). */
opipe_status opi_order_lower(const opi_order *order, const opi_lowering *how,
                             const opipe_allocator *allocator, opi_order **out_order,
                             opipe_error *err);
opipe_status opi_order_align(const opi_order *order, const opipe_allocator *allocator,
                             opi_order **out_order, opipe_error *err);
/* Repeats a request's order n times, as ranks run a stream: request by request. The order must hold
 * forwards and not be lowered. Errors: LIMIT, as opi_do_list_create. */
opipe_status opi_order_repeat(const opi_order *order, uint32_t n, const opipe_allocator *allocator,
                              opi_order **out_order, opipe_error *err);
/* One action's text before edges are known. */
typedef struct opi_cell_text {
  opi_do item;
  uint32_t other;  /* stage after '>'; OPIPE_NONE: the neighbour */
  bool peer_given; /* '>' is followed by @replica */
} opi_cell_text;
/* Reads one cell, all of [at, end): one action (or idle), or the two of a pair. False: *out_why is
 * the reason. */
bool opi_cell_read(const char *at, const char *end, uint32_t dialect, opi_cell_text out_cells[2],
                   uint32_t *out_n, const char **out_why);
/* The separators between the cells of a rank. */
typedef struct opi_cell_form {
  const char *separator, *idle, *quote;
  uint32_t dialect;
} opi_cell_form;
/* Appends the cells of n actions; a pair is one cell. problem: decides which marks are needed. */
void opi_cells_write(opi_text *to, const opi_problem *problem, const opi_do *items, uint32_t n,
                     const opi_cell_form *form);

#endif /* OPI_ORDER_H */
