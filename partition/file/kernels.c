/* SPDX-License-Identifier: Apache-2.0 */
/* "kernels": {"hash": "..", "tables": [{"backend": "cuda", "fit": "..", "choices": [..]}]} */
#include "partition/file/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const WHAT = "the plan's kernels";
enum { TABLES_MOST = 64, KERNELS_MOST = 1 << 20 };

/* ---- writing ---- */

static void write_kernel(opi_text *t, const opipe_kernel *kernel) {
  opi_text_puts(t, "        {\"what\": ");
  opi_text_json(t, kernel->what);
  opi_text_puts(t, ",\n         \"choice\": ");
  opi_text_json(t, kernel->choice);
  opi_text_printf(t, ", \"tried\": %u, \"dropped\": %u, \"own_ns\": ", kernel->n_tried,
                  kernel->n_dropped);
  opi_json_double(t, kernel->own_ns);
  opi_text_puts(t, ", \"ns\": ");
  opi_json_double(t, kernel->ns);
  opi_text_puts(t, "}");
}

void opi_json_write_kernels(opi_text *t, const opi_plan *plan) {
  const opi_kernels *k = plan->predicted.kernels;
  if (k == NULL)
    return;
  opi_text_printf(t, ",\n  \"kernels\": {\n    \"hash\": \"%016" PRIx64 "%016" PRIx64 "\",\n",
                  k->hash[0], k->hash[1]);
  opi_text_puts(t, "    \"tables\": [");
  for (uint32_t i = 0; i < k->n; ++i) {
    const opi_kernel_table *table = &k->tables[i];
    opi_text_puts(t, i == 0 ? "\n      {\"backend\": " : ",\n      {\"backend\": ");
    opi_text_json(t, table->backend);
    opi_text_puts(t, ", \"fit\": ");
    opi_text_json(t, table->fit);
    opi_text_puts(t, ", \"choices\": [");
    for (uint32_t c = 0; c < table->n; ++c) {
      opi_text_puts(t, c == 0 ? "\n" : ",\n");
      write_kernel(t, &table->kernels[c]);
    }
    opi_text_puts(t, "\n      ]}");
  }
  opi_text_puts(t, "\n    ]\n  }");
}

/* ---- reading ---- */

/* Reads a string without line breaks, as backends write them. */
static opipe_status read_line(const json_t *object, const char *name, char *out, size_t room,
                              opipe_error *err) {
  const char *text = NULL;
  OPI_TRY(opi_json_get_string(object, WHAT, name, &text, err));
  for (const char *at = text; *at != '\0'; ++at) {
    if ((unsigned char)*at < ' ')
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" has more than one line", WHAT, name);
  }
  if (strlen(text) >= room) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" has %zu bytes, at most %zu", WHAT, name,
                    strlen(text), room - 1);
  }
  (void)snprintf(out, room, "%s", text);
  return OPIPE_OK;
}

static opipe_status read_kernel(const json_t *object, opipe_kernel *out, opipe_error *err) {
  uint64_t tried = 0, dropped = 0;
  *out = (opipe_kernel){.struct_size = (uint32_t)OPIPE_END(opipe_kernel, choice)};
  OPI_TRY(read_line(object, "what", out->what, sizeof out->what, err));
  OPI_TRY(read_line(object, "choice", out->choice, sizeof out->choice, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "tried", UINT32_MAX, &tried, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "dropped", tried, &dropped, err));
  out->n_tried = (uint32_t)tried;
  out->n_dropped = (uint32_t)dropped;
  OPI_TRY(opi_json_time(json_object_get(object, "own_ns"), WHAT, "own_ns", &out->own_ns, err));
  return opi_json_time(json_object_get(object, "ns"), WHAT, "ns", &out->ns, err);
}

static opipe_status read_table(const json_t *object, opi_plan *plan, opi_kernel_table *out,
                               opipe_error *err) {
  const json_t *list = NULL;
  char backend[64], fit[OPI_KERNELS_FIT_ROOM];
  OPI_TRY(read_line(object, "backend", backend, sizeof backend, err));
  OPI_TRY(read_line(object, "fit", fit, sizeof fit, err));
  OPI_TRY(opi_json_get_array(object, WHAT, "choices", &list, err));
  const size_t n = json_array_size(list);
  if (n == 0 || n > KERNELS_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: a table of %zu choices; it must have 1 to %d", WHAT,
                    n, KERNELS_MOST);
  }
  opipe_kernel *kernels = OPI_ARENA_ARRAY(&plan->arena, opipe_kernel, n);
  out->backend = opi_arena_strdup(&plan->arena, backend);
  out->fit = opi_arena_strdup(&plan->arena, fit);
  if (kernels == NULL || out->backend == NULL || out->fit == NULL)
    return opi_fail_nomem(err, n * sizeof *kernels, WHAT);
  for (size_t i = 0; i < n; ++i)
    OPI_TRY(read_kernel(json_array_get(list, i), &kernels[i], err));
  out->kernels = kernels;
  out->n = (uint32_t)n;
  return OPIPE_OK;
}

static opipe_status check_hash(const json_t *root, const opi_kernels *kernels, opipe_error *err) {
  const char *hash = NULL;
  char own[40];
  OPI_TRY(opi_json_get_string(root, WHAT, "hash", &hash, err));
  (void)snprintf(own, sizeof own, "%016" PRIx64 "%016" PRIx64, kernels->hash[0], kernels->hash[1]);
  return strcmp(hash, own) == 0
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID,
                        "%s: \"hash\" is %.40s, but the choices hash to %s: they were changed",
                        WHAT, hash, own);
}

opipe_status opi_json_read_kernels(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *object = json_object_get(root, "kernels"), *list = NULL;
  if (object == NULL)
    return OPIPE_OK;
  if (!json_is_object(object))
    return opi_fail(err, OPIPE_E_INVALID, "the plan: \"kernels\" must be an object");
  OPI_TRY(opi_json_get_array(object, WHAT, "tables", &list, err));
  const size_t n = json_array_size(list);
  if (n == 0 || n > TABLES_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %zu tables; there must be 1 to %d", WHAT, n,
                    TABLES_MOST);
  }
  opi_kernels *kernels = OPI_ARENA_NEW(&plan->arena, opi_kernels);
  opi_kernel_table *tables = OPI_ARENA_ARRAY(&plan->arena, opi_kernel_table, n);
  if (kernels == NULL || tables == NULL)
    return opi_fail_nomem(err, n * sizeof *tables, WHAT);
  for (size_t i = 0; i < n; ++i)
    OPI_TRY(read_table(json_array_get(list, i), plan, &tables[i], err));
  kernels->tables = tables;
  kernels->n = (uint32_t)n;
  opi_kernels_hash(kernels);
  plan->predicted.kernels = kernels;
  return check_hash(object, kernels, err);
}
