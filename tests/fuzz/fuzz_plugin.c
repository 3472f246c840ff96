/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what the library reads from plugins: descriptors, tables, the numbers, texts and statuses
 * that slots answer, the options that users pass to them; and files before they are loaded.
 *
 * A plugin is trusted code, so every slot that is not NULL is a real function, and objects are real
 * ones; every number, text and status is whatever the bytes say. No finding of a sanitizer, no
 * hang, no leak; a refusal names the plugin and says why, with a status that is not the library's
 * own fault; what is accepted runs with the bits of the unchanged plugins, or ends with an error
 * that names the plugin.
 */
#include "tests/fuzz/plugin_files.h"
#include "tests/fuzz/plugin_orders.h"
#include "tests/fuzz/plugin_run.h"

__attribute__((destructor)) static void report(void) {
  (void)fprintf(stderr,
                "%llu lists, %llu refusals, %llu orders, %llu plans, %llu runs; %llu files read, "
                "%llu of them refused, %llu loaded\n",
                (unsigned long long)total.listed, (unsigned long long)total.refused,
                (unsigned long long)total.ordered, (unsigned long long)total.planned,
                (unsigned long long)total.ran, (unsigned long long)files.read,
                (unsigned long long)files.refused, (unsigned long long)files.loaded);
}

/* ---- the real plugins ---- */

static const opipe_plugin *real_plugin;

static void choose_real(uint32_t kind, const char *id) {
  real_plugin = NULL;
  for (uint32_t i = 0; opi_static_plugins[i] != NULL; ++i) {
    if (opi_static_plugins[i]->kind == kind && strcmp(opi_static_plugins[i]->id, id) == 0)
      real_plugin = opi_static_plugins[i];
  }
  must(real_plugin != NULL, id);
}

/* ---- the descriptor and the table ---- */

enum { FIRST_SLOT = 8, TABLE_MOST = 4096, OPENING = SLOTS - 1, ASKING = SLOTS - 2 };

/* Choices of the input besides the faults. */
static struct {
  uint64_t table_size; /* 0: what is right */
  uint8_t missing[2];  /* slots that are NULL; SLOTS: none */
  bool no_table;
} odd;

static void fill_table(char *table, size_t room) {
  opipe_backend backend = false_backend;
  opipe_transport transport = false_transport;
  const void *whole = &false_schedule;
  size_t n = sizeof false_schedule;
  if (real_plugin->kind == OPIPE_KIND_BACKEND) {
    fill_void_slots(&backend, NULL);
    whole = &backend;
    n = sizeof backend;
  } else if (real_plugin->kind == OPIPE_KIND_TRANSPORT) {
    fill_void_slots(NULL, &transport);
    whole = &transport;
    n = sizeof transport;
  }
  memset(table, 0, room);
  memcpy(table, whole, n < room ? n : room);
  for (uint32_t i = 0; i < 2; ++i) {
    const size_t at = FIRST_SLOT + odd.missing[i] * sizeof(void *);
    if (odd.missing[i] < SLOTS && at + sizeof(void *) <= room)
      memset(table + at, 0, sizeof(void *));
  }
}

static size_t right_size(void) {
  return real_plugin->kind == OPIPE_KIND_BACKEND     ? sizeof(opipe_backend)
         : real_plugin->kind == OPIPE_KIND_TRANSPORT ? sizeof(opipe_transport)
                                                     : sizeof(opipe_schedule);
}

static opipe_status open_plugin(const opipe_host *to, opipe_instance **out_self, opipe_error *err) {
  const fault *f = next_fault(OPENING);
  if (fails(f))
    return answer(f, err);
  const uint32_t size = (uint32_t)(odd.table_size != 0 ? odd.table_size : right_size());
  const size_t room = size < 4 ? 4 : size > TABLE_MOST ? TABLE_MOST : size;
  opipe_instance *self = malloc(sizeof *self);
  must(self != NULL, "the target has no memory");
  const opipe_status status = real_plugin->open(to, &self->real, err);
  if (status != OPIPE_OK) {
    free(self);
    return status;
  }
  const void *table = NULL;
  if (real_plugin->kind == OPIPE_KIND_BACKEND)
    table = real_backend = real_plugin->get_interface(self->real, OPIPE_BACKEND_ID);
  else if (real_plugin->kind == OPIPE_KIND_TRANSPORT)
    table = real_transport = real_plugin->get_interface(self->real, OPIPE_TRANSPORT_ID);
  else
    table = real_schedule = real_plugin->get_interface(self->real, OPIPE_SCHEDULE_ID);
  must(table != NULL, "a real plugin without a table");
  self->table = malloc(room);
  must(self->table != NULL, "the target has no memory");
  fill_table(self->table, room);
  memcpy(self->table, &size, sizeof size);
  *out_self = self;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  if (self == NULL)
    return;
  real_plugin->close(self->real);
  free(self->table);
  free(self);
}

static const void *get_interface(opipe_instance *self, const char *id) {
  const fault *f = next_fault(ASKING);
  /* A table of another kind than was asked for would be called as what it is not. */
  const bool own = strcmp(id, opi_table_id(real_plugin->kind)) == 0;
  return !own || odd.no_table || fails(f) ? NULL : self->table;
}

/* An id without end in memory that ends where ids must have ended; a summary of any kind. */
static const char *take_text(input *in, const char *right, bool is_id) {
  static const char odd_characters[] = "\x01 \xc3\x28 %s/\\\"\n\x7f\xe2\x80\xae";
  const uint32_t how = take(in, is_id ? 24 : 12);
  char *text = NULL;
  switch (how) {
    case 0:
      return NULL;
    case 1: /* without end */
      text = block(is_id ? 64 : 256);
      memset(text, 'i', is_id ? 64 : 256);
      return text;
    case 2:
      text = block(100001);
      memset(text, 'l', 100000);
      return text;
    case 3:
      text = block(sizeof odd_characters);
      memcpy(text, odd_characters, sizeof odd_characters);
      return text;
    case 4:
      return block(1);
    case 5: { /* bytes */
      const uint32_t n = 1 + take(in, 80);
      text = block(n + 1);
      for (uint32_t i = 0; i < n; ++i)
        text[i] = (char)take8(in);
      return text;
    }
    default:
      return right;
  }
}

static void change_number(input *in, opipe_plugin *p) {
  switch (take(in, 9)) {
    case 0:
      p->magic = (uint32_t)take_number(in, p->magic);
      break;
    case 1:
      p->struct_size = (uint32_t)take_number(in, p->struct_size);
      break;
    case 2:
      p->abi_major = (uint16_t)take_number(in, p->abi_major);
      break;
    case 3:
      p->abi_minor = (uint16_t)take_number(in, p->abi_minor);
      break;
    case 4:
      p->abi_minor_min = (uint16_t)take_number(in, p->abi_minor_min);
      break;
    case 5:
      p->kind = (uint16_t)take_number(in, p->kind);
      break;
    case 6:
      if (take(in, 2) == 0)
        p->n_structs = take(in, p->n_structs + 1);
      else
        p->struct_row_bytes = (uint32_t)take_number(in, p->struct_row_bytes);
      break;
    case 7:
      p->build_flags = (uint32_t)take_number(in, p->build_flags);
      break;
    default:
      p->flags = (uint32_t)take_number(in, p->flags);
  }
}

/* The right descriptor, or one with a few things changed, in memory of the size that it claims (but
 * of no less than its two first numbers, which every descriptor has). */
static const opipe_plugin *make_descriptor(input *in, const char *id) {
  opipe_plugin p = {.magic = OPIPE_PLUGIN_MAGIC,
                    .struct_size = (uint32_t)OPIPE_END(opipe_plugin, get_interface),
                    .abi_major = OPIPE_ABI_MAJOR,
                    .abi_minor = OPIPE_ABI_MINOR,
                    .kind = real_plugin->kind,
                    .structs = real_plugin->structs,
                    .n_structs = real_plugin->n_structs,
                    .struct_row_bytes = real_plugin->struct_row_bytes,
                    .build_flags = OPIPE_BUILD_FLAGS,
                    .id = id,
                    .version = "1.0",
                    .license = "Apache-2.0",
                    .summary = "has faults",
                    .open = open_plugin,
                    .close = close_plugin,
                    .get_interface = get_interface};
  const uint32_t how = take(in, 8);
  for (uint32_t n = how >= 6 ? how - 5 : 0; n > 0; --n)
    change_number(in, &p);
  if (how == 5) {
    p.id = take_text(in, p.id, true);
    p.version = take_text(in, p.version, false);
    p.license = take_text(in, p.license, false);
    p.summary = take_text(in, p.summary, false);
  }
  if (how == 4) {
    const uint32_t lost = take(in, 8);
    p.open = lost == 0 ? NULL : p.open;
    p.close = lost == 1 ? NULL : p.close;
    p.get_interface = lost == 2 ? NULL : p.get_interface;
  }
  const size_t room = p.struct_size < 8            ? 8
                      : p.struct_size > TABLE_MOST ? TABLE_MOST
                                                   : p.struct_size;
  char *copy = block(room);
  memcpy(copy, &p, room < sizeof p ? room : sizeof p);
  return (const opipe_plugin *)(const void *)copy;
}

static void take_faults_of(input *in) {
  static const uint8_t backend[] = {AT(backend, device_query),  AT(backend, device_usage),
                                    AT(backend, buffer_host),   AT(backend, support),
                                    AT(backend, program_info),  AT(backend, program_params),
                                    AT(backend, program_params)};
  static const uint8_t schedule[] = {AT(schedule, options), AT(schedule, layout),
                                     AT(schedule, plan)};
  static const uint8_t transport[] = {AT(transport, info), AT(transport, world_info)};
  const uint32_t n_slots = (uint32_t)((right_size() - FIRST_SLOT) / sizeof(void *));
  if (real_plugin->kind == OPIPE_KIND_BACKEND)
    take_faults(in, backend, (uint32_t)OPI_COUNT(backend), n_slots);
  else if (real_plugin->kind == OPIPE_KIND_TRANSPORT)
    take_faults(in, transport, (uint32_t)OPI_COUNT(transport), n_slots);
  else
    take_faults(in, schedule, (uint32_t)OPI_COUNT(schedule), n_slots);
}

static void take_table(input *in) {
  odd.table_size = 0;
  odd.no_table = false;
  odd.missing[0] = odd.missing[1] = SLOTS;
  const uint32_t how = take(in, 16);
  if (how == 1)
    odd.table_size = take_number(in, right_size());
  if (how == 2)
    odd.table_size = right_size() - take(in, 160);
  if (how == 2 || how == 3 || how == 4) {
    odd.missing[0] = take8(in) % (SLOTS + 1);
    odd.missing[1] = take8(in) % (SLOTS + 1);
  }
  if (how == 5)
    odd.no_table = take(in, 2) == 1;
}

/* ---- options that users write after a plugin's name ---- */

static const char *take_options(input *in, const char *id) {
  static const char *const pieces[] = {
      ":",       "=",      ",",        "kernels", "reference", "latency", "bandwidth",
      "rule",    "tag",    "blocking", "warmup",  "chunks",    "slices",  "order",
      "torch",   "-1",     "0",        "1",       "2",         "1e308",   "99999999999999999999",
      "nan",     "\xff",   " ",        "text",    "more",      "k",       "x=y",
      "threads", "memory", "kkkkk",    "portable"};
  static char text[512];
  const uint32_t n = take(in, 12);
  (void)snprintf(text, sizeof text, "%s%s", id, n > 0 && id[0] != '\0' ? ":" : "");
  for (uint32_t i = 0; i < n; ++i) {
    const size_t used = strlen(text);
    (void)snprintf(text + used, sizeof text - used, "%s",
                   pieces[take(in, (uint32_t)OPI_COUNT(pieces))]);
  }
  return text;
}

/* ---- one input ---- */

static void use(input *in, const char *id) {
  const bool has_options = take(in, 4) == 0;
  const uint32_t n_microbatches = 1 + take(in, 4), cost = take(in, 4) == 0, orders = take(in, 8);
  host h = {.id = id, .backend = "cpu", .schedule = "gpipe", .transport = "local", .threads = 1};
  if (real_plugin->kind == OPIPE_KIND_BACKEND) {
    h.backend = id;
    h.options = has_options ? take_options(in, "") : NULL;
  } else if (real_plugin->kind == OPIPE_KIND_SCHEDULE) {
    h.schedule = has_options ? take_options(in, id) : id;
  } else {
    h.transport = has_options ? take_options(in, id) : id;
  }
  const uint32_t replicas = 1 + take(in, 2), n_ranks = replicas * take(in, 5);
  const uint32_t n_stages = take(in, 5) + (n_ranks == 0);
  const opipe_plugin *plugin = make_descriptor(in, id);
  take_faults_of(in);
  wrong.id = id;
  const opipe_status status = host_open(&h, plugin);
  if (status != OPIPE_OK) {
    must_refuse(status, &h.err, "static plugin");
  } else if (plugin->kind == real_plugin->kind && strcmp(plugin->id, id) == 0) {
    if (orders == 0)
      host_list(&h);
    wrong.struck = 0;
    if (plugin->kind == OPIPE_KIND_SCHEDULE && orders < 5)
      host_order(&h, orders % 4, n_ranks, n_stages, n_microbatches + 1, replicas);
    else
      host_infer(&h, n_microbatches, cost);
    if (orders == 7)
      host_list(&h);
  } else {
    h.id = plugin->id;
    host_list(&h);
  }
  host_close(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "terapipe", "chimera",
                                          "zb-h1", "2bw",  "dualpipev",   "csv",      "zbv"};
  input in = {data, data + size};
  (void)wanted();
  const uint32_t mode = take(&in, 8);
  const bool own_name = take(&in, 2) == 1; /* in the place of the real one */
  if (mode == 0)
    file_read(&in);
  else if (mode < 4)
    choose_real(OPIPE_KIND_BACKEND, "cpu");
  else if (mode < 7)
    choose_real(OPIPE_KIND_SCHEDULE, schedules[take(&in, (uint32_t)OPI_COUNT(schedules))]);
  else
    choose_real(OPIPE_KIND_TRANSPORT, "local");
  if (mode != 0) {
    take_table(&in);
    use(&in, own_name ? real_plugin->id : "faulty");
  }
  forget_blocks();
  return 0;
}
