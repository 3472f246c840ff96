/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: everything is checked against the session's parameters before anything is taken over. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"

enum { NAME_MOST = 4096 };

typedef struct loading {
  const opipe_allocator *allocator;
  opi_weights *weights;
  opi_manifest manifest;
  opi_tensors *values, *state;
} loading;

static opipe_status check_tensor(const opi_tensor_entry *e, const char *file,
                                 const opipe_param_source *s, uint32_t dtype, opipe_error *err) {
  char have[160], want[160];
  bool equal = e->rank == s->rank && e->dtype == dtype;
  for (uint32_t d = 0; equal && d < s->rank; ++d)
    equal = e->shape[d] == s->shape[d];
  if (equal)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s: tensor '%s' is %s %s, the model's parameter is %s %s",
                  file, e->name, opi_dtype_name(e->dtype),
                  opi_shape_text(have, sizeof have, e->shape, e->rank), opi_dtype_name(dtype),
                  opi_shape_text(want, sizeof want, s->shape, s->rank));
}

/* Checks that every trained parameter is there under `prefix`, and counts them. */
static opipe_status check_all(const loading *l, const opi_tensors *tensors, const char *prefix,
                              uint32_t *io_n, opipe_error *err) {
  char name[NAME_MOST];
  const char *missing = NULL;
  uint32_t n_missing = 0, n = 0;
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(l->weights, i, &info); ++i) {
    if (info.trained == 0)
      continue;
    ++n;
    if (snprintf(name, sizeof name, "%s%s", prefix, info.source->name) >= NAME_MOST) {
      return opi_fail(err, OPIPE_E_LIMIT, "parameter '%.80s...': a name of %zu characters, %d fit",
                      info.source->name, strlen(info.source->name), NAME_MOST - 16);
    }
    const opi_tensor_entry *e = opi_tensors_find(tensors, name);
    if (e != NULL) {
      OPI_TRY(check_tensor(e, tensors->what, info.source, OPIPE_FLOAT, err));
      continue;
    }
    missing = n_missing == 0 ? info.source->name : missing;
    ++n_missing;
  }
  *io_n += n;
  if (n_missing == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s: it lacks %u of the %u trained parameters, the first is '%s%s'",
                  tensors->what, n_missing, n, prefix, missing);
}

/* The value of a parameter that the host set and that is not trained; NULL: it has none. */
static const opi_tensor_entry *find_set(const loading *l, const char *name) {
  char full[NAME_MOST];
  const int n = snprintf(full, sizeof full, "%s%s", OPI_PREFIX_SET, name);
  return n < 0 || n >= NAME_MOST ? NULL : opi_tensors_find(l->state, full);
}

static opipe_status check_set(const loading *l, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(l->weights, i, &info); ++i) {
    const opi_tensor_entry *e = info.trained != 0 ? NULL : find_set(l, info.source->name);
    if (e != NULL)
      OPI_TRY(check_tensor(e, l->state->what, info.source, info.source->dtype, err));
  }
  return OPIPE_OK;
}

static bool is_known(const loading *l, const char *name) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(l->weights, i, &info); ++i) {
    if (info.trained != 0 && strcmp(info.source->name, name) == 0)
      return true;
  }
  return false;
}

/* Refuses tensors that the model does not have. */
static opipe_status check_surplus(const loading *l, uint32_t n, opipe_error *err) {
  for (uint32_t i = 0; l->values->n > n && i < l->values->n; ++i) {
    if (is_known(l, l->values->entries[i].name))
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: it has %u tensors for %u trained parameters; '%s' is none of them",
                    l->values->what, l->values->n, n, l->values->entries[i].name);
  }
  return OPIPE_OK;
}

static opipe_status check(const loading *l, opipe_error *err) {
  const opi_manifest *m = &l->manifest;
  const uint32_t moments = opi_weights_moments(l->weights);
  uint32_t n = 0, n_state = 0;
  OPI_TRY(check_all(l, l->values, "", &n, err));
  OPI_TRY(check_set(l, err));
  OPI_TRY(check_surplus(l, n, err));
  if (m->moments != moments) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: the checkpoint's optimizer has %u moments per parameter, this one's %u",
                    OPI_MANIFEST, m->moments, moments);
  }
  for (uint32_t k = 0; k < moments; ++k)
    OPI_TRY(check_all(l, l->state, opi_prefix_moment[k], &n_state, err));
  return m->versions > 1 ? check_all(l, l->state, OPI_PREFIX_OLDER, &n_state, err) : OPIPE_OK;
}

/* ---- taking over ---- */

static opipe_status take(const loading *l, const opi_tensors *from, const char *prefix,
                         const char *name, uint32_t state, uint32_t version, opipe_error *err) {
  char full[NAME_MOST];
  (void)snprintf(full, sizeof full, "%s%s", prefix, name); /* its length was checked */
  const opi_tensor_entry *e = opi_tensors_find(from, full);
  if (e == NULL)
    return opi_fail(err, OPIPE_E_INTERNAL, "tensor '%s' was there when it was checked", full);
  if ((uintptr_t)e->data % sizeof(float) == 0)
    return opi_weights_set(l->weights, name, state, version, e->data, e->n_bytes, err);
  void *aligned = opi_alloc(l->allocator, (size_t)e->n_bytes + 1);
  if (aligned == NULL)
    return opi_fail_nomem(err, e->n_bytes, full);
  memcpy(aligned, e->data, (size_t)e->n_bytes);
  const opipe_status status =
      opi_weights_set(l->weights, name, state, version, aligned, e->n_bytes, err);
  opi_free(l->allocator, aligned, (size_t)e->n_bytes + 1);
  return status;
}

static opipe_status take_set(const loading *l, const char *name, opipe_error *err) {
  const bool has = find_set(l, name) != NULL;
  for (uint32_t v = 0; has && v < opi_weights_versions(l->weights); ++v)
    OPI_TRY(take(l, l->state, OPI_PREFIX_SET, name, OPI_TENSOR_WEIGHT, v, err));
  return OPIPE_OK;
}

static opipe_status take_all(const loading *l, opipe_error *err) {
  opi_weight_info info;
  const uint32_t moments = opi_weights_moments(l->weights);
  const bool older = l->manifest.versions > 1;
  for (uint32_t i = 0; opi_weights_info(l->weights, i, &info); ++i) {
    const char *name = info.source->name;
    if (info.trained == 0) {
      OPI_TRY(take_set(l, name, err));
      continue;
    }
    OPI_TRY(take(l, l->values, "", name, OPI_TENSOR_MASTER, 0, err));
    if (opi_weights_versions(l->weights) > 1) {
      OPI_TRY(take(l, older ? l->state : l->values, older ? OPI_PREFIX_OLDER : "", name,
                   OPI_TENSOR_MASTER, 1, err));
    }
    for (uint32_t k = 0; k < moments; ++k)
      OPI_TRY(take(l, l->state, opi_prefix_moment[k], name, OPI_TENSOR_FIRST + k, 0, err));
  }
  opi_weights_set_clock(l->weights, &l->manifest.clock);
  return OPIPE_OK;
}

static opipe_status load(const opipe_allocator *allocator, loading *l, int dir, opipe_error *err) {
  OPI_TRY(opi_manifest_read(allocator, dir, &l->manifest, err));
  OPI_TRY(opi_tensors_open(allocator, dir, l->manifest.weights, &l->values, err));
  OPI_TRY(opi_tensors_open(allocator, dir, l->manifest.state, &l->state, err));
  OPI_TRY(opi_manifest_verify(&l->manifest, 0, l->values, err));
  OPI_TRY(opi_manifest_verify(&l->manifest, 1, l->state, err));
  OPI_TRY(check(l, err));
  return take_all(l, err);
}

opipe_status opi_checkpoint_load(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, opi_checkpoint_info *out_info,
                                 opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  loading l = {.allocator = allocator, .weights = weights};
  const int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0)
    return opi_fail_errno(e, errno, "opening the checkpoint %s", folder);
  opipe_status status = opi_manifest_lock(dir, false, e);
  if (status == OPIPE_OK)
    status = load(allocator, &l, dir, e);
  if (status == OPIPE_OK && out_info != NULL) {
    memcpy(out_info->position, l.manifest.position, sizeof out_info->position);
    out_info->clock = l.manifest.clock;
  }
  opi_tensors_close(l.state);
  opi_tensors_close(l.values);
  opi_manifest_free(&l.manifest);
  (void)close(dir);
  return status < 0 ? opi_error_prefix(e, "loading the checkpoint %s: ", folder) : OPIPE_OK;
}
