/* SPDX-License-Identifier: Apache-2.0 */
/* See devices.h. */
#include "partition/file/devices.h"

#include <inttypes.h>
#include <string.h>

#include "partition/plan/rules.h"

static const char *const thread_rules[] = {"single", "endpoint"}; /* by OPIPE_THREADS_* */

static void write_decided_options(opi_text *t, const char *options) {
  opi_text kept;
  opi_text_init(&kept, t->allocator);
  opi_options_decided(options, &kept);
  opi_text_json(t, kept.data == NULL ? "" : kept.data);
  t->failed = t->failed || kept.failed;
  opi_text_release(&kept);
}

void opi_json_write_device(opi_text *t, const opi_device_spec *d, bool decisions) {
  opi_text_puts(t, "{\"kind\": ");
  opi_text_json(t, d->kind);
  opi_text_printf(t, ", \"index\": %u", d->index);
  if (!decisions) {
    opi_text_printf(t, ", \"threads\": %u, \"memory_bytes\": %" PRIu64, d->threads,
                    d->memory_bytes);
    if (d->memory_with != 0)
      opi_text_printf(t, ", \"memory_with\": %u", d->memory_with - 1);
  }
  opi_text_puts(t, ", \"options\": ");
  if (decisions)
    write_decided_options(t, d->options);
  else
    opi_text_json(t, d->options);
  opi_text_printf(t, ", \"alignment\": %u, \"flags\": ", d->alignment);
  opi_json_write_flags(t, OPI_FLAGS_DEVICE, d->flags);
  opi_text_printf(t, ", \"domain\": %u}", d->domain);
}

static opipe_status read_u32(const json_t *object, const char *what, const char *name,
                             uint32_t *out, opipe_error *err) {
  uint64_t value = 0;
  OPI_TRY(opi_json_get_u64(object, what, name, UINT32_MAX, &value, err));
  *out = (uint32_t)value;
  return OPIPE_OK;
}

/* Reads "memory_with": the first rank on the same device that has the same cap. */
static opipe_status read_memory_with(const json_t *object, const char *what, uint32_t rank,
                                     opi_device_spec *io_devices, opipe_error *err) {
  static const char name[] = "memory_with";
  opi_device_spec *d = &io_devices[rank];
  uint32_t first = 0;
  d->memory_with = 0;
  if (json_object_get(object, name) == NULL)
    return OPIPE_OK;
  OPI_TRY(read_u32(object, what, name, &first, err));
  const opi_device_spec *other = first < rank ? &io_devices[first] : d;
  if (first >= rank || other->memory_with != 0 || d->memory_bytes == 0 ||
      other->memory_bytes != d->memory_bytes || other->index != d->index ||
      other->domain != d->domain || strcmp(other->kind, d->kind) != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: \"%s\" of rank %u is %u; it must be the first rank with the same "
                    "\"memory_bytes\" on the same device",
                    what, name, rank, first);
  }
  d->memory_with = first + 1;
  return OPIPE_OK;
}

opipe_status opi_json_read_device(const json_t *object, const char *what, opi_arena *arena,
                                  uint32_t rank, opi_device_spec *io_devices, opipe_error *err) {
  const char *kind = NULL, *options = NULL;
  opi_device_spec *d = &io_devices[rank];
  OPI_TRY(opi_json_get_string(object, what, "kind", &kind, err));
  OPI_TRY(opi_json_get_string(object, what, "options", &options, err));
  OPI_TRY(read_u32(object, what, "index", &d->index, err));
  OPI_TRY(read_u32(object, what, "threads", &d->threads, err));
  OPI_TRY(opi_json_get_u64(object, what, "memory_bytes", INT64_MAX, &d->memory_bytes, err));
  OPI_TRY(opi_json_get_alignment(object, what, &d->alignment, err));
  OPI_TRY(opi_json_get_flags(object, what, OPI_FLAGS_DEVICE, &d->flags, err));
  OPI_TRY(read_u32(object, what, "domain", &d->domain, err));
  d->kind = opi_arena_strdup(arena, kind);
  d->options = opi_arena_strdup(arena, options);
  return d->kind == NULL || d->options == NULL
             ? opi_fail_nomem(err, strlen(options), "a device")
             : read_memory_with(object, what, rank, io_devices, err);
}

/* ---- links of plans ---- */

/* A decision names only these flags: lists depend on the first, and no hash changes with flags that
 * only say what a transport can do. */
enum { DECIDED = OPIPE_TRANSPORT_DIRECT | OPIPE_TRANSPORT_REDUCES | OPIPE_TRANSPORT_EMULATED };

void opi_json_write_link(opi_text *t, const opi_link *link, bool decisions) {
  const uint32_t threads = link->thread_rule < OPI_COUNT(thread_rules) ? link->thread_rule : 0;
  opi_text_printf(t,
                  "{\"rule\": \"%s\", \"threads\": \"%s\", \"flags\": ", opi_rule_name(link->rule),
                  thread_rules[threads]);
  opi_json_write_flags(t, OPI_FLAGS_LINK, decisions ? link->flags & DECIDED : link->flags);
  opi_text_printf(t, ", \"max_ranks\": %u", link->max_ranks);
  if (!decisions) {
    opi_text_puts(t, ", \"latency_ns\": ");
    opi_json_double(t, link->latency_ns);
    opi_text_puts(t, ", \"bytes_per_ns\": ");
    opi_json_double(t, link->bytes_per_ns);
    if (link->queues)
      opi_text_puts(t, ", \"queues\": true");
  }
  opi_text_puts(t, "}");
}

/* Older files do not have it. */
static opipe_status read_queues(const json_t *object, const char *what, bool *out,
                                opipe_error *err) {
  const json_t *value = json_object_get(object, "queues");
  *out = json_is_true(value);
  return value == NULL || json_is_boolean(value)
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "%s: \"queues\" of the link must be true or false",
                        what);
}

opipe_status opi_json_read_link(const json_t *object, const char *what, opi_link *out_link,
                                opipe_error *err) {
  static const double latency_most = 1e15, rate_most = 1e9;
  const char *threads = NULL;
  opi_link *l = out_link;
  if (!json_is_object(object))
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"link\" must be an object", what);
  OPI_TRY(opi_json_get_rule(object, what, &l->rule, err));
  OPI_TRY(opi_json_get_string(object, what, "threads", &threads, err));
  for (l->thread_rule = 0; strcmp(threads, thread_rules[l->thread_rule]) != 0;) {
    if (++l->thread_rule == OPI_COUNT(thread_rules)) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "%s: \"threads\" of the link is '%.40s'; it must be %s or %s", what, threads,
                      thread_rules[0], thread_rules[1]);
    }
  }
  OPI_TRY(opi_json_get_flags(object, what, OPI_FLAGS_LINK, &l->flags, err));
  OPI_TRY(read_u32(object, what, "max_ranks", &l->max_ranks, err));
  OPI_TRY(opi_json_get_number(object, what, "latency_ns", &l->latency_ns, err));
  OPI_TRY(opi_json_get_number(object, what, "bytes_per_ns", &l->bytes_per_ns, err));
  OPI_TRY(read_queues(object, what, &l->queues, err));
  if (!(l->latency_ns >= 0 && l->latency_ns <= latency_most) ||
      !(l->bytes_per_ns >= 0 && l->bytes_per_ns <= rate_most)) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "%s: the link has \"latency_ns\" %g (0 to %g) and \"bytes_per_ns\" %g (0 to %g)", what,
        l->latency_ns, latency_most, l->bytes_per_ns, rate_most);
  }
  return OPIPE_OK;
}

opipe_status opi_json_read_places(const json_t *root, opi_plan *plan, opipe_error *err) {
  enum { DEVICES_MOST = 4096 }; /* in a cluster */
  static const char what[] = "the plan", name[] = "cluster_devices";
  const json_t *list = NULL;
  if (json_object_get(root, name) == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(root, what, name, &list, err));
  if (json_array_size(list) != plan->decided.n_ranks) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" has %zu entries for %u ranks", what, name,
                    json_array_size(list), plan->decided.n_ranks);
  }
  uint32_t *devices = OPI_ARENA_ARRAY(&plan->arena, uint32_t, plan->decided.n_ranks);
  if (devices == NULL)
    return opi_fail_nomem(err, plan->decided.n_ranks * sizeof *devices, "a plan");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const json_t *value = json_array_get(list, r);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= DEVICES_MOST) {
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" of rank %u is not a number from 0 to %d",
                      what, name, r, DEVICES_MOST - 1);
    }
    devices[r] = (uint32_t)json_integer_value(value);
  }
  plan->predicted.cluster_devices = devices;
  return OPIPE_OK;
}
