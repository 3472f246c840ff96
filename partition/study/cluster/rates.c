/* SPDX-License-Identifier: Apache-2.0 */
/* Member "rates" of a device: rates of products by type and shape class. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/study/cluster/read.h"

enum { RATES_MOST = 256 };

static const struct {
  const char *name;
  uint32_t dtype;
} TYPES[] = {{"fp64", OPIPE_DOUBLE},   {"fp32", OPIPE_FLOAT},       {"fp16", OPIPE_FLOAT16},
             {"bf16", OPIPE_BFLOAT16}, {"fp8", OPIPE_FLOAT8E4M3FN}, {"int8", OPIPE_INT8}};

static opipe_status read_type(const opi_cluster_reader *r, const json_t *object, const char *what,
                              uint32_t *out_dtype) {
  const char *text = NULL;
  OPI_TRY(opi_json_get_string(object, what, "dtype", &text, r->err));
  for (size_t i = 0; i < OPI_COUNT(TYPES); ++i) {
    if (strcmp(TYPES[i].name, text) == 0) {
      *out_dtype = TYPES[i].dtype;
      return OPIPE_OK;
    }
  }
  return opi_fail(r->err, OPIPE_E_INVALID,
                  "%s: \"dtype\" is '%.40s'; known types are fp64, fp32, fp16, bf16, fp8 and int8",
                  what, text);
}

static opipe_status read_rate(const opi_cluster_reader *device, json_t *object, size_t index,
                              opi_rate *out) {
  static const char *const fields[] = {"dtype", "least", "flops", NULL};
  opi_cluster_reader r = *device;
  (void)snprintf(r.what, sizeof r.what, "%.170s: rates[%zu]", device->what, index);
  OPI_TRY(opi_cluster_check_fields(&r, object, fields));
  OPI_TRY(read_type(&r, object, r.what, &out->dtype));
  OPI_TRY(opi_cluster_get_count(&r, object, "least", UINT32_MAX, 0, &out->least));
  OPI_TRY(opi_cluster_get_number(&r, object, "flops", 1, 1e30, 0, &out->flops));
  return out->flops > 0 ? OPIPE_OK
                        : opi_fail(r.err, OPIPE_E_INVALID, "%s: \"flops\" is missing", r.what);
}

/* Finds the sorted position of a rate; the same type and class twice is an error. */
static opipe_status place(const opi_cluster_reader *r, const opi_device_class *class,
                          const opi_rate *rate, uint32_t *out_at) {
  uint32_t at = class->n_rates;
  for (; at > 0; --at) {
    const opi_rate *other = &class->rates[at - 1];
    if (other->dtype == rate->dtype && other->least == rate->least) {
      return opi_fail(r->err, OPIPE_E_INVALID,
                      "%s: two \"rates\" of type %s and \"least\" %" PRIu64 ": %g and %g", r->what,
                      opi_dtype_name(rate->dtype), rate->least, other->flops, rate->flops);
    }
    if (other->dtype < rate->dtype || (other->dtype == rate->dtype && other->least < rate->least))
      break;
  }
  *out_at = at;
  return OPIPE_OK;
}

opipe_status opi_cluster_read_rates(const opi_cluster_reader *r, const json_t *device,
                                    opi_device_class *out_class) {
  const json_t *list = NULL;
  if (json_object_get(device, "rates") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(device, r->what, "rates", &list, r->err));
  const size_t n = json_array_size(list);
  if (n > RATES_MOST) {
    return opi_fail(r->err, OPIPE_E_LIMIT, "%s: \"rates\" has %zu entries; it may have at most %d",
                    r->what, n, RATES_MOST);
  }
  opi_rate *rates = OPI_ARENA_ARRAY(r->arena, opi_rate, n);
  if (rates == NULL)
    return opi_fail_nomem(r->err, n * sizeof *rates, "a cluster");
  out_class->rates = rates;
  for (size_t i = 0; i < n; ++i) {
    opi_rate rate = {.dtype = 0};
    uint32_t at = 0;
    OPI_TRY(read_rate(r, json_array_get(list, i), i, &rate));
    OPI_TRY(place(r, out_class, &rate, &at));
    memmove(&rates[at + 1], &rates[at], (out_class->n_rates - at) * sizeof rate);
    rates[at] = rate;
    ++out_class->n_rates;
  }
  return OPIPE_OK;
}
