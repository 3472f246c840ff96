/* SPDX-License-Identifier: Apache-2.0 */
/* The proof: executes the list under the rule's own waiting, in no particular time. Events stay
 * once they happened, so the order in which ranks go cannot change how far each one gets, and one
 * execution stands for all. Each action is examined once, and again each time its rank is woken. */
#include "partition/schedule/proof.h"

#include <stdio.h>
#include <string.h>

#include "partition/schedule/events.h"

enum { BODIES = 2 };

typedef struct runner {
  opi_prover v;
  /* events: unit phases of every mini-batch, then messages sent, messages received, reductions
   * (SCATTER as REDUCE), gathers */
  uint8_t *happened;
  uint32_t *sleeper;   /* [n_sleepers] first rank in the bucket of its event */
  uint32_t n_sleepers; /* a power of 2 */
  uint64_t first_sent, first_received, first_reduced, first_gathered, n_events;
  uint32_t *next_sleeper; /* [n_ranks] */
  uint64_t *waits_for;    /* [n_ranks] event */
  uint32_t *next;         /* [n_ranks] item */
  uint32_t *stopped;      /* [n_ranks] waiting item: the next one, or the second of its pair */
  uint32_t *grouped_to;   /* [n_ranks] messages below this item have been started */
  uint32_t *stack;        /* [n_ranks] runnable ranks */
  uint32_t n_stack;
  uint32_t *steps_done;   /* [n_ranks] STEPs */
  uint32_t *weights_left; /* [n_steps * instances] backwards still to come */
  uint8_t *has_reduce;    /* [instances] SUMMED or SCATTERED; 0: neither */
  bool *has_gather;       /* [instances] */
  bool any_reduce, any_step;
} runner;

enum { SUMMED = 1, SCATTERED = 2 };
#define NO_EVENT UINT64_MAX

OPIPE_PRINTF(3, 4)
static opipe_status refuse(const runner *r, uint32_t item, const char *fmt, ...) {
  char why[300];
  const opi_do_place place = opi_prover_place(&r->v, item);
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  return opi_fail(r->v.err, OPIPE_E_INVALID, "%s: %s", place.text, why);
}

/* ---- events ---- */

static uint64_t phase_event(const runner *r, uint32_t step, uint32_t stage, uint32_t replica,
                            uint32_t microbatch, uint32_t slice, uint32_t part, uint32_t phase) {
  const opi_index *x = &r->v.index;
  return ((uint64_t)step * x->n_units + opi_unit(x, stage, replica, microbatch, slice, part)) *
             OPI_PHASES +
         phase;
}

static uint64_t reduce_event(const runner *r, uint32_t step, uint32_t instance) {
  const opi_problem *p = r->v.problem;
  return r->first_reduced + (uint64_t)step * p->n_stages * p->n_replicas + instance;
}

static uint64_t gather_event(const runner *r, uint32_t step, uint32_t instance) {
  return reduce_event(r, step, instance) + r->first_gathered - r->first_reduced;
}

static bool is_sum(const opi_do *a) {
  return a->kind == OPI_DO_REDUCE || a->kind == OPI_DO_SCATTER;
}

static uint32_t instance_of(const runner *r, const opi_do *a) {
  return a->stage * r->v.problem->n_replicas + a->replica;
}

static bool meets(const runner *r) {
  return r->v.rule == OPI_RULE_BLOCKING || r->v.rule == OPI_RULE_GROUPED;
}

static uint64_t first_missing(const runner *r, uint64_t event) {
  return r->happened[event] ? NO_EVENT : event;
}

/* Whether an action can compute: the first missing event. */
typedef struct question {
  const runner *r;
  uint32_t step;
  uint64_t missing;
} question;

/* An input from another rank is there once it has been sent or, if both ends meet, received. */
static bool is_there(void *ctx, const opi_do *a, const opi_need *need) {
  question *q = ctx;
  const runner *r = q->r;
  const opi_problem *p = r->v.problem;
  const bool forward = need->phase == OPI_PHASE_F;
  uint64_t event;
  if (need->replica == OPIPE_NONE)
    return true; /* opi_pass_check has verified it */
  if (need->edge == OPIPE_NONE || opi_problem_rank(p, need->stage, need->replica) ==
                                      opi_problem_rank(p, a->stage, a->replica)) {
    event = phase_event(r, q->step, need->stage, need->replica, a->microbatch, need->slice,
                        need->part, need->phase);
  } else {
    const uint64_t m = opi_message_index(
        &r->v, q->step, need->edge, forward, a->microbatch, need->slice, need->part,
        forward ? need->replica : a->replica, forward ? a->replica : need->replica);
    event = r->first_received + m;
    if (r->happened[event] && !meets(r))
      event = r->first_sent + m;
  }
  q->missing = first_missing(r, event);
  return q->missing == NO_EVENT;
}

static uint64_t compute_needs(const runner *r, uint32_t item) {
  question q = {r, opi_step_of(&r->v, item), NO_EVENT};
  (void)opi_each_need(&r->v.index, &r->v.list->items[item], is_there, &q);
  return q.missing;
}

/* The event of a message's consumer, or of its producer. */
static uint64_t end_event(const runner *r, uint32_t item, bool consumer) {
  const opi_do *a = &r->v.list->items[item];
  const bool forward = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_RECV_F;
  const bool sends = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
  const opi_stage_edge edge = r->v.problem->edges[a->edge];
  const uint32_t stage = forward == consumer ? edge.dst : edge.src;
  const uint32_t replica = sends != consumer ? a->replica : a->peer;
  return phase_event(r, opi_step_of(&r->v, item), stage, replica, a->microbatch, a->slice, a->part,
                     forward ? OPI_PHASE_F : OPI_PHASE_I);
}

static uint64_t message_needs(const runner *r, uint32_t item) {
  const opi_do *a = &r->v.list->items[item];
  const uint64_t m = opi_message_of(&r->v, item);
  const bool sends = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
  if (sends) {
    const uint64_t made = first_missing(r, end_event(r, item, false));
    if (made != NO_EVENT)
      return made;
    if (r->v.send_before != NULL && r->v.send_before[m] != OPIPE_NONE &&
        !r->happened[r->first_received + r->v.send_before[m]])
      return r->first_received + r->v.send_before[m];
  } else if (r->v.recv_before != NULL && r->v.recv_before[m] != OPIPE_NONE) {
    const uint64_t used = first_missing(r, end_event(r, r->v.recv_item[r->v.recv_before[m]], true));
    if (used != NO_EVENT)
      return used;
  }
  if (!meets(r))
    return NO_EVENT;
  return first_missing(r, (sends ? r->first_received : r->first_sent) + m);
}

/* The first reduction of a stage's replicas that has not begun. */
static uint64_t reduction_missing(const runner *r, uint32_t step, uint32_t stage) {
  const opi_problem *p = r->v.problem;
  for (uint32_t k = 0; k < p->n_replicas; ++k) {
    const uint32_t instance = stage * p->n_replicas + k;
    if (r->has_reduce[instance] == 0)
      continue;
    if (!r->happened[reduce_event(r, step, instance)])
      return reduce_event(r, step, instance);
  }
  return NO_EVENT;
}

/* A reduction starts at its place and runs in the background; the step waits for it. */
static uint64_t step_needs(const runner *r, uint32_t rank, uint32_t item) {
  const opi_problem *p = r->v.problem;
  uint64_t event = NO_EVENT;
  for (uint32_t k = 0; event == NO_EVENT && k < p->n_stages * p->n_replicas; ++k) {
    if (p->instance_rank[k] == rank && r->has_reduce[k] != 0)
      event = reduction_missing(r, opi_step_of(&r->v, item), k / p->n_replicas);
  }
  return event;
}

/* The first member of the group that has not come; a rank blocks until all have. */
static uint64_t gather_needs(const runner *r, uint32_t item) {
  const opi_problem *p = r->v.problem;
  const opi_do *a = &r->v.list->items[item];
  uint64_t event = NO_EVENT;
  for (uint32_t k = 0; event == NO_EVENT && k < p->n_replicas; ++k) {
    if (opi_problem_rank(p, a->stage, k) != OPIPE_NONE) {
      event =
          first_missing(r, gather_event(r, opi_step_of(&r->v, item), a->stage * p->n_replicas + k));
    }
  }
  return event;
}

/* The inputs of a collective in front of its pass must have come. */
static uint64_t group_needs(const runner *r, uint32_t rank, uint32_t item) {
  const uint32_t pass = opi_do_group_is_before(r->v.list->items[item].kind)
                            ? opi_group_pass(r->v.list, rank, item)
                            : OPIPE_NONE;
  return pass == OPIPE_NONE ? NO_EVENT : compute_needs(r, pass);
}

static uint64_t free_needs(const runner *r, uint32_t item) {
  const opi_do *a = &r->v.list->items[item];
  uint64_t event = NO_EVENT;
  for (uint32_t part = 0; event == NO_EVENT && part < r->v.problem->n_parts; ++part) {
    event = first_missing(r, phase_event(r, opi_step_of(&r->v, item), a->stage, a->replica,
                                         a->microbatch, a->slice, part, OPI_PHASE_W));
  }
  return event;
}

/* The first event that keeps an action from proceeding. */
static uint64_t needs(const runner *r, uint32_t rank, uint32_t item) {
  const opi_do *a = &r->v.list->items[item];
  switch (a->kind) {
    case OPI_DO_F:
    case OPI_DO_B:
    case OPI_DO_I:
      return compute_needs(r, item);
    case OPI_DO_SEND_F:
    case OPI_DO_SEND_B:
    case OPI_DO_RECV_F:
    case OPI_DO_RECV_B:
      return message_needs(r, item);
    case OPI_DO_STEP:
      return step_needs(r, rank, item);
    case OPI_DO_FREE:
      return free_needs(r, item);
    case OPI_DO_GATHER:
      return gather_needs(r, item);
    case OPI_DO_GATHER_F:
    case OPI_DO_GATHER_B:
      return group_needs(r, rank, item);
    default:
      return NO_EVENT;
  }
}

/* ---- execution ---- */

/* Neighbouring stages wait for events a row of micro-batches apart; hashing spreads them. */
static uint32_t *sleepers_of(const runner *r, uint64_t event) {
  return &r->sleeper[event * 0x9e3779b97f4a7c15u >> 32 & (r->n_sleepers - 1)];
}

static void happen(runner *r, uint64_t event) {
  r->happened[event] = 1;
  for (uint32_t *at = sleepers_of(r, event); *at != OPIPE_NONE;) {
    const uint32_t rank = *at;
    if (r->waits_for[rank] != event) {
      at = &r->next_sleeper[rank];
      continue;
    }
    *at = r->next_sleeper[rank];
    r->stack[r->n_stack++] = rank;
    r->waits_for[rank] = NO_EVENT;
  }
}

/* The version rule: mini-batch t computes with weights after max(t - 1, 0) steps. */
static opipe_status check_version(const runner *r, uint32_t rank, uint32_t item) {
  const opi_do *a = &r->v.list->items[item];
  const uint32_t step = opi_step_of(&r->v, item), done = r->steps_done[rank];
  if (a->kind != OPI_DO_F && done > step)
    return refuse(r, item, "it comes after the STEP of its mini-batch");
  if (r->v.problem->versions != OPIPE_VERSIONS_DOUBLE_BUFFERED)
    return done > 0 ? refuse(r, item, "it comes after the STEP of its mini-batch") : OPIPE_OK;
  const uint32_t used = a->version < done ? done - a->version : 0;
  const uint32_t wanted = step > 0 ? step - 1 : 0;
  if (used == wanted)
    return OPIPE_OK;
  return refuse(r, item,
                "mini-batch %u computes with the weights after %u steps (version %u behind %u), "
                "the rule says %u",
                step, used, a->version, done, wanted);
}

static opipe_status do_compute(runner *r, uint32_t rank, uint32_t item) {
  const opi_do *a = &r->v.list->items[item];
  const opi_problem *p = r->v.problem;
  const uint32_t step = opi_step_of(&r->v, item);
  OPI_TRY(check_version(r, rank, item));
  const uint64_t first =
      phase_event(r, step, a->stage, a->replica, a->microbatch, a->slice, a->part, 0);
  if (a->kind == OPI_DO_F)
    happen(r, first + OPI_PHASE_F);
  if (a->kind == OPI_DO_B || a->kind == OPI_DO_I)
    happen(r, first + OPI_PHASE_I);
  if (a->kind == OPI_DO_B || a->kind == OPI_DO_W) {
    happen(r, first + OPI_PHASE_W);
    --r->weights_left[((size_t)step * p->n_stages + a->stage) * p->n_replicas + a->replica];
  }
  return OPIPE_OK;
}

/* A rank enters the gather once for all of its replicas of the stage. */
static opipe_status do_gather(runner *r, uint32_t rank, uint32_t item) {
  const opi_problem *p = r->v.problem;
  const uint32_t stage = r->v.list->items[item].stage, step = opi_step_of(&r->v, item);
  if (r->steps_done[rank] <= step)
    return refuse(r, item, "its weights are not stepped yet: the STEP comes after it");
  for (uint32_t k = 0; k < p->n_replicas; ++k) {
    const uint64_t event = gather_event(r, step, stage * p->n_replicas + k);
    if (opi_problem_rank(p, stage, k) == rank && !r->happened[event])
      happen(r, event);
  }
  return OPIPE_OK;
}

static opipe_status do_reduce(runner *r, uint32_t item) {
  const opi_do *a = &r->v.list->items[item];
  const opi_problem *p = r->v.problem;
  const uint32_t instance = instance_of(r, a);
  const uint32_t step = opi_step_of(&r->v, item);
  const uint32_t left = r->weights_left[(size_t)step * p->n_stages * p->n_replicas + instance];
  if (left > 0)
    return refuse(r, item, "%u backwards of this instance come later", left);
  return OPIPE_OK;
}

static opipe_status execute(runner *r, uint32_t rank, uint32_t item) {
  const opi_do *a = &r->v.list->items[item];
  if (opi_do_is_compute(a->kind))
    return do_compute(r, rank, item);
  if (opi_do_is_message(a->kind) && !meets(r)) {
    const bool sends = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
    happen(r, (sends ? r->first_sent : r->first_received) + opi_message_of(&r->v, item));
  }
  if (a->kind == OPI_DO_STEP)
    ++r->steps_done[rank];
  return OPIPE_OK;
}

/* Records the events that happen as soon as the rank reaches the action. */
static opipe_status arrive(runner *r, uint32_t rank, uint32_t item) {
  const opi_do *a = &r->v.list->items[item];
  if (is_sum(a)) {
    const uint64_t event = reduce_event(r, opi_step_of(&r->v, item), instance_of(r, a));
    OPI_TRY(do_reduce(r, item));
    if (!r->happened[event])
      happen(r, event);
  }
  if (a->kind == OPI_DO_GATHER)
    OPI_TRY(do_gather(r, rank, item));
  if (!meets(r) || !opi_do_is_message(a->kind) || item < r->grouped_to[rank])
    return OPIPE_OK;
  uint32_t end = item + 1;
  while (r->v.rule == OPI_RULE_GROUPED && end < r->v.list->rank_first[rank + 1] &&
         opi_do_is_message(r->v.list->items[end].kind))
    ++end;
  r->grouped_to[rank] = end;
  for (uint32_t i = item; i < end; ++i) {
    const uint32_t kind = r->v.list->items[i].kind;
    const bool sends = kind == OPI_DO_SEND_F || kind == OPI_DO_SEND_B;
    happen(r, (sends ? r->first_sent : r->first_received) + opi_message_of(&r->v, i));
  }
  return OPIPE_OK;
}

static opipe_status run_rank(runner *r, uint32_t rank) {
  for (; r->next[rank] < r->v.list->rank_first[rank + 1]; ++r->next[rank]) {
    const uint32_t item = r->next[rank];
    OPI_TRY(arrive(r, rank, item));
    uint64_t event = needs(r, rank, item);
    r->stopped[rank] = item;
    if (event == NO_EVENT && (r->v.list->items[item].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0) {
      event = needs(r, rank, item + 1); /* both start at once: neither feeds the other */
      r->stopped[rank] = item + 1;
    }
    if (event != NO_EVENT) {
      r->waits_for[rank] = event;
      uint32_t *first = sleepers_of(r, event);
      r->next_sleeper[rank] = *first;
      *first = rank;
      return OPIPE_OK;
    }
    OPI_TRY(execute(r, rank, item));
  }
  return OPIPE_OK;
}

/* ---- the cycle ---- */

/* Whether the event is the arrival, at a gather, of a replica on the item's rank. */
static bool gathers(const runner *r, uint32_t item, uint64_t event) {
  const opi_problem *p = r->v.problem;
  const opi_do *a = &r->v.list->items[item];
  bool does = false;
  for (uint32_t k = 0; k < p->n_replicas; ++k) {
    does =
        does || (opi_problem_rank(p, a->stage, k) == opi_problem_rank(p, a->stage, a->replica) &&
                 gather_event(r, opi_step_of(&r->v, item), a->stage * p->n_replicas + k) == event);
  }
  return does;
}

/* The item that would cause the event; OPIPE_NONE: none. */
static uint32_t maker_of(const runner *r, uint64_t event) {
  const opi_do_list *list = r->v.list;
  if (event >= r->first_sent && event < r->first_received)
    return r->v.send_item[event - r->first_sent];
  if (event >= r->first_received && event < r->first_reduced)
    return r->v.recv_item[event - r->first_received];
  for (uint32_t i = 0; i < list->n_items; ++i) {
    const opi_do *a = &list->items[i];
    const uint32_t step = opi_step_of(&r->v, i);
    if (event >= r->first_reduced) {
      if ((is_sum(a) && reduce_event(r, step, instance_of(r, a)) == event) ||
          (a->kind == OPI_DO_GATHER && gathers(r, i, event)))
        return i;
      continue;
    }
    if (!opi_do_is_compute(a->kind) || a->kind == OPI_DO_R)
      continue;
    const uint64_t first =
        phase_event(r, step, a->stage, a->replica, a->microbatch, a->slice, a->part, 0);
    if (event < first || event >= first + OPI_PHASES)
      continue;
    const uint64_t phase = event - first;
    if ((a->kind == OPI_DO_F && phase == OPI_PHASE_F) ||
        (a->kind == OPI_DO_B && phase != OPI_PHASE_F) ||
        (a->kind == OPI_DO_I && phase == OPI_PHASE_I) ||
        (a->kind == OPI_DO_W && phase == OPI_PHASE_W))
      return i;
  }
  return OPIPE_NONE;
}

static opi_wait wait_of(const void *ctx, uint32_t rank) {
  const runner *r = ctx;
  return (opi_wait){r->stopped[rank], maker_of(r, r->waits_for[rank])};
}

static opipe_status tell_cycle(const runner *r, uint32_t rank) {
  char what[48];
  (void)snprintf(what, sizeof what, "deadlock (rule %s)", opi_rule_name(r->v.rule));
  return opi_tell_cycle(r->v.problem, r->v.list, rank, wait_of, r, what, r->v.arena, r->v.err);
}

static opipe_status run_all(runner *r) {
  const opi_do_list *list = r->v.list;
  for (uint32_t rank = list->n_ranks; rank-- > 0;)
    r->stack[r->n_stack++] = rank;
  while (r->n_stack > 0)
    OPI_TRY(run_rank(r, r->stack[--r->n_stack]));
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    if (r->next[rank] != list->rank_first[rank + 1])
      return tell_cycle(r, rank);
  }
  return OPIPE_OK;
}

/* ---- checks before and after ---- */

/* Whether a rank with replicas of the stage has a GATHER for them. */
static bool is_gathered(const runner *r, uint32_t stage, uint32_t rank) {
  const opi_problem *p = r->v.problem;
  bool found = false;
  for (uint32_t k = 0; k < p->n_replicas; ++k) {
    found = found ||
            (opi_problem_rank(p, stage, k) == rank && r->has_gather[stage * p->n_replicas + k]);
  }
  return found;
}

/* Scattered sums and gathered weights occur together, for all replicas. */
static opipe_status check_sharded(const runner *r, uint32_t stage) {
  const opi_problem *p = r->v.problem;
  static const char *const names[] = {"not summed", "REDUCE", "SCATTER"};
  uint32_t first = OPIPE_NONE;
  for (uint32_t k = 0; k < p->n_replicas; ++k) {
    const uint32_t rank = opi_problem_rank(p, stage, k);
    const uint32_t how = r->has_reduce[stage * p->n_replicas + k];
    if (rank == OPIPE_NONE)
      continue;
    first = first == OPIPE_NONE ? how : first;
    if (how != first) {
      return opi_fail(r->v.err, OPIPE_E_INVALID,
                      "stage %u: gradients of replica %u on rank %u: %s, those of others: %s",
                      stage, k, rank, names[how], names[first]);
    }
    if (is_gathered(r, stage, rank) == (how == SCATTERED) || (how == SCATTERED && !r->any_step))
      continue;
    return how == SCATTERED
               ? opi_fail(r->v.err, OPIPE_E_INVALID,
                          "stage %u: gradients are scattered, and the weights that replica %u on "
                          "rank %u steps a part of are never gathered (%uGATHER)",
                          stage, k, rank, stage)
               : opi_fail(r->v.err, OPIPE_E_INVALID,
                          "stage %u: weights are gathered on rank %u, and its gradients were never "
                          "scattered (%uSCATTER)",
                          stage, rank, stage);
  }
  return OPIPE_OK;
}

static opipe_status check_reductions(const runner *r) {
  const opi_problem *p = r->v.problem;
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    uint32_t n = 0, with = 0, lacking = 0;
    for (uint32_t k = 0; k < p->n_replicas; ++k) {
      if (p->instance_rank[s * p->n_replicas + k] == OPIPE_NONE)
        continue;
      ++n;
      with += r->has_reduce[s * p->n_replicas + k] != 0;
      lacking = r->has_reduce[s * p->n_replicas + k] != 0 ? lacking : k;
    }
    if (n > 1 && with < n && (r->any_reduce || r->any_step)) {
      const opi_do sum = {.kind = OPI_DO_REDUCE, .stage = s, .replica = (uint16_t)lacking};
      char text[64];
      return opi_fail(r->v.err, OPIPE_E_INVALID,
                      "%s is missing (on rank %u): stage %u has %u replicas, and the gradients of "
                      "replica %u are never reduced",
                      opi_do_text(p, &sum, text, sizeof text), opi_problem_rank(p, s, lacking), s,
                      n, lacking);
    }
    OPI_TRY(check_sharded(r, s));
  }
  return OPIPE_OK;
}

static opipe_status scan(runner *r) {
  const opi_problem *p = r->v.problem;
  const opi_do_list *list = r->v.list;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &list->items[i];
      const uint32_t instance = a->stage * p->n_replicas + a->replica;
      if (a->kind == OPI_DO_STEP) {
        r->any_step = true;
        continue;
      }
      if (a->kind == OPI_DO_IDLE)
        continue;
      if (a->stage >= p->n_stages || a->replica >= p->n_replicas ||
          p->instance_rank[instance] != rank)
        return refuse(r, i, "there is no such stage or replica on this rank");
      if (is_sum(a)) {
        r->has_reduce[instance] = a->kind == OPI_DO_REDUCE ? SUMMED : SCATTERED;
        r->any_reduce = true;
      }
      r->has_gather[instance] = r->has_gather[instance] || a->kind == OPI_DO_GATHER;
      if (a->kind == OPI_DO_B || a->kind == OPI_DO_W)
        ++r->weights_left[(size_t)opi_step_of(&r->v, i) * p->n_stages * p->n_replicas + instance];
    }
  }
  if (p->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED && !r->any_step &&
      p->mode != OPIPE_MODE_FORWARD) {
    return opi_fail(r->v.err, OPIPE_E_INVALID,
                    "double-buffered weights without any STEP: lower the order first");
  }
  return check_reductions(r);
}

static opipe_status allocate(runner *r) {
  const opi_problem *p = r->v.problem;
  const size_t instances = (size_t)p->n_stages * p->n_replicas, n_ranks = p->n_ranks;
  r->first_sent = r->v.n_steps * r->v.index.n_units * OPI_PHASES;
  r->first_received = r->first_sent + r->v.n_messages;
  r->first_reduced = r->first_received + r->v.n_messages;
  r->first_gathered = r->first_reduced + (uint64_t)r->v.n_steps * instances;
  r->n_events = r->first_gathered + (uint64_t)r->v.n_steps * instances;
  opi_arena *a = r->v.arena;
  r->happened = OPI_ARENA_ARRAY(a, uint8_t, (size_t)r->n_events);
  r->n_sleepers = 1;
  while (r->n_sleepers < n_ranks)
    r->n_sleepers *= 2;
  r->sleeper = OPI_ARENA_ARRAY(a, uint32_t, r->n_sleepers);
  r->next_sleeper = OPI_ARENA_ARRAY(a, uint32_t, n_ranks);
  r->waits_for = OPI_ARENA_ARRAY(a, uint64_t, n_ranks);
  r->next = OPI_ARENA_ARRAY(a, uint32_t, n_ranks);
  r->stopped = OPI_ARENA_ARRAY(a, uint32_t, n_ranks);
  r->grouped_to = OPI_ARENA_ARRAY(a, uint32_t, n_ranks);
  r->stack = OPI_ARENA_ARRAY(a, uint32_t, n_ranks);
  r->steps_done = OPI_ARENA_ARRAY(a, uint32_t, n_ranks);
  r->weights_left = OPI_ARENA_ARRAY(a, uint32_t, r->v.n_steps * instances);
  r->has_reduce = OPI_ARENA_ARRAY(a, uint8_t, instances);
  r->has_gather = OPI_ARENA_ARRAY(a, bool, instances);
  if (r->happened == NULL || r->sleeper == NULL || r->next_sleeper == NULL ||
      r->waits_for == NULL || r->next == NULL || r->stopped == NULL || r->grouped_to == NULL ||
      r->stack == NULL || r->steps_done == NULL || r->weights_left == NULL ||
      r->has_reduce == NULL || r->has_gather == NULL)
    return opi_fail_nomem(r->v.err, r->n_events, "the proof of a schedule");
  memset(r->sleeper, 0xff, r->n_sleepers * sizeof(uint32_t));
  memcpy(r->next, r->v.list->rank_first, n_ranks * sizeof(uint32_t));
  return OPIPE_OK;
}

static opipe_status prove(runner *r, opi_proof *out) {
  OPI_TRY(opi_index_build(r->v.problem, r->v.list, r->v.arena, &r->v.index, r->v.err));
  OPI_TRY(opi_match_messages(&r->v));
  OPI_TRY(allocate(r));
  OPI_TRY(scan(r));
  OPI_TRY(run_all(r));
  for (uint64_t m = 0; m < r->v.n_messages && r->v.step == NULL; ++m)
    out->n_messages += r->v.send_item[m] != OPIPE_NONE;
  return opi_prover_stashes(&r->v, out);
}

opipe_status opi_proof_check(const opi_problem *problem, const opi_do_list *list, uint32_t rule,
                             const opipe_allocator *allocator, opi_proof *out, opipe_error *err) {
  opi_arena arena;
  opi_do_list *unrolled = NULL;
  uint32_t *step = NULL;
  if (rule >= OPI_RULES)
    return opi_fail(err, OPIPE_E_INVALID, "there is no rule %u", rule);
  OPI_TRY(opi_pass_check(problem, list, allocator, err));
  OPI_TRY(opi_prove_once(problem, list, allocator, err));
  opi_arena_init(&arena, allocator, 0);
  runner r = {.v = {.problem = problem,
                    .list = list,
                    .n_steps = 1,
                    .rule = rule,
                    .arena = &arena,
                    .err = err}};
  opipe_status status = OPIPE_OK;
  out->n_messages = 0;
  if (problem->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED) {
    status = opi_unroll(list, BODIES, allocator, &arena, &unrolled, &step, err);
    r.v.list = unrolled;
    r.v.step = step;
    r.v.n_steps = BODIES + 1;
    for (uint32_t i = 0; i < list->n_items; ++i) {
      out->n_messages +=
          list->items[i].kind == OPI_DO_SEND_F || list->items[i].kind == OPI_DO_SEND_B;
    }
  }
  if (status == OPIPE_OK)
    status = prove(&r, out);
  opi_do_list_free(unrolled);
  opi_arena_release(&arena);
  return status;
}
