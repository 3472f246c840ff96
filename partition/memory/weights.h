/* SPDX-License-Identifier: Apache-2.0 */
/* Exact bytes that a training session holds for weights: parameter sets (and their second version),
 * gradients, optimizer state. The compiled programs tell; nothing is allocated on a device.
 *
 * The planner predicts with these numbers and runtime/weights allocates by them, so the two cannot
 * differ. A rank holds a parameter once, whichever of its stages read it. It has one *master*
 * layout per rank: of all layouts that the rank's programs want, the one of the highest key below
 * OPIPE_LAYOUT_DERIVED. */
#ifndef OPI_MEMORY_WEIGHTS_H
#define OPI_MEMORY_WEIGHTS_H

#include "partition/plan/plan.h"

/* One stage instance, which reads parameters. All borrowed. */
typedef struct opi_weight_reader {
  uint32_t rank, stage;
  uint32_t n_programs, n_params;
  opipe_program *const *programs; /* [n_programs] NULL entries: none */
  const uint32_t *params;         /* [n_params] rising: slots of the parameter table that the stage
                                     reads */
} opi_weight_reader;

/* One rank, which holds the parameters that its instances read. */
typedef struct opi_weight_holder {
  uint32_t rank;
  uint32_t alignment; /* of the rank's device */
  uint32_t n_programs, n_params;
  const opi_backend_ref *backend; /* NULL: the device is described, bytes are estimates */
  opipe_program **programs;       /* [n_programs] of all its instances, NULL entries: none */
  uint32_t *params;               /* [n_params] rising: slots that any of them reads */
  uint32_t *n_readers;            /* [n_params] instances of this rank that read it */
  uint32_t *first;                /* [n_params] the first reader */
} opi_weight_holder;

typedef struct opi_weight_query {
  const opi_weight_reader *readers;  /* [n_readers] ordered by (stage, replica) */
  opi_weight_holder *holders;        /* [n_holders] of different ranks, rising */
  const opipe_param_source *sources; /* [n_sources] */
  const bool *trained;               /* [n_sources] */
  uint32_t n_readers, n_holders, n_sources;
  uint32_t n_versions; /* 1 or 2 */
  uint32_t n_moments;  /* of the optimizer: 0, 1 or 2 */
  bool shard;          /* holders have the moments of their parts alone */
} opi_weight_query;

/* One parameter of one holder. */
typedef struct opi_weight_layout {
  uint64_t key, master_bytes; /* of the master; 0 bytes: no program reads it */
  uint64_t params_bytes;      /* all layouts, each rounded to the alignment */
  uint64_t gradient_bytes;    /* all accumulators, each rounded; 0: nothing accumulates here */
  /* The holder's part of the master: bytes from own_first on, a multiple of the alignment. Its norm
   * is that of this part; with `shard` so are moments and update. Whole for the only holder, and of
   * what is added in dense form. */
  uint64_t own_first, own_bytes;
} opi_weight_layout;

/* Trained parameters whose gradients are summed together, over the same holders: at most
 * OPI_BUCKET_BYTES (partition/plan/training.h). Their masters, one
 * after the other, are divided among the holders, as equally as the alignment allows. */
typedef struct opi_weight_bucket {
  uint32_t *slots;   /* [n_slots] falling, so that a backward completes the first first */
  uint32_t *holders; /* [n_holders] indices, in the order of first readers; at least 2 */
  uint64_t *ends;    /* [n_holders] bytes at which their parts end */
  uint32_t n_slots, n_holders;
  uint32_t stage; /* whose backward gives them */
  bool tied;      /* summed at the step */
  uint64_t n_bytes;
} opi_weight_bucket;
typedef struct opi_weight_bytes {
  uint64_t params, versions, gradients, optimizer;
} opi_weight_bytes;

/* Groups readers [n_readers], ordered by (stage, replica), by rank; out_holders [as many as there
 * are ranks among them] in `arena`, with backend and alignment left to fill in. */
opipe_status opi_weight_holders(const opi_weight_reader *readers, uint32_t n_readers,
                                uint32_t n_ranks, uint32_t n_sources, opi_arena *arena,
                                opi_weight_holder **out_holders, uint32_t *out_n_holders,
                                opipe_error *err);

/* out_layouts [n_holders]: arrays [n_params] made in `arena`; out_bytes [n_holders]. Both optional.
 * Errors: the backend's; UNSUPPORTED, a trained parameter that a stage reads without giving a
 * gradient. */
opipe_status opi_predict_weights(const opi_weight_query *query, opi_arena *arena,
                                 opi_weight_layout **out_layouts, opi_weight_bytes *out_bytes,
                                 opipe_error *err);

/* Whether the parameter's gradients have one layout in all its holders and can be added in it;
 * otherwise they are added in dense form. `layouts` as above. */
bool opi_weight_layouts_equal(const opi_weight_query *query, opi_weight_layout *const *layouts,
                              uint32_t slot);
/* Whether the parameter is trained, held by several ranks, and read by more than one stage or by
 * several instances of one rank; it is then summed at the step. */
bool opi_weight_tied(const opi_weight_query *query, uint32_t slot);
/* Index of `slot` in the holder's params; OPIPE_NONE: the holder does not read it. */
uint32_t opi_weight_index(const opi_weight_holder *holder, uint32_t slot);
/* The n-th holder of a slot in the order of first readers; OPIPE_NONE: there are fewer. */
uint32_t opi_weight_holder_at(const opi_weight_query *query, uint32_t slot, uint32_t n);
/* buckets.c: shares the trained parameters out, and sets own_first and own_bytes of `layouts`.
 * out_buckets in `arena`. Ties that are added in dense form are in none of them. */
opipe_status opi_weight_buckets(const opi_weight_query *query, opi_weight_layout *const *layouts,
                                opi_arena *arena, opi_weight_bucket **out_buckets,
                                uint32_t *out_n_buckets, opipe_error *err);
/* Dense fp32 bytes of a parameter. */
bool opi_weight_dense_bytes(const opipe_param_source *source, uint64_t *out_bytes);

#endif /* OPI_MEMORY_WEIGHTS_H */
