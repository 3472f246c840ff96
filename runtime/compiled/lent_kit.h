/* SPDX-License-Identifier: Apache-2.0 */
/* Lent tensors and fences; private to runtime/compiled.
 *
 *   opi_rank ── imports   the host's handles as objects of the rank's device, found again
 *   opi_request ── opi_lent ── items [n_here][n_items]   a rank's objects for a tensor
 *   opi_shapes ── places   programs bound to sets of tensors, found again
 */
#ifndef OPI_LENT_KIT_H
#define OPI_LENT_KIT_H

#include "runtime/compiled/build.h"

enum {
  OPI_IMPORTS = 128,    /* kept by a rank, beside those in use */
  OPI_LENT_PLACES = 16, /* sets of tensors that programs are bound to, at most */
  OPI_PLACE_REST = 64,  /* a set that this many requests did not use may be replaced */
  OPI_RUNS = 1024       /* copies for one part of a tensor, at most */
};
enum { OPI_IMPORT_BUFFER = 0, OPI_IMPORT_EVENT = 1, OPI_IMPORT_QUEUE = 2 };

/* A handle may outlive its object, so it is used only for requests that name it. */
typedef struct opi_import {
  struct opi_import *next;
  uint32_t kind; /* OPI_IMPORT_* */
  uint64_t native, n_bytes;
  union {
    opipe_buffer *buffer;
    opipe_event *event;
    opipe_queue *queue;
  } as;
  _Atomic uint32_t n_users; /* requests, places */
} opi_import;

typedef struct opi_lent_item {
  opi_import *memory; /* NULL: host memory, or the rank does not touch it */
  opi_import *event;  /* the host's, for `ready`; NULL: none */
  opi_import *source; /* the stream of `ready`, used during submit */
  opi_import *stream; /* waits until the tensor is done with; NULL: none */
  opipe_event *ready; /* the rank's queue waits for it; NULL: nothing to wait for */
  uint64_t signal;    /* native event, recorded when the tensor is done with; 0: none */
} opi_lent_item;

/* A `ready` fence that the host polls. */
typedef struct opi_lent_look {
  const opi_rank *rank;
  opipe_event *event; /* NULL: none */
} opi_lent_look;

struct opi_lent {
  opi_lent_item *items; /* [n_here][n_items] */
  opi_lent_look *looks; /* [n_items] */
  opipe_event **events; /* [n_here][n_items] recorded on streams at submit; NULL: not needed yet */
  opipe_event **ends;   /* [n_here] recorded behind the request's last work */
  uint64_t *key;        /* [n_items] */
  bool *begun;          /* [n_here] each written by its rank */
  _Atomic uint32_t n_left;        /* ranks whose part is not queued yet */
  _Atomic uint32_t held;          /* 1: it counts in n_users of imports and places */
  struct opi_lent_places *places; /* NULL: all tensors are copied */
};

/* Bindings with the host's tensors in place of a shape's cells. */
typedef struct opi_lent_places {
  struct opi_lent_places *next;
  const opi_compiled *shape;
  uint64_t *key;            /* [n_items] addresses; 0: not in place */
  opi_import **memory;      /* [n_here][n_items] */
  opipe_binding **bound;    /* [steps of the shape] NULL: the shape's own */
  _Atomic uint32_t n_users; /* requests */
  uint64_t last_used;       /* request number */
} opi_lent_places;

static inline uint32_t opi_n_items(const opi_setup *s) {
  return s->n_inputs + s->n_outputs;
}
static inline opi_lent_item *opi_lent_at(const opi_request *request, uint32_t place,
                                         uint32_t item) {
  return &request->lent->items[place * opi_n_items(request->setup) + item];
}
static inline bool opi_is_touched(const opi_compiled *t, uint32_t place, uint32_t item) {
  return t->touched[place * opi_n_items(t->setup) + item];
}
static inline const char *opi_item_name(const opi_setup *s, uint32_t item) {
  return item < s->n_inputs ? s->inputs[item].name : s->output_names[item - s->n_inputs];
}

/* lent_imports.c: the rank's object for a host's handle, of at least n_bytes; counted as used. */
opipe_status opi_import_take(opi_rank *rank, uint32_t kind, uint64_t native, uint64_t n_bytes,
                             opi_import **out_import, opipe_error *err);
static inline void opi_import_drop(opi_import *import) { /* accepts NULL */
  if (import != NULL)
    atomic_fetch_sub(&import->n_users, 1);
}
void opi_imports_free(opi_rank *rank);

/* lent_fences.c: takes the fences of an item for the ranks that touch it. */
opipe_status opi_lent_take_fences(opi_request *request, uint32_t item, const opipe_fence *ready,
                                  const opipe_fence *done, bool look, opipe_error *err);

/* lent_places.c: finds or makes bindings to the request's tensors; none if nothing fits or there is
 * no room for another set. */
opipe_status opi_lent_places_find(opi_request *request, opipe_error *err);
void opi_lent_places_free(opi_setup *setup, opi_lent_places *places);

#endif /* OPI_LENT_KIT_H */
