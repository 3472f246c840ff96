/* SPDX-License-Identifier: Apache-2.0 */
/* An order as a value of its own: the problem, its arrays and the list; read from and written as
 * text, CSV or JSON.
 *
 *   text  a versioned header (#onnx-pipe-schedule v1, key=value lines), one line per rank
 *   CSV   one row per rank, one cell per action, an empty cell is an idle slot. Header lines (each
 *         begins with #) only where a plain table cannot say it: replicas, slices, edges ...
 *   JSON  the header's keys and "actions", one array of action texts per rank
 *
 * Dialects of CSV: OPIPE (REDUCE, STEP, FREE ...), TORCH (PyTorch's: REDUCE_GRAD; refuses what it
 * cannot express), TORCH_OLD (B is the input half, BW the whole backward).
 */
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

/* The form is seen from the first bytes; a table without header says ranks, stages, micro-batches
 * and places itself. Errors: INVALID with row, column and text. */
opipe_status opi_order_read(const char *text, size_t n, uint32_t dialect,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opipe_error *err);
/* The same from a file. Errors also: IO. */
opipe_status opi_order_read_file(const char *path, uint32_t dialect,
                                 const opipe_allocator *allocator, opi_order **out_order,
                                 opipe_error *err);
/* Errors: UNSUPPORTED, what the dialect cannot express, with rank, step and action. */
opipe_status opi_order_write(const opi_order *order, uint32_t format, uint32_t dialect,
                             opi_text *text, opipe_error *err);
/* A new order: the problem (arrays copied) around `list`, which it takes over also on failure. */
opipe_status opi_order_make(const opi_problem *problem, opi_do_list *list,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opipe_error *err);
void opi_order_free(opi_order *order); /* accepts NULL */
/* Has it messages, or a step (of one rank alone)? */
bool opi_order_is_lowered(const opi_order *order);

/* The order lowered, or aligned in time: idle cells where a rank waits, counting one slot for every
 * action (a whole backward counts two where the order has halves as well). */
opipe_status opi_order_lower(const opi_order *order, const opi_lowering *how,
                             const opipe_allocator *allocator, opi_order **out_order,
                             opipe_error *err);
opipe_status opi_order_align(const opi_order *order, const opipe_allocator *allocator,
                             opi_order **out_order, opipe_error *err);
/* That of a request, n times: what ranks do of a stream, request by request. Of forwards that are
 * not lowered. Errors: LIMIT, as opi_do_list_create. */
opipe_status opi_order_repeat(const opi_order *order, uint32_t n, const opipe_allocator *allocator,
                              opi_order **out_order, opipe_error *err);
/* One action's text as it is before edges are known. */
typedef struct opi_cell_text {
  opi_do item;
  uint32_t other;  /* stage behind '>', OPIPE_NONE: the neighbour */
  bool peer_given; /* behind '>': @replica */
} opi_cell_text;
/* Reads one cell, all of [at, end): one action (also an idle one), or the two of a pair. False:
 * *out_why says what is wrong. */
bool opi_cell_read(const char *at, const char *end, uint32_t dialect, opi_cell_text out_cells[2],
                   uint32_t *out_n, const char **out_why);
/* How the cells of a rank follow each other. */
typedef struct opi_cell_form {
  const char *separator, *idle, *quote;
  uint32_t dialect;
} opi_cell_form;
/* Appends the cells of n actions; a pair is one cell. problem: says which marks are needed. */
void opi_cells_write(opi_text *to, const opi_problem *problem, const opi_do *items, uint32_t n,
                     const opi_cell_form *form);

#endif /* OPI_ORDER_H */
