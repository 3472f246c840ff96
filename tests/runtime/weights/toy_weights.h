/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that holds parameters and nothing else, and a set-up of two stages on it: what the
 * tests of runtime/weights and runtime/checkpoint share.
 *
 *   stage 0 reads a [3, 5], tied [4, 3] (dense), frozen [2]      stage 1 reads b [7], tied
 * (columns, each padded to 8 elements: another layout)
 *
 * Programs only say which layouts they want. Replica 1 runs the other way round: its stage s lies
 * on rank 1 - s, as Chimera does: both ranks then hold `tied` in both layouts.
 */
#ifndef TESTS_RUNTIME_WEIGHTS_TOY_H
#define TESTS_RUNTIME_WEIGHTS_TOY_H

#include <math.h>
#include <opipe/helpers.h>
#include <stdlib.h>

#include "runtime/weights/weights.h"
#include "tests/support/support.h"

enum { TW_SLOTS = 4, TW_A = 0, TW_B = 1, TW_TIED = 2, TW_FROZEN = 3, TW_ALIGN = 64, TW_PAD = 8 };
enum { TW_DENSE = 1, TW_COLUMNS = 2, TW_KEYS = 2 };
enum { TW_RANKS = 2, TW_STAGES = 2, TW_MOST = 8 };

struct opipe_device {
  opipe_meter meter;
};
struct opipe_buffer {
  opipe_device *device;
  char *data;
  uint64_t n_bytes;
  uint32_t kind;
};
struct opipe_queue {
  opipe_device *device;
};
struct opipe_program {
  uint32_t n, slots[TW_SLOTS], keys[TW_SLOTS];
};
struct opipe_params {
  opipe_device *device;
  const opipe_param_source *sources;
  opipe_buffer *copies[TW_SLOTS][TW_KEYS]; /* by key - 1; the master is the last there is */
  bool gradients;
};

static opipe_host tw_host;
static const int64_t tw_shapes[TW_SLOTS][2] = {{3, 5}, {7, 1}, {4, 3}, {2, 1}};
static const uint32_t tw_ranks_of[TW_SLOTS] = {2, 1, 2, 1};
static const char *const tw_names[TW_SLOTS] = {"a", "b", "tied", "frozen"};

static uint32_t tw_elems(uint32_t slot) {
  return (uint32_t)(tw_shapes[slot][0] * tw_shapes[slot][1]);
}
static uint64_t tw_bytes(uint32_t slot, uint32_t key) {
  return sizeof(float) * (key == TW_DENSE ? tw_elems(slot) : (uint64_t)tw_shapes[slot][1] * TW_PAD);
}
/* Place of dense element i in a layout. */
static uint32_t tw_place(uint32_t slot, uint32_t key, uint32_t i) {
  const uint32_t columns = (uint32_t)tw_shapes[slot][1];
  return key == TW_DENSE ? i : i % columns * TW_PAD + i / columns;
}
static float *tw_at(const opipe_region *r) {
  return (float *)(void *)(r->buffer->data + r->offset_bytes);
}

static opipe_status tw_query(opipe_instance *self, uint32_t index, opipe_device_info *info,
                             opipe_error *err) {
  (void)self, (void)index, (void)err;
  info->flags = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  info->alignment = TW_ALIGN;
  return OPIPE_OK;
}
static opipe_status tw_alloc(opipe_device *d, uint64_t n_bytes, uint32_t kind, opipe_buffer **out,
                             opipe_error *err) {
  opipe_buffer *b = calloc(1, sizeof *b);
  void *data = NULL;
  const opipe_status status =
      opipe_host_alloc(&tw_host, &d->meter, kind, &n_bytes, TW_ALIGN, &data, err);
  if (status < 0) {
    free(b);
    return status;
  }
  memset(data, 0x5c, (size_t)n_bytes);
  *b = (opipe_buffer){.device = d, .data = data, .n_bytes = n_bytes, .kind = kind};
  *out = b;
  return OPIPE_OK;
}
static void tw_free(opipe_buffer *b) {
  if (b == NULL)
    return;
  opipe_host_free(&tw_host, &b->device->meter, b->kind, b->data, b->n_bytes, TW_ALIGN);
  free(b);
}
static opipe_status tw_host_of(opipe_buffer *b, void **out, opipe_error *err) {
  (void)err;
  *out = b->data;
  return OPIPE_OK;
}
static void tw_no_event(opipe_event *e) {
  (void)e;
}
static opipe_status tw_write(opipe_queue *q, const opipe_region *dst, const void *src,
                             opipe_error *err) {
  (void)q, (void)err;
  memcpy(tw_at(dst), src, (size_t)dst->n_bytes);
  return OPIPE_OK;
}
static opipe_status tw_read(opipe_queue *q, void *dst, const opipe_region *src, opipe_error *err) {
  (void)q, (void)err;
  memcpy(dst, tw_at(src), (size_t)src->n_bytes);
  return OPIPE_OK;
}
static opipe_status tw_copy(opipe_queue *q, const opipe_region *dst, const opipe_region *src,
                            opipe_error *err) {
  return tw_write(q, dst, tw_at(src), err);
}
static opipe_status tw_layouts(const opipe_program *p, opipe_param_layout *out, uint32_t *io_count,
                               bool gradients) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->n; ++i) {
    if (gradients && p->slots[i] == TW_FROZEN)
      continue;
    if (n < *io_count) {
      out[n].slot = p->slots[i];
      out[n].key = p->keys[i];
      out[n].n_bytes = tw_bytes(p->slots[i], p->keys[i]);
      out[n].mapped_bytes = 0;
    }
    ++n;
  }
  *io_count = n;
  return OPIPE_OK;
}
static opipe_status tw_params_of(const opipe_program *p, opipe_param_layout *out, uint32_t *io_n,
                                 opipe_error *err) {
  (void)err;
  return tw_layouts(p, out, io_n, false);
}
static opipe_status tw_gradients_of(const opipe_program *p, opipe_param_layout *out, uint32_t *io_n,
                                    opipe_error *err) {
  (void)err;
  return tw_layouts(p, out, io_n, true);
}
static opipe_status tw_create(opipe_device *d, const opipe_param_source *sources, uint32_t n,
                              opipe_params **out, opipe_error *err) {
  (void)err;
  opipe_params *p = calloc(1, sizeof *p);
  OPI_ASSERT_INT(n, TW_SLOTS);
  p->device = d;
  p->sources = sources;
  *out = p;
  return OPIPE_OK;
}
static void tw_params_free(opipe_params *p) {
  for (uint32_t i = 0; p != NULL && i < TW_SLOTS * TW_KEYS; ++i)
    tw_free(p->copies[i / TW_KEYS][i % TW_KEYS]);
  free(p);
}
/* The master's key, 0: there is none. */
static uint32_t tw_key(const opipe_params *p, uint32_t slot) {
  uint32_t key = TW_KEYS;
  while (key > 0 && p->copies[slot][key - 1] == NULL)
    --key;
  return key;
}
static float *tw_copy_of(const opipe_params *p, uint32_t slot, uint32_t key) {
  return key == 0 ? NULL : (float *)(void *)p->copies[slot][key - 1]->data;
}
/* Into all layouts; of gradients into the master, and nothing into the others. */
static void tw_pack(const opipe_params *p, uint32_t slot, const float *dense) {
  const uint32_t master = tw_key(p, slot);
  for (uint32_t key = 1; key <= TW_KEYS; ++key) {
    if (p->copies[slot][key - 1] == NULL)
      continue;
    float *to = tw_copy_of(p, slot, key);
    memset(to, 0, (size_t)tw_bytes(slot, key));
    for (uint32_t i = 0; dense != NULL && (key == master || !p->gradients) && i < tw_elems(slot);
         ++i)
      to[tw_place(slot, key, i)] = dense[i];
  }
}
static opipe_status tw_prepare(opipe_params *p, const opipe_program *program, opipe_error *err) {
  for (uint32_t i = 0; i < program->n; ++i) {
    const uint32_t slot = program->slots[i], key = program->keys[i];
    if (p->copies[slot][key - 1] != NULL || (p->gradients && slot == TW_FROZEN))
      continue;
    const opipe_status status = tw_alloc(p->device, tw_bytes(slot, key), OPIPE_BUFFER_PARAMS,
                                         &p->copies[slot][key - 1], err);
    if (status < 0)
      return status;
    tw_pack(p, slot, p->gradients ? NULL : p->sources[slot].data);
  }
  return OPIPE_OK;
}
static opipe_status tw_clone(const opipe_params *p, opipe_params **out, opipe_error *err) {
  opipe_params *c = calloc(1, sizeof *c);
  *c = *p;
  memset(c->copies, 0, sizeof c->copies);
  for (uint32_t i = 0; i < TW_SLOTS * TW_KEYS; ++i) {
    const uint32_t s = i / TW_KEYS, key = i % TW_KEYS + 1;
    if (p->copies[s][key - 1] == NULL)
      continue;
    const uint64_t n = tw_bytes(s, key);
    OPI_TRY(tw_alloc(p->device, n, OPIPE_BUFFER_PARAMS, &c->copies[s][key - 1], err));
    memcpy(tw_copy_of(c, s, key), tw_copy_of(p, s, key), (size_t)n);
  }
  *out = c;
  return OPIPE_OK;
}
static opipe_status tw_params_write(opipe_params *p, uint32_t slot, const void *src, uint64_t n,
                                    opipe_error *err) {
  (void)n, (void)err;
  tw_pack(p, slot, src);
  return OPIPE_OK;
}
static opipe_status tw_params_read(const opipe_params *p, uint32_t slot, void *dst, uint64_t n,
                                   opipe_error *err) {
  (void)n, (void)err;
  const uint32_t key = tw_key(p, slot);
  const float *from = tw_copy_of(p, slot, key);
  for (uint32_t i = 0; i < tw_elems(slot); ++i)
    ((float *)dst)[i] = from[tw_place(slot, key, i)];
  return OPIPE_OK;
}
static opipe_status tw_commit(opipe_params *p, opipe_error *err) {
  (void)p, (void)err;
  return OPIPE_OK;
}
static opipe_status tw_gradients_create(opipe_params *p, opipe_params **out, opipe_error *err) {
  OPI_TRY(tw_create(p->device, p->sources, TW_SLOTS, out, err));
  (*out)->gradients = true;
  return OPIPE_OK;
}
static opipe_status tw_master(opipe_params *p, uint32_t slot, opipe_region *out, opipe_error *err) {
  (void)err;
  const uint32_t key = tw_key(p, slot);
  *out = (opipe_region){.buffer = key == 0 ? NULL : p->copies[slot][key - 1]};
  out->n_bytes = key == 0 ? 0 : tw_bytes(slot, key);
  return OPIPE_OK;
}
/* Adds the other accumulators to the master's and clears them. */
static opipe_status tw_fold(opipe_params *p, opipe_queue *q, uint32_t slot, opipe_error *err) {
  (void)q, (void)err;
  const uint32_t master = tw_key(p, slot);
  for (uint32_t key = 1; key < master; ++key) {
    for (uint32_t i = 0; p->copies[slot][key - 1] != NULL && i < tw_elems(slot); ++i) {
      float *part = &tw_copy_of(p, slot, key)[tw_place(slot, key, i)];
      tw_copy_of(p, slot, master)[tw_place(slot, master, i)] += *part;
      *part = 0;
    }
  }
  return OPIPE_OK;
}
static opipe_status tw_refresh(opipe_params *p, opipe_queue *q, uint32_t slot, opipe_error *err) {
  float dense[16];
  (void)q;
  OPI_TRY(tw_params_read(p, slot, dense, 0, err));
  tw_pack(p, slot, dense);
  return OPIPE_OK;
}
static opipe_status tw_export(opipe_params *p, opipe_queue *q, uint32_t slot,
                              const opipe_region *dst, opipe_error *err) {
  (void)q;
  return tw_params_read(p, slot, tw_at(dst), dst->n_bytes, err);
}
static opipe_status tw_import(opipe_params *p, opipe_queue *q, uint32_t slot,
                              const opipe_region *src, opipe_error *err) {
  (void)q;
  return tw_params_write(p, slot, tw_at(src), src->n_bytes, err);
}
static opipe_status tw_zero(opipe_queue *q, const opipe_region *dst, opipe_error *err) {
  (void)q, (void)err;
  memset(tw_at(dst), 0, (size_t)dst->n_bytes);
  return OPIPE_OK;
}
static opipe_status tw_add(opipe_queue *q, const opipe_region *dst, const opipe_region *src,
                           opipe_error *err) {
  (void)q, (void)err;
  for (uint64_t i = 0; i < dst->n_bytes / sizeof(float); ++i)
    tw_at(dst)[i] += tw_at(src)[i];
  return OPIPE_OK;
}
static opipe_status tw_squares(opipe_queue *q, const opipe_region *dst, const opipe_region *src,
                               opipe_error *err) {
  (void)q, (void)err;
  double sum = 0;
  for (uint64_t i = 0; i < src->n_bytes / sizeof(float); ++i)
    sum += (double)tw_at(src)[i] * (double)tw_at(src)[i];
  memcpy(tw_at(dst), &sum, sizeof sum);
  return OPIPE_OK;
}
/* backend.h's formulas, in double. */
static void tw_update_one(const opipe_update *u, float *w, double g, float *m, float *v) {
  double x = (double)*w;
  g += u->kind == OPIPE_UPDATE_ADAMW ? 0 : u->decay * x;
  if (u->kind == OPIPE_UPDATE_SGD) {
    double step = g;
    if (m != NULL) {
      *m = (float)(u->momentum * (double)*m + g);
      step = (u->flags & OPIPE_UPDATE_NESTEROV) != 0 ? g + u->momentum * (double)*m : (double)*m;
    }
    *w = (float)(x - u->lr * step);
    return;
  }
  *m = (float)(u->beta1 * (double)*m + (1 - u->beta1) * g);
  *v = (float)(u->beta2 * (double)*v + (1 - u->beta2) * g * g);
  if (u->kind == OPIPE_UPDATE_ADAMW)
    x -= u->lr * u->decay * x;
  const double root = (u->flags & OPIPE_UPDATE_EPS_INNER) != 0
                          ? (sqrt((double)*v) + u->epsilon) / sqrt(u->correction2)
                          : sqrt((double)*v / u->correction2) + u->epsilon;
  *w = (float)(root == 0 ? x : x - u->lr * ((double)*m / u->correction1) / root);
}
static opipe_status tw_update(opipe_queue *q, const opipe_update *u, opipe_error *err) {
  (void)q, (void)err;
  float *w = tw_at(&u->weight), *g = tw_at(&u->gradient);
  float *m = u->first.buffer == NULL ? NULL : tw_at(&u->first);
  float *v = u->second.buffer == NULL ? NULL : tw_at(&u->second);
  for (uint64_t i = 0; i < u->n_elems; ++i) {
    tw_update_one(u, &w[i], (double)g[i] * u->gradient_scale, m == NULL ? NULL : &m[i],
                  v == NULL ? NULL : &v[i]);
    if ((u->flags & OPIPE_UPDATE_CLEAR) != 0)
      g[i] = 0;
  }
  return OPIPE_OK;
}

/* Many at once; tw_one_by_one has neither. */
static uint32_t tw_n_many[2]; /* calls: norms, updates */
static opipe_status tw_squares_many(opipe_queue *q, const opipe_region *dst,
                                    const opipe_region *src, uint32_t n, opipe_error *err) {
  ++tw_n_many[0];
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(tw_squares(q, &dst[i], &src[i], err));
  return OPIPE_OK;
}
static opipe_status tw_update_many(opipe_queue *q, const opipe_update *u,
                                   const opipe_update_part *parts, uint32_t n, opipe_error *err) {
  ++tw_n_many[1];
  for (uint32_t i = 0; i < n; ++i) {
    opipe_update one = *u;
    one.n_elems = parts[i].n_elems;
    one.weight = parts[i].weight;
    one.gradient = parts[i].gradient;
    one.first = parts[i].first;
    one.second = parts[i].second;
    one.decay = parts[i].decay;
    OPI_TRY(tw_update(q, &one, err));
    if (parts[i].params != NULL)
      OPI_TRY(tw_refresh(parts[i].params, q, parts[i].slot, err));
  }
  return OPIPE_OK;
}

#define TW_SLOTS_OF_TABLE                                                                      \
  .device_query = tw_query, .buffer_alloc = tw_alloc, .buffer_free = tw_free,                  \
  .buffer_host = tw_host_of, .event_destroy = tw_no_event, .write = tw_write, .read = tw_read, \
  .copy = tw_copy, .program_params = tw_params_of, .params_free = tw_params_free,              \
  .params_prepare = tw_prepare, .params_clone = tw_clone, .params_write = tw_params_write,     \
  .params_read = tw_params_read, .params_commit = tw_commit, .params_create_owned = tw_create, \
  .gradients_create = tw_gradients_create, .program_gradients = tw_gradients_of,               \
  .params_master = tw_master, .gradients_fold = tw_fold, .params_refresh = tw_refresh,         \
  .params_export = tw_export, .params_import = tw_import, .fill_zero = tw_zero, .add = tw_add, \
  .sum_squares = tw_squares, .update = tw_update
static const opipe_backend tw_one_by_one = {
    .struct_size = (uint32_t)OPIPE_END(opipe_backend, update), TW_SLOTS_OF_TABLE};
static const opipe_backend tw_backend = {
    .struct_size = (uint32_t)OPIPE_END(opipe_backend, sum_squares_many),
    TW_SLOTS_OF_TABLE,
    .update_many = tw_update_many,
    .sum_squares_many = tw_squares_many};

/* ---- the set-up ---- */

typedef struct tw_place_set {
  opi_test_memory memory;
  opipe_device devices[TW_RANKS];
  opipe_queue queues[TW_RANKS];
  opipe_program programs[TW_STAGES];
  opipe_program *lists[TW_STAGES];
  opi_backend_ref backend;
  float values[TW_SLOTS][16];
  opipe_param_source sources[TW_SLOTS];
  bool trained[TW_SLOTS];
  opi_weight_instance instances[TW_MOST];
  uint32_t params[TW_STAGES][TW_SLOTS];
  opi_optimizer optimizer;
  opi_weights_options options;
  bool lost[TW_RANKS]; /* the rank's part of the loss is no number */
  opi_weights *weights;
} tw_place_set;

/* Everything but open: the caller may change `options` and `optimizer` first. */
static void tw_setup(tw_place_set *t, uint32_t n_stages, uint32_t n_replicas) {
  static const uint32_t reads[TW_STAGES][3] = {{TW_A, TW_TIED, TW_FROZEN}, {TW_B, TW_TIED, 0}};
  static const uint32_t n_reads[TW_STAGES] = {3, 2};
  memset(t, 0, sizeof *t);
  opi_test_memory_init(&t->memory);
  tw_host.ctx = opi_allocator_system()->ctx; /* devices have memory of their own */
  tw_host.realloc = opi_allocator_system()->realloc;
  t->backend = (opi_backend_ref){.table = &tw_backend, .id = "toy"};
  for (uint32_t s = 0; s < TW_SLOTS; ++s) {
    for (uint32_t i = 0; i < tw_elems(s); ++i)
      t->values[s][i] = (float)(s + 1) * 0.25f - (float)i * 0.125f;
    t->sources[s] = (opipe_param_source){.name = tw_names[s],
                                         .data = t->values[s],
                                         .shape = tw_shapes[s],
                                         .n_bytes = tw_elems(s) * sizeof(float),
                                         .dtype = OPIPE_FLOAT,
                                         .rank = tw_ranks_of[s]};
    t->trained[s] = s != TW_FROZEN;
  }
  for (uint32_t r = 0; r < TW_RANKS; ++r)
    t->queues[r].device = &t->devices[r];
  for (uint32_t s = 0; s < n_stages; ++s) {
    t->lists[s] = &t->programs[s];
    for (uint32_t i = 0; i < n_reads[s]; ++i) {
      t->params[s][i] = t->programs[s].slots[i] = reads[s][i];
      t->programs[s].keys[i] = s == 1 && reads[s][i] == TW_TIED ? TW_COLUMNS : TW_DENSE;
    }
    t->programs[s].n = n_reads[s];
    for (uint32_t r = 0; r < n_replicas; ++r) {
      const uint32_t rank = (s + r) % TW_RANKS;
      t->instances[s * n_replicas + r] = (opi_weight_instance){.rank = rank,
                                                               .stage = s,
                                                               .replica = r,
                                                               .n_programs = 1,
                                                               .backend = &t->backend,
                                                               .device = &t->devices[rank],
                                                               .queue = &t->queues[rank],
                                                               .programs = &t->lists[s],
                                                               .params = t->params[s],
                                                               .n_params = n_reads[s]};
    }
  }
  t->optimizer = (opi_optimizer){.kind = OPIPE_OPTIMIZER_SGD, .lr = 0.5, .momentum = 0.5};
  t->options = (opi_weights_options){.allocator = &t->memory.allocator,
                                     .optimizer = &t->optimizer,
                                     .instances = t->instances,
                                     .sources = t->sources,
                                     .trained = t->trained,
                                     .n_stages = n_stages,
                                     .n_replicas = n_replicas,
                                     .n_ranks = TW_RANKS,
                                     .n_sources = TW_SLOTS,
                                     .n_versions = 1};
}

static void tw_open(tw_place_set *t) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_weights_open(&t->options, &t->weights, &err), &err);
}

static void tw_end(tw_place_set *t) {
  opi_weights_close(t->weights);
  OPI_ASSERT(opi_test_memory_end(&t->memory));
}

/* The contribution of instance `i` to element e of a parameter in mini-batch `step`. */
static float tw_part(uint32_t i, uint32_t slot, uint32_t e, uint32_t step) {
  return (float)((i * 37 + slot * 11 + e * 5 + step * 3) % 17) * 0.0625f - 0.5f;
}

/* One mini-batch: every instance's gradients, then all ranks' steps in turn. */
static inline void tw_step(tw_place_set *t, uint32_t step, double scale) {
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t n = t->options.n_stages * t->options.n_replicas;
  for (uint32_t r = 0; r < TW_RANKS; ++r)
    OPI_ASSERT_OK(opi_weights_begin(t->weights, r, &err), &err);
  for (uint32_t i = 0; i < n; ++i) {
    opipe_params *g = opi_weights_gradients(t->weights, i);
    for (uint32_t k = 0; k < t->instances[i].n_params; ++k) {
      const uint32_t slot = t->instances[i].params[k], key = t->instances[i].programs[0]->keys[k];
      for (uint32_t e = 0; slot != TW_FROZEN && e < tw_elems(slot); ++e) {
        tw_copy_of(g, slot, key)[tw_place(slot, key, e)] +=
            (float)scale * tw_part(i, slot, e, step);
      }
    }
    if (i % 2 == 0) /* the others are reduced by the step */
      OPI_ASSERT_OK(opi_weights_reduce(t->weights, i, &err), &err);
  }
  bool done[TW_RANKS] = {false};
  for (uint32_t turn = 0; turn < 64 && !(done[0] && done[1]); ++turn) {
    const uint32_t r = turn % TW_RANKS;
    if (done[r])
      continue;
    const opipe_status status = opi_weights_step(t->weights, r, !t->lost[r], NULL, &err);
    if (status < 0)
      OPI_FAIL("rank %u: %s", r, err.message);
    done[r] = status == OPIPE_OK;
  }
  OPI_ASSERT(done[0] && done[1]);
}

#endif /* TESTS_RUNTIME_WEIGHTS_TOY_H */
