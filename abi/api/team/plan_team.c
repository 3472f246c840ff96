/* SPDX-License-Identifier: Apache-2.0 */
/* One plan for all processes of a team: each tells of its devices and of what it was asked for,
 * process 0 makes the plan, all read it.
 *
 *   all        model, params as text, devices ──►  "plan: devices": all compare with process 0
 *   process 0  makes the plan, or refuses     ──►  "plan": its bytes
 *   others     read it for their own model    ──►  "plan: read": one refusal is everybody's
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "abi/api/team/plan_team.h"
#include "loader/base/cores.h"

/* A process's part; then its params as text [n_text], and told devices. */
typedef struct part_head {
  uint64_t fingerprint[2], file_bytes, external_bytes;
  uint64_t mask; /* of its cores */
  uint32_t cores, n_text, n_told, reserved;
} part_head;

/* A device of the list as a process sees it; then its kind, options and reason, each terminated. */
typedef struct told_head {
  opipe_device_info info;
  uint64_t memory_bytes;
  uint32_t index, threads, n_kind, n_options, n_reason;
  int32_t status; /* why it cannot be asked */
} told_head;

typedef struct told {
  opipe_device_choice choice;
  opipe_device_info info;
  int32_t status;
  const char *reason;
} told;

typedef struct joint {
  opi_team_object *team;
  opi_model_object *model;
  const opipe_plan_params *params;
  opipe_team_info info;
  opi_arena arena;  /* all below */
  const char *text; /* of process 0 */
  part_head first;  /* the same */
  told **devices;   /* [size][n_devices] process 0's: what each has told */
  part_head *heads; /* [size] the same */
  uint32_t n_devices;
  opipe_error why; /* the first difference, which all find */
  opipe_error own; /* why this process cannot go on, which the others do not know */
} joint;

/* ---- where ranks are ---- */

opipe_status opi_places_check(const uint32_t *places, uint32_t n_places, uint32_t n_ranks,
                              uint32_t size, opipe_error *err) {
  if (n_places == 0) {
    return n_ranks % size == 0 && n_ranks != 0
               ? OPIPE_OK
               : opi_fail(err, OPIPE_E_INVALID,
                          "the plan has %u ranks, the team %u processes: make a plan with a "
                          "multiple of %u, or say which ranks each process has",
                          n_ranks, size, size);
  }
  if (n_places != n_ranks) {
    return opi_fail(err, OPIPE_E_INVALID, "the places of %u ranks are given, the plan has %u",
                    n_places, n_ranks);
  }
  for (uint32_t r = 0; r < n_ranks; ++r) {
    if (places[r] >= size) {
      return opi_fail(err, OPIPE_E_INVALID, "rank %u is placed in process %u, the team has %u", r,
                      places[r], size);
    }
  }
  for (uint32_t w = 0; w < size; ++w) {
    uint32_t r = 0;
    while (r < n_ranks && places[r] != w)
      ++r;
    if (r == n_ranks) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "no rank is placed in process %u: each of %u processes needs one", w, size);
    }
  }
  return OPIPE_OK;
}

/* ---- a process's own part ---- */

/* The device of the list that a process takes when no number is given. */
static opipe_status choose_index(const joint *j, opi_device_spec *io_spec, opipe_error *err) {
  const opi_plugins *plugins = &j->model->context->plugins;
  opi_backend_ref backend;
  uint32_t count = 0;
  if (io_spec->index != OPIPE_NONE || strchr(io_spec->kind, ':') != NULL)
    return OPIPE_OK;
  OPI_TRY(plugins->backend(plugins->ctx, io_spec->kind, &backend, err));
  OPI_TRY(OPI_ASK("backend", &backend, device_count, err, backend.self, &count));
  if (count == 0)
    return opi_fail(err, OPIPE_E_NOTFOUND, "backend '%s' has no device", io_spec->kind);
  io_spec->index = j->info.local_rank % count;
  return OPIPE_OK;
}

static void add_device(const joint *j, uint32_t entry, opi_text *out) {
  const opi_plan_env env = opi_api_plan_env(j->model, &j->model->options);
  opipe_device_choice choice = {.kind = "cpu"};
  opipe_error why = OPIPE_ERROR_INIT;
  told_head head = {.info = {.struct_size = (uint32_t)sizeof head.info}};
  if (j->params->n_devices != 0)
    opi_array_get(j->params->devices, j->params->devices_stride, entry, &choice, sizeof choice);
  opi_device_spec spec = {.kind = choice.kind, .index = choice.index};
  const char *options = choice.options == NULL ? "" : choice.options;
  head.status = choose_index(j, &spec, &why);
  if (head.status == OPIPE_OK)
    head.status = opi_device_answer(&env, &spec, &head.info, &why);
  head.memory_bytes = choice.memory_bytes;
  head.index = spec.index;
  head.threads = choice.threads;
  head.n_kind = (uint32_t)strlen(spec.kind) + 1;
  head.n_options = (uint32_t)strlen(options) + 1;
  head.n_reason = (uint32_t)strlen(why.message) + 1;
  opi_text_add(out, (const char *)&head, sizeof head);
  opi_text_add(out, spec.kind, head.n_kind);
  opi_text_add(out, options, head.n_options);
  opi_text_add(out, why.message, head.n_reason);
}

static opipe_status make_part(const joint *j, opi_text *out, opipe_error *err) {
  const opipe_allocator *allocator = &j->model->context->allocator;
  const opi_model *file = j->model->file;
  part_head head = {.file_bytes = file->file_bytes,
                    .external_bytes = file->external_bytes,
                    .mask = opi_cores_mask(),
                    .cores = j->model->context->cores,
                    .n_told = j->n_devices};
  opi_text text;
  opi_text_init(&text, allocator);
  opi_plan_params_write(j->params, &text);
  opi_model_fingerprint(file, head.fingerprint);
  head.n_text = (uint32_t)text.n;
  opi_text_add(out, (const char *)&head, sizeof head);
  opi_text_add(out, text.data, text.n);
  for (uint32_t e = 0; e < j->n_devices; ++e)
    add_device(j, e, out);
  const bool failed = text.failed || out->failed;
  opi_text_release(&text);
  return failed ? opi_fail_nomem(err, 0, "a plan's devices") : OPIPE_OK;
}

/* ---- parts of other processes ---- */

static opipe_status bad_part(uint32_t process, opipe_error *err) {
  return opi_fail(err, OPIPE_E_INVALID, "plan_make: process %u tells of its devices in other words",
                  process);
}

/* A terminated text of n bytes; NULL: it is none. */
static const char *take_text(const uint8_t **io_at, const uint8_t *end, uint32_t n) {
  const char *text = (const char *)*io_at;
  if (n == 0 || n > (size_t)(end - *io_at) || memchr(text, '\0', n) != text + n - 1)
    return NULL;
  *io_at += n;
  return text;
}

static opipe_status take_told(joint *j, uint32_t process, const part_head *whole, const uint8_t *at,
                              const uint8_t *end, opipe_error *err) {
  const uint32_t n = whole->n_told;
  told *list = OPI_ARENA_ARRAY(&j->arena, told, n);
  if (list == NULL)
    return opi_fail_nomem(err, n * sizeof *list, "devices");
  if (n != j->n_devices)
    return bad_part(process, err);
  for (uint32_t e = 0; e < n; ++e) {
    told_head head;
    if (sizeof head > (size_t)(end - at))
      return bad_part(process, err);
    memcpy(&head, at, sizeof head);
    at += sizeof head;
    const char *kind = take_text(&at, end, head.n_kind);
    const char *options = kind == NULL ? NULL : take_text(&at, end, head.n_options);
    const char *reason = options == NULL ? NULL : take_text(&at, end, head.n_reason);
    if (reason == NULL)
      return bad_part(process, err);
    list[e] = (told){.choice = {.kind = kind,
                                .options = options,
                                .memory_bytes = head.memory_bytes,
                                .index = head.index,
                                .threads = head.threads},
                     .info = head.info,
                     .status = head.status,
                     .reason = reason};
    list[e].info.struct_size = (uint32_t)sizeof list[e].info;
  }
  j->devices[process] = list;
  j->heads[process] = *whole;
  return OPIPE_OK;
}

/* The first line that differs. */
static opipe_status compare_text(const char *first, const char *own, uint32_t process,
                                 opipe_error *err) {
  while (*first != '\0' || *own != '\0') {
    const size_t n = strcspn(first, "\n"), k = strcspn(own, "\n");
    if (n != k || memcmp(first, own, n) != 0) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "plan_make: process 0 asks for %.*s, process %u for %.*s: all processes need "
                      "the same options",
                      (int)(n > 150 ? 150 : n), first, process, (int)(k > 150 ? 150 : k), own);
    }
    first += n + (first[n] == '\n' ? 1 : 0);
    own += k + (own[k] == '\n' ? 1 : 0);
  }
  return OPIPE_OK;
}

static opipe_status compare_part(joint *j, uint32_t process, const uint8_t *data, uint64_t n,
                                 opipe_error *err) {
  part_head own;
  if (n < sizeof own)
    return bad_part(process, err);
  memcpy(&own, data, sizeof own);
  const uint8_t *at = data + sizeof own;
  const char *text = take_text(&at, data + n, own.n_text);
  if (text == NULL)
    return bad_part(process, err);
  if (process == 0) {
    j->first = own;
    j->text = text;
  }
  const uint64_t *a = j->first.fingerprint, *b = own.fingerprint;
  if (memcmp(a, b, sizeof own.fingerprint) != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "plan_make: process 0 has model %016" PRIx64 "%016" PRIx64
                    ", process %u %016" PRIx64 "%016" PRIx64 ": all processes need the same model",
                    a[0], a[1], process, b[0], b[1]);
  }
  if (own.file_bytes != j->first.file_bytes || own.external_bytes != j->first.external_bytes) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "plan_make: the model has %" PRIu64 " bytes and %" PRIu64
                    " in other files in process 0, %" PRIu64 " and %" PRIu64
                    " in process %u: all processes need the same model",
                    j->first.file_bytes, j->first.external_bytes, own.file_bytes,
                    own.external_bytes, process);
  }
  OPI_TRY(compare_text(j->text, text, process, err));
  if (j->info.rank == 0)
    (void)take_told(j, process, &own, at, data + n, &j->own);
  return OPIPE_OK;
}

/* All processes see the parts in one order, so each finds the same difference. */
static opipe_status take_part(void *ctx, uint32_t process, const void *data, uint64_t n) {
  joint *j = ctx;
  const uint8_t *kept = opi_arena_copy(&j->arena, data, n);
  if (j->why.status != OPIPE_OK || j->own.status != OPIPE_OK)
    return OPIPE_OK;
  if (kept == NULL)
    (void)opi_fail_nomem(&j->own, n, "a plan's devices");
  else
    (void)compare_part(j, process, kept, n, &j->why);
  return OPIPE_OK;
}

/* ---- the three calls ---- */

static opipe_status gather(const joint *j, opipe_gather_params *call, opipe_status own,
                           opipe_error *err) {
  const opipe_error why = own < 0 && err != NULL ? *err : (opipe_error)OPIPE_ERROR_INIT;
  call->struct_size = (uint32_t)sizeof *call;
  call->timeout_ns = UINT64_MAX;
  call->refused = own < 0 ? own : OPIPE_OK;
  call->reason = why.message;
  return opi_team_gather(j->team->team, call, err);
}

static uint32_t process_of(const joint *j, uint32_t rank, uint32_t n_ranks) {
  const opipe_plan_params *p = j->params;
  return p->n_places == 0 ? rank / (n_ranks / j->info.size) : p->places[rank];
}

/* Compute threads of a rank whose device says nothing: processes with the same cores share them
 * out between their ranks. */
static uint32_t share_of_cores(const joint *j, uint32_t process, uint32_t n_ranks) {
  const part_head *own = &j->heads[process];
  uint32_t n = 0;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    const uint32_t other = process_of(j, r, n_ranks);
    n += other == process || (own->mask != 0 && j->heads[other].mask == own->mask) ? 1 : 0;
  }
  return n == 0 || own->cores / n == 0 ? 1 : own->cores / n;
}

/* A device of a rank, as its own process told. */
static opipe_status find_told(const void *ctx, uint32_t rank, uint32_t n_ranks, uint32_t entry,
                              opipe_device_choice *out_choice, opipe_device_info *out_info,
                              opipe_error *err) {
  const joint *j = ctx;
  const opipe_plan_params *p = j->params;
  OPI_TRY(opi_places_check(p->places, p->n_places, n_ranks, j->info.size, err));
  const uint32_t process = process_of(j, rank, n_ranks);
  const told *device = &j->devices[process][entry];
  if (device->status < 0) {
    return opi_fail(err, device->status, "rank %u of process %u: %s", rank, process,
                    device->reason);
  }
  *out_choice = device->choice;
  *out_info = device->info;
  if (out_choice->threads == 0 && out_info->max_threads != 0)
    out_choice->threads = share_of_cores(j, process, n_ranks);
  return OPIPE_OK;
}

/* *out_all: all processes fail alike. */
static opipe_status tell_devices(joint *j, opipe_status own, bool *out_all, opipe_error *err) {
  opi_text part;
  opi_text_init(&part, &j->model->context->allocator);
  if (own == OPIPE_OK)
    own = make_part(j, &part, err);
  opipe_gather_params call = {.name = "plan: devices",
                              .data = part.data,
                              .n_bytes = own < 0 ? 0 : part.n,
                              .part = take_part,
                              .part_ctx = j};
  opipe_status status = gather(j, &call, own, err);
  opi_text_release(&part);
  const opipe_error *why = j->own.status < 0 ? &j->own : &j->why;
  *out_all = status < 0 || why == &j->why;
  if (status == OPIPE_OK && why->status < 0)
    status = opi_fail(err, why->status, "%s", why->message);
  return status;
}

static opipe_status take_plan(void *ctx, uint32_t process, const void *data, uint64_t n) {
  (void)process;
  return opi_text_take(ctx, data, n);
}

/* Process 0 gives its plan; the others get it in *io_plan. made: why this process has none, or
 * takes none. */
static opipe_status share(const joint *j, opipe_status made, opi_plan_object **io_plan,
                          opipe_error *err) {
  const bool gives = j->info.rank == 0;
  opi_text bytes, got;
  opi_text_init(&bytes, &j->model->context->allocator);
  opi_text_init(&got, &j->model->context->allocator);
  if (gives && made == OPIPE_OK)
    made = opi_plan_write((*io_plan)->plan, opi_text_take, &bytes, err);
  opipe_gather_params call = {.name = "plan",
                              .flags = OPIPE_GATHER_ROOT,
                              .data = bytes.data,
                              .n_bytes = made < 0 ? 0 : bytes.n,
                              .part = gives ? NULL : take_plan,
                              .part_ctx = &got};
  opipe_status status = gather(j, &call, made, err);
  if (status == OPIPE_OK) {
    opipe_gather_params read = {.name = "plan: read"};
    opipe_status own = OPIPE_OK;
    if (!gives)
      own = opi_plan_read_object(j->model, got.data, got.n, io_plan, err);
    status = gather(j, &read, own, err);
  }
  opi_text_release(&bytes);
  opi_text_release(&got);
  return status;
}

static opipe_status begin(joint *j, opipe_team *handle, opi_model_object *model,
                          opi_entry *out_entry, opipe_error *err) {
  OPI_TRY(opi_handle_enter(handle, OPI_HANDLE_TEAM, "plan_make", out_entry, err));
  j->team = out_entry->object;
  j->model = model;
  opi_team_info(j->team->team, &j->info);
  opi_arena_init(&j->arena, &model->context->allocator, 0);
  return OPIPE_OK;
}

static opipe_status make_together(joint *j, const opi_applied *as, opi_plan_object **out_plan,
                                  opipe_error *err) {
  const opi_devices_told from = {.ctx = j, .find = find_told};
  const opipe_plan_params *p = j->params;
  const bool described = p->n_descriptions != 0 || p->cluster != NULL;
  opipe_status status = OPIPE_OK;
  bool all = false;
  j->n_devices = described ? 0 : p->n_devices == 0 ? 1 : p->n_devices;
  j->devices = OPI_ARENA_ARRAY(&j->arena, told *, j->info.size);
  j->heads = OPI_ARENA_ARRAY(&j->arena, part_head, j->info.size);
  if (j->devices == NULL || j->heads == NULL)
    status = opi_fail_nomem(err, j->info.size * sizeof *j->devices, "devices");
  status = tell_devices(j, status, &all, err);
  if (status < 0 && all)
    return status;
  if (status == OPIPE_OK && j->info.rank == 0) {
    status = opi_plan_make_object(j->model, p, as, described ? NULL : &from, out_plan, err);
    if (status == OPIPE_OK) {
      status = opi_places_check(p->places, p->n_places, (*out_plan)->plan->decided.n_ranks,
                                j->info.size, err);
    }
  }
  return share(j, status, out_plan, err);
}

opipe_status opi_plan_make_together(opi_model_object *model, const opipe_plan_params *params,
                                    const opi_applied *as, opi_plan_object **out_plan,
                                    opipe_error *err) {
  joint j = {.params = params, .why = OPIPE_ERROR_INIT, .own = OPIPE_ERROR_INIT};
  opi_entry in;
  *out_plan = NULL;
  OPI_TRY(begin(&j, params->team, model, &in, err));
  const uint32_t *places = params->n_places == 0 ? NULL : params->places;
  opipe_status status = make_together(&j, as, out_plan, err);
  if (status == OPIPE_OK)
    status = opi_plan_place(*out_plan, places, j.info.size, err);
  opi_arena_release(&j.arena);
  opi_handle_leave(&in);
  if (status < 0) {
    opi_plan_unref(*out_plan);
    *out_plan = NULL;
  }
  return status;
}

/* ---- plans made otherwise ---- */

static opipe_status check_share(const opipe_share_params *p, const opipe_team_info *info,
                                opipe_error *err) {
  if (p->refused > 0 || p->refused < OPIPE_E_INTERNAL) {
    return opi_fail(err, OPIPE_E_INVALID, "plan_share: refused is %d, which is no error",
                    (int)p->refused);
  }
  if (info->rank != 0 && (p->plan != NULL || p->refused != OPIPE_OK)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "plan_share: process %u gives a plan or refuses: only process 0 does",
                    info->rank);
  }
  if (info->rank == 0 && p->plan == NULL && p->refused == OPIPE_OK)
    return opi_fail(err, OPIPE_E_INVALID, "plan_share: process 0 has no plan, and no reason");
  return OPIPE_OK;
}

static opipe_status share_given(joint *j, const opipe_share_params *p, opi_plan_object **out_plan,
                                opipe_error *err) {
  opi_entry in;
  opipe_status made = check_share(p, &j->info, err);
  if (made == OPIPE_OK && p->refused < 0)
    made = opi_fail(err, p->refused, "%s", p->reason == NULL ? "" : p->reason);
  if (made == OPIPE_OK && p->plan != NULL) {
    made = opi_handle_enter(p->plan, OPI_HANDLE_PLAN, "plan_share", &in, err);
    if (made == OPIPE_OK) {
      *out_plan = in.object;
      opi_ref(&(*out_plan)->refs);
      opi_handle_leave(&in);
    }
  }
  return share(j, made, out_plan, err);
}

opipe_status opi_api_plan_share(opi_model_object *model, const opipe_share_params *params,
                                opipe_plan **out_plan, opipe_error *err) {
  opipe_share_params own = {.struct_size = (uint32_t)sizeof own};
  joint j = {.why = OPIPE_ERROR_INIT, .own = OPIPE_ERROR_INIT};
  opi_plan_object *plan = NULL;
  opi_entry in;
  if (params == NULL || out_plan == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "plan_share: an argument is NULL");
  OPI_TRY(opi_params_read(&opi_struct_share_params, "plan_share", params, &own, err));
  OPI_TRY(begin(&j, own.team, model, &in, err));
  opipe_status status = share_given(&j, &own, &plan, err);
  opi_arena_release(&j.arena);
  opi_handle_leave(&in);
  if (status < 0) {
    opi_plan_unref(plan);
    return status;
  }
  return opi_plan_hand_out(plan, out_plan, err);
}
