/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule `search`: its options, and orders without a model. */
#include "partition/study/improve/ask.h"

#include <string.h>

#include "partition/study/improve/named.h"

enum { MOVES_MOST = 1000000000 };

#define TEXT_OF(number) #number
#define AS_TEXT(macro) TEXT_OF(macro)

const char *const opi_search_summary =
    "a better order than that of another schedule, by search; no plugin";

uint32_t opi_search_options(const opipe_schedule_option **out_options) {
  static const opipe_schedule_option options[] = {
      {.key = "moves",
       .help = "orders that are made and timed",
       .preset = AS_TEXT(OPI_IMPROVE_MOVES),
       .min = 1,
       .max = MOVES_MOST,
       .type = 'i'},
      {.key = "seed",
       .help = "of the moves",
       .preset = "0",
       .max = 0x1p63, /* any */
       .type = 'i'},
      {.key = "from",
       .help = "the schedule to begin with, last; else the best there is",
       .type = 't'}};
  *out_options = options;
  return OPI_COUNT(options);
}

/* ---- the request ---- */

static opipe_status take_number(const char *key, const char *value, int64_t least, int64_t most,
                                uint64_t *out, opipe_error *err) {
  int64_t number = 0;
  if (!opi_parse_int(value, least, most, &number)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "schedule 'search': %s=%s is not an integer in [%lld, %lld]", key, value,
                    (long long)least, (long long)most);
  }
  *out = (uint64_t)number;
  return OPIPE_OK;
}

static opipe_status take_option(const char *pair, opi_search_request *io, opipe_error *err) {
  if (strncmp(pair, "moves=", 6) == 0)
    return take_number("moves", pair + 6, 1, MOVES_MOST, &io->effort.moves, err);
  if (strncmp(pair, "seed=", 5) == 0)
    return take_number("seed", pair + 5, 0, INT64_MAX, &io->effort.seed, err);
  return opi_fail(
      err, OPIPE_E_INVALID,
      "schedule 'search' has no option '%s': its options are moves=, seed=, and last from=SCHEDULE",
      pair);
}

opipe_status opi_search_parse(const char *spec, opi_arena *arena, opi_search_request *out,
                              opipe_error *err) {
  *out = (opi_search_request){.from = spec};
  if (spec == NULL || !opi_is_search(spec))
    return OPIPE_OK;
  out->from = NULL;
  for (const char *at = spec[6] == '\0' ? spec + 6 : spec + 7; *at != '\0';) {
    const size_t n = strcspn(at, ",");
    if (strncmp(at, "from=", 5) == 0) {
      out->from = opi_arena_strdup(arena, at + 5);
      if (out->from == NULL)
        return opi_fail_nomem(err, strlen(at), "a schedule's option");
      break;
    }
    const char *pair = opi_arena_strndup(arena, at, n);
    if (pair == NULL)
      return opi_fail_nomem(err, n, "a schedule's option");
    OPI_TRY(take_option(pair, out, err));
    at += n + (at[n] != '\0');
  }
  return opi_is_search(out->from)
             ? opi_fail(err, OPIPE_E_INVALID, "schedule 'search': from=%s is a search itself",
                        out->from)
             : OPIPE_OK;
}

/* ---- orders ---- */

static opipe_status begin_with(const opi_plugins *plugins, opi_question *q,
                               const opi_search_request *request, opi_arena *arena,
                               opi_order **out_order, opipe_error *err) {
  opi_named best;
  q->schedule = request->from;
  if (request->from != NULL) {
    OPI_TRY(opi_order_ask(plugins, q, arena->allocator, out_order, err));
    const opipe_status status = opi_order_limit(*out_order, q, err);
    if (status < 0)
      opi_order_free(*out_order);
    return status;
  }
  q->n_stages = q->n_stages == 0 ? q->n_ranks : q->n_stages;
  q->n_ranks = q->n_ranks == 0 ? q->n_stages : q->n_ranks;
  OPI_TRY(opi_named_best(plugins, q, NULL, arena, &best, err));
  *out_order = best.order;
  return OPIPE_OK;
}

static opipe_status search(const opi_plugins *plugins, const opi_question *question,
                           opi_arena *arena, opi_order **out_order, opi_improved *out_improved,
                           opipe_error *err) {
  opi_question q = *question;
  opi_search_request request;
  opi_order *order = NULL;
  opi_do_list *list = NULL;
  OPI_TRY(opi_search_parse(q.schedule, arena, &request, err));
  OPI_TRY(begin_with(plugins, &q, &request, arena, &order, err));
  const opipe_status status =
      opi_improve_order(&order->problem, order->list, q.costs, &request.effort, arena->allocator,
                        &list, out_improved, err);
  if (status < 0) {
    opi_order_free(order);
    return opi_error_prefix(err, "schedule 'search': ");
  }
  opi_do_list_free(order->list);
  order->list = list;
  *out_order = order;
  return OPIPE_OK;
}

opipe_status opi_search_ask(const opi_plugins *plugins, const opi_question *question, bool always,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opi_improved *out_improved, opipe_error *err) {
  opi_arena arena;
  opi_improved unused;
  opi_improved *improved = out_improved == NULL ? &unused : out_improved;
  *improved = (opi_improved){.moves = 0};
  if (!always && !opi_is_search(question->schedule))
    return opi_order_ask(plugins, question, allocator, out_order, err);
  opi_arena_init(&arena, allocator, 0);
  const opipe_status status = search(plugins, question, &arena, out_order, improved, err);
  opi_arena_release(&arena);
  return status;
}
