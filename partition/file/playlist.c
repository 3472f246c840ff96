/* SPDX-License-Identifier: Apache-2.0 */
/* See playlist.h. */
#include "partition/file/playlist.h"

#include <inttypes.h>
#include <string.h>

static const char *const WHAT = "the plan's \"play\"";
static const char PASSES[] = "FBIW"; /* by OPI_PROGRAM_* */
/* Letters of all operations but COMPUTE. */
static const struct {
  char letter;
  uint8_t kind;
} WORDS[] = {{'s', OPI_PLAY_SEND},  {'p', OPI_PLAY_POST},    {'w', OPI_PLAY_WAIT},
             {'d', OPI_PLAY_DRAIN}, {'m', OPI_PLAY_RESERVE}, {'c', OPI_PLAY_START},
             {'j', OPI_PLAY_JOIN},  {'b', OPI_PLAY_BATCH}};
/* By OPI_PLAY_SUM and so on. */
static const char *const HOWS[OPI_PLAY_HOWS] = {"sum", "gather", "scatter", "out", "in"};
enum { PIECES_MOST = 1 << 20, LAP_MOST = 1 << 10, ITEMS_MOST = 1 << 28 };
static const uint64_t BYTES_MOST = (uint64_t)INT64_MAX / 16;

/* ---- writing ---- */

static void write_streams(opi_text *t, const opi_playlist *l) {
  opi_text_puts(t, ",\n    \"streams\": [");
  for (uint32_t i = 0; i < l->n_streams; ++i) {
    const opi_playlist_stream *s = &l->streams[i];
    opi_text_printf(t,
                    "%s\n      {\"pass\": \"%s\", \"from\": [%u, %u, %u, %u], \"to\": [%u, %u, %u, "
                    "%u], \"bytes\": %" PRIu64 "}",
                    i == 0 ? "" : ",", s->backward ? "B" : "F", s->src_rank, s->src_stage,
                    s->src_replica, s->src_slice, s->dst_rank, s->dst_stage, s->dst_replica,
                    s->dst_slice, s->n_bytes);
  }
  opi_text_puts(t, l->n_streams == 0 ? "]" : "\n    ]");
}

static void write_works(opi_text *t, const opi_playlist *l) {
  opi_text_puts(t, ",\n    \"works\": [");
  for (uint32_t i = 0; i < l->n_works; ++i) {
    const opi_playlist_work *w = &l->works[i];
    opi_text_printf(t, "%s\n      {\"piece\": %u, \"pass\": \"%c\", ", i == 0 ? "" : ",", w->piece,
                    PASSES[w->pass]);
    if (w->part != 0)
      opi_text_printf(t, "\"part\": %u, ", w->part);
    opi_text_puts(t, "\"ns\": ");
    opi_json_double(t, w->ns);
    opi_text_puts(t, ", \"take_bytes\": ");
    opi_json_double(t, w->take_bytes);
    opi_text_puts(t, ", \"give_bytes\": ");
    opi_json_double(t, w->give_bytes);
    opi_text_puts(t, "}");
  }
  opi_text_puts(t, l->n_works == 0 ? "]" : "\n    ]");
}

static void write_numbers(opi_text *t, const uint32_t *numbers, uint32_t n) {
  opi_text_puts(t, "[");
  for (uint32_t i = 0; i < n; ++i)
    opi_text_printf(t, "%s%u", i == 0 ? "" : ", ", numbers[i]);
  opi_text_puts(t, "]");
}

/* Training plans, and tensor groups. Barriers have no bytes, updates no stage; a group inside a
 * stage says of which pass. */
static void write_groups(opi_text *t, const opi_playlist *l) {
  opi_text_puts(t, ",\n    \"groups\": [");
  for (uint32_t i = 0; i < l->n_groups; ++i) {
    const opi_playlist_group *g = &l->groups[i];
    opi_text_puts(t, i == 0 ? "\n      {" : ",\n      {");
    if (g->stage != OPIPE_NONE)
      opi_text_printf(t, "\"stage\": %u, ", g->stage);
    if (g->each) {
      opi_text_printf(t, "\"pass\": \"%s\", \"how\": \"%s\", ", g->backward ? "B" : "F",
                      HOWS[g->how]);
    }
    if (!g->each && g->how != OPI_PLAY_SUM)
      opi_text_printf(t, "\"how\": \"%s\", ", HOWS[g->how]);
    if (g->n_params != 0)
      opi_text_printf(t, "\"parameters\": %u, ", g->n_params);
    if (!g->waits)
      opi_text_printf(t, "\"bytes\": %" PRIu64 ", ", g->n_bytes);
    opi_text_puts(t, "\"ranks\": ");
    write_numbers(t, g->ranks, g->n_ranks);
    opi_text_puts(t, "}");
  }
  opi_text_puts(t, l->n_groups == 0 ? "]" : "\n    ]");
}

static bool is_message(uint32_t kind) {
  return kind >= OPI_PLAY_SEND && kind <= OPI_PLAY_RESERVE;
}

/* Whether it names a group that meets for each micro-batch. */
static bool is_each(const opi_playlist *l, const opi_playlist_item *item) {
  return (item->kind == OPI_PLAY_START || item->kind == OPI_PLAY_JOIN) && l->groups[item->at].each;
}

static bool has_microbatch(const opi_playlist *l, const opi_playlist_item *item) {
  return item->kind == OPI_PLAY_COMPUTE || is_message(item->kind) || is_each(l, item);
}

static void write_item(opi_text *t, const opi_playlist *l, const opi_playlist_item *item) {
  char letter = PASSES[item->pass];
  for (size_t i = 0; i < OPI_COUNT(WORDS); ++i)
    letter = WORDS[i].kind == item->kind ? WORDS[i].letter : letter;
  opi_text_printf(t, "%c%u", letter, item->at);
  if (item->part != 0)
    opi_text_printf(t, "/%u", item->part);
  if (item->replica != 0)
    opi_text_printf(t, ".%u", item->replica);
  if (has_microbatch(l, item))
    opi_text_printf(t, ":%u", item->microbatch);
  if (item->lap != 0)
    opi_text_printf(t, "%+d", item->lap);
  if (item->next != 0)
    opi_text_puts(t, "n");
}

void opi_json_write_playlist(opi_text *t, const opi_plan *plan) {
  const opi_playlist *l = plan->predicted.play;
  if (l == NULL)
    return;
  opi_text_printf(t, ",\n  \"play\": {\n    \"pieces\": %u", l->n_pieces);
  write_streams(t, l);
  write_works(t, l);
  if (opi_plan_trains(&plan->decided) || l->n_groups != 0)
    write_groups(t, l);
  opi_text_puts(t, ",\n    \"lists\": [");
  for (uint32_t rank = 0; rank < plan->decided.n_ranks; ++rank) {
    opi_text_puts(t, rank == 0 ? "\n      \"" : ",\n      \"");
    for (uint32_t i = l->rank_first[rank]; i < l->rank_first[rank + 1]; ++i) {
      opi_text_puts(t, i == l->rank_first[rank] ? "" : " ");
      write_item(t, l, &l->items[i]);
    }
    opi_text_puts(t, "\"");
  }
  opi_text_puts(t, "\n    ]\n  }");
}

/* ---- reading ---- */

typedef struct reader {
  opi_plan *plan;
  opi_playlist *list;
  uint32_t room_items, n_items;
  opipe_error *err;
} reader;

static opipe_status read_u32(const reader *r, const json_t *object, const char *name, uint32_t max,
                             uint32_t *out) {
  uint64_t value = 0;
  OPI_TRY(opi_json_get_u64(object, WHAT, name, max, &value, r->err));
  *out = (uint32_t)value;
  return OPIPE_OK;
}

static uint32_t n_pieces(const reader *r) {
  return r->plan->decided.n_stages * r->list->n_pieces;
}

/* An array of exactly n numbers; number i is at most most[i]. */
static opipe_status read_numbers(const reader *r, const json_t *object, const char *name,
                                 const uint32_t *most, uint32_t n, uint32_t *out) {
  const json_t *list = json_object_get(object, name);
  if (json_array_size(list) != n) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s\" has %zu numbers; it must have %u", WHAT,
                    name, json_array_size(list), n);
  }
  for (uint32_t i = 0; i < n; ++i) {
    const json_t *value = json_array_get(list, i);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > (json_int_t)most[i]) {
      return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s\": number %u must be from 0 to %u", WHAT,
                      name, i, most[i]);
    }
    out[i] = (uint32_t)json_integer_value(value);
  }
  return OPIPE_OK;
}

static opipe_status read_stream(const reader *r, const json_t *object, opi_playlist_stream *out) {
  enum { RANK, STAGE, REPLICA, SLICE, NUMBERS };
  const opi_decision *plan = &r->plan->decided;
  const uint32_t slices = plan->n_slices > 1 ? plan->n_slices : 1;
  const uint32_t most[NUMBERS] = {plan->n_ranks - 1, plan->n_stages - 1, plan->n_replicas - 1,
                                  slices - 1};
  const char *pass = NULL;
  uint32_t from[NUMBERS] = {0}, to[NUMBERS] = {0};
  OPI_TRY(read_numbers(r, object, "from", most, NUMBERS, from));
  OPI_TRY(read_numbers(r, object, "to", most, NUMBERS, to));
  OPI_TRY(opi_json_get_string(object, WHAT, "pass", &pass, r->err));
  *out = (opi_playlist_stream){.src_rank = from[RANK],
                               .dst_rank = to[RANK],
                               .src_stage = from[STAGE],
                               .dst_stage = to[STAGE],
                               .src_replica = (uint16_t)from[REPLICA],
                               .dst_replica = (uint16_t)to[REPLICA],
                               .src_slice = (uint16_t)from[SLICE],
                               .dst_slice = (uint16_t)to[SLICE],
                               .backward = strcmp(pass, "B") == 0};
  if ((!out->backward && strcmp(pass, "F") != 0) || from[RANK] == to[RANK]) {
    return opi_fail(
        r->err, OPIPE_E_INVALID,
        "%s: a stream from rank %u to rank %u of pass '%.8s'; it must join two ranks and be "
        "of pass F or B",
        WHAT, from[RANK], to[RANK], pass);
  }
  return opi_json_get_u64(object, WHAT, "bytes", BYTES_MOST, &out->n_bytes, r->err);
}

static opipe_status read_streams(const reader *r, const json_t *play) {
  opi_playlist *l = r->list;
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(play, WHAT, "streams", &list, r->err));
  const size_t n = json_array_size(list);
  l->streams = OPI_ARENA_ARRAY(&r->plan->arena, opi_playlist_stream, n);
  if (l->streams == NULL)
    return opi_fail_nomem(r->err, n * sizeof *l->streams, "a plan");
  for (size_t i = 0; i < n; ++i)
    OPI_TRY(read_stream(r, json_array_get(list, i), &l->streams[l->n_streams++]));
  return OPIPE_OK;
}

static opipe_status read_bytes(const reader *r, const json_t *object, const char *name,
                               double *out) {
  OPI_TRY(opi_json_get_number(object, WHAT, name, out, r->err));
  if (*out >= 0 && *out <= (double)BYTES_MOST)
    return OPIPE_OK;
  return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s\" is %g; it must be from 0 to %g", WHAT, name,
                  *out, (double)BYTES_MOST);
}

/* Whether a work may stand behind another: by piece, then pass; parts behind the whole. */
static bool follows(const opi_playlist_work *before, const opi_playlist_work *w) {
  const bool same = before != NULL && before->piece == w->piece && before->pass == w->pass;
  if (w->part != 0 || same)
    return same && w->part == before->part + 1;
  return before == NULL || before->piece < w->piece ||
         (before->piece == w->piece && before->pass < w->pass);
}

static opipe_status read_work(const reader *r, const json_t *object, opi_playlist_work *out) {
  const opi_playlist_work *before = r->list->n_works == 0 ? NULL : out - 1;
  const char *pass = NULL;
  if (json_object_get(object, "part") != NULL)
    OPI_TRY(read_u32(r, object, "part", UINT16_MAX, &out->part));
  OPI_TRY(read_u32(r, object, "piece", n_pieces(r) - 1, &out->piece));
  OPI_TRY(opi_json_get_string(object, WHAT, "pass", &pass, r->err));
  const char *at = pass[0] == '\0' || pass[1] != '\0' ? NULL : strchr(PASSES, pass[0]);
  out->pass = at == NULL ? 0 : (uint32_t)(at - PASSES);
  if (at == NULL || !follows(before, out)) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: pass '%.8s' of piece %u, part %u; passes are F, B, I and W, each at most "
                    "once, in this order, and behind each its parts from 1 on",
                    WHAT, pass, out->piece, out->part);
  }
  OPI_TRY(opi_json_time(json_object_get(object, "ns"), WHAT, "ns", &out->ns, r->err));
  OPI_TRY(read_bytes(r, object, "take_bytes", &out->take_bytes));
  return read_bytes(r, object, "give_bytes", &out->give_bytes);
}

static opipe_status read_works(const reader *r, const json_t *play) {
  opi_playlist *l = r->list;
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(play, WHAT, "works", &list, r->err));
  const size_t n = json_array_size(list);
  l->works = OPI_ARENA_ARRAY(&r->plan->arena, opi_playlist_work, n);
  if (l->works == NULL)
    return opi_fail_nomem(r->err, n * sizeof *l->works, "a plan");
  for (size_t i = 0; i < n; ++i, ++l->n_works)
    OPI_TRY(read_work(r, json_array_get(list, i), &l->works[i]));
  return OPIPE_OK;
}

static bool has_stage(const opi_decision *plan, uint32_t rank, uint32_t stage) {
  const uint32_t first = rank - rank % opi_plan_width(plan); /* of its tensor group */
  for (uint32_t k = 0; k < plan->n_replicas; ++k) {
    if (opi_plan_rank(plan, stage, k) == first)
      return true;
  }
  return false;
}

/* The ranks of a group, without repeats; for a stage's sum, each must have a replica of the stage.
 */
static opipe_status read_ranks(const reader *r, const json_t *list, opi_playlist_group *out) {
  const opi_decision *plan = &r->plan->decided;
  const size_t n = json_array_size(list);
  out->ranks = OPI_ARENA_ARRAY(&r->plan->arena, uint32_t, n);
  if (out->ranks == NULL)
    return opi_fail_nomem(r->err, n * sizeof *out->ranks, "a plan");
  for (; out->n_ranks < n; ++out->n_ranks) {
    const json_t *value = json_array_get(list, out->n_ranks);
    const json_int_t rank = json_integer_value(value);
    bool good = json_is_integer(value) && rank >= 0 && rank < (json_int_t)plan->n_ranks &&
                (out->stage == OPIPE_NONE || has_stage(plan, (uint32_t)rank, out->stage));
    for (uint32_t k = 0; good && k < out->n_ranks; ++k)
      good = out->ranks[k] != (uint32_t)rank;
    if (!good) {
      return opi_fail(r->err, OPIPE_E_INVALID,
                      "%s: group %u: rank %" JSON_INTEGER_FORMAT
                      " is not one of %u, has no replica of the stage, or occurs twice",
                      WHAT, r->list->n_groups, rank, plan->n_ranks);
    }
    out->ranks[out->n_ranks] = (uint32_t)rank;
  }
  return OPIPE_OK;
}

/* The kind of a group, and the pass of one inside a stage. */
static opipe_status read_how(const reader *r, const json_t *object, opi_playlist_group *out) {
  const char *pass = "", *how = NULL;
  out->each = json_object_get(object, "pass") != NULL;
  if (out->each)
    OPI_TRY(opi_json_get_string(object, WHAT, "pass", &pass, r->err));
  OPI_TRY(opi_json_get_string(object, WHAT, "how", &how, r->err));
  out->backward = strcmp(pass, "B") == 0;
  while (out->how < OPI_PLAY_HOWS && strcmp(how, HOWS[out->how]) != 0)
    ++out->how;
  const bool moves = out->how == OPI_PLAY_OUT || out->how == OPI_PLAY_IN;
  if (out->how < OPI_PLAY_HOWS && !out->waits && (out->each || !moves) &&
      (!out->each || (out->stage != OPIPE_NONE && (out->backward || strcmp(pass, "F") == 0))))
    return OPIPE_OK;
  return opi_fail(
      r->err, OPIPE_E_INVALID,
      "%s: group %u: pass '%.8s', how '%.8s'; a group that moves bytes is a sum, gather or "
      "scatter, and one inside a stage has the stage and pass F or B, also out and in",
      WHAT, r->list->n_groups, pass, how);
}

static opipe_status read_group(const reader *r, const json_t *object, opi_playlist_group *out) {
  const opi_decision *plan = &r->plan->decided;
  const json_t *ranks = NULL;
  *out =
      (opi_playlist_group){.stage = OPIPE_NONE, .waits = json_object_get(object, "bytes") == NULL};
  if (json_object_get(object, "stage") != NULL)
    OPI_TRY(read_u32(r, object, "stage", plan->n_stages - 1, &out->stage));
  if (!out->waits)
    OPI_TRY(opi_json_get_u64(object, WHAT, "bytes", BYTES_MOST, &out->n_bytes, r->err));
  if (json_object_get(object, "parameters") != NULL)
    OPI_TRY(read_u32(r, object, "parameters", UINT32_MAX, &out->n_params));
  if (json_object_get(object, "pass") != NULL || json_object_get(object, "how") != NULL)
    OPI_TRY(read_how(r, object, out));
  OPI_TRY(opi_json_get_array(object, WHAT, "ranks", &ranks, r->err));
  if (json_array_size(ranks) == 0 || json_array_size(ranks) > plan->n_ranks) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: group %u has %zu ranks; it must have 1 to %u",
                    WHAT, r->list->n_groups, json_array_size(ranks), plan->n_ranks);
  }
  if (out->how >= OPI_PLAY_OUT && json_array_size(ranks) != 1) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: group %u has %zu ranks; one rank offloads", WHAT,
                    r->list->n_groups, json_array_size(ranks));
  }
  return read_ranks(r, ranks, out);
}

static opipe_status read_groups(const reader *r, const json_t *play) {
  opi_playlist *l = r->list;
  const json_t *list = NULL;
  if (!opi_plan_trains(&r->plan->decided) && json_object_get(play, "groups") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(play, WHAT, "groups", &list, r->err));
  const size_t n = json_array_size(list);
  l->groups = OPI_ARENA_ARRAY(&r->plan->arena, opi_playlist_group, n);
  if (l->groups == NULL)
    return opi_fail_nomem(r->err, n * sizeof *l->groups, "a plan");
  for (size_t i = 0; i < n; ++i, ++l->n_groups)
    OPI_TRY(read_group(r, json_array_get(list, i), &l->groups[i]));
  return OPIPE_OK;
}

/* ---- lists ---- */

/* Takes digits before `end`: a number up to `most`. */
static bool take_number(const char **io_at, const char *end, uint32_t most, uint32_t *out) {
  uint64_t value = 0;
  const char *at = *io_at;
  for (; at < end && *at >= '0' && *at <= '9' && value <= most; ++at)
    value = 10 * value + (uint64_t)(*at - '0');
  if (at == *io_at || value > most)
    return false;
  *io_at = at;
  *out = (uint32_t)value;
  return true;
}

/* Takes the letter of an operation; *out_n is the number of objects that its index may name. */
static bool take_kind(const reader *r, char letter, opi_playlist_item *out, uint32_t *out_n) {
  const char *pass = letter == '\0' ? NULL : strchr(PASSES, letter);
  if (pass != NULL) {
    *out = (opi_playlist_item){.kind = OPI_PLAY_COMPUTE, .pass = (uint8_t)(pass - PASSES)};
    *out_n = n_pieces(r);
    return opi_plan_trains(&r->plan->decided) || out->pass == OPI_PROGRAM_F;
  }
  for (size_t i = 0; i < OPI_COUNT(WORDS); ++i) {
    if (WORDS[i].letter != letter)
      continue;
    *out = (opi_playlist_item){.kind = WORDS[i].kind};
    *out_n = is_message(out->kind)         ? r->list->n_streams
             : out->kind == OPI_PLAY_BATCH ? OPIPE_BATCH_MOST + 1
                                           : r->list->n_groups;
    return true;
  }
  return false;
}

/* Takes the suffix of double-buffered weights: "+1", "-1", "n", or both. */
static bool take_mark(const reader *r, const char **io_at, const char *end,
                      opi_playlist_item *out) {
  const char *at = *io_at;
  uint32_t lap = 0;
  if (r->plan->decided.versions != OPIPE_VERSIONS_DOUBLE_BUFFERED)
    return true;
  if (at < end && (*at == '+' || *at == '-')) {
    const bool less = *at++ == '-';
    if (!take_number(&at, end, LAP_MOST, &lap))
      return false;
    out->lap = (int16_t)(less ? -(int32_t)lap : (int32_t)lap);
  }
  out->next = at < end && *at == 'n';
  *io_at = at + out->next;
  return true;
}

static bool take_item(const reader *r, const char *at, const char *end, opi_playlist_item *out) {
  const opi_decision *plan = &r->plan->decided;
  uint32_t n = 0, number = 0;
  if (!take_kind(r, *at++, out, &n) || n == 0 || !take_number(&at, end, n - 1, &out->at))
    return false;
  if (out->kind == OPI_PLAY_BATCH)
    return out->at > 0 && at == end;
  if (out->kind == OPI_PLAY_COMPUTE && at < end && *at == '/') {
    ++at;
    if (!take_number(&at, end, UINT16_MAX, &number) || number == 0)
      return false;
    out->part = (uint16_t)number;
  }
  if ((out->kind == OPI_PLAY_COMPUTE || out->kind == OPI_PLAY_START) && at < end && *at == '.') {
    ++at;
    if (!take_number(&at, end, plan->n_replicas - 1, &number))
      return false;
    out->replica = (uint16_t)number;
  }
  if (has_microbatch(r->list, out)) {
    if (at == end || *at++ != ':' || !take_number(&at, end, plan->n_microbatches - 1, &number))
      return false;
    out->microbatch = number;
  }
  return take_mark(r, &at, end, out) && at == end;
}

static opipe_status read_list(reader *r, uint32_t rank, const char *line) {
  opi_playlist *l = r->list;
  for (const char *at = line + strspn(line, " "); *at != '\0'; at += strspn(at, " ")) {
    const size_t length = strcspn(at, " ");
    if (r->n_items == ITEMS_MOST)
      return opi_fail(r->err, OPIPE_E_LIMIT, "%s: lists of more than %d words", WHAT, ITEMS_MOST);
    if (!opi_arena_grow(&r->plan->arena, (void **)&l->items, &r->room_items, r->n_items + 1,
                        sizeof *l->items))
      return opi_fail_nomem(r->err, r->n_items * sizeof *l->items, "a plan");
    if (!take_item(r, at, at + length, &l->items[r->n_items++])) {
      return opi_fail(r->err, OPIPE_E_INVALID, "%s: rank %u: '%.*s' is not an operation of a list",
                      WHAT, rank, (int)(length > 40 ? 40 : length), at);
    }
    at += length;
  }
  return OPIPE_OK;
}

static opipe_status read_lists(reader *r, const json_t *play) {
  const uint32_t n_ranks = r->plan->decided.n_ranks;
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(play, WHAT, "lists", &list, r->err));
  if (json_array_size(list) != n_ranks) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: lists for %zu ranks, the plan has %u", WHAT,
                    json_array_size(list), n_ranks);
  }
  r->list->rank_first = OPI_ARENA_ARRAY(&r->plan->arena, uint32_t, (size_t)n_ranks + 1);
  if (r->list->rank_first == NULL)
    return opi_fail_nomem(r->err, n_ranks * sizeof(uint32_t), "a plan");
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    const char *line = json_string_value(json_array_get(list, rank));
    if (line == NULL) {
      return opi_fail(r->err, OPIPE_E_INVALID, "%s: the list of rank %u must be a string", WHAT,
                      rank);
    }
    OPI_TRY(read_list(r, rank, line));
    r->list->rank_first[rank + 1] = r->n_items;
  }
  return OPIPE_OK;
}

opipe_status opi_json_read_playlist(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *play = json_object_get(root, "play");
  reader r = {.plan = plan, .list = OPI_ARENA_NEW(&plan->arena, opi_playlist), .err = err};
  if (play == NULL) {
    return opi_fail(
        err, OPIPE_E_NOTFOUND,
        "the plan was written without \"play\", the costs of its lists: 'onnx-pipe plan "
        "MODEL --plan FILE -o FILE' writes it again");
  }
  if (r.list == NULL)
    return opi_fail_nomem(err, sizeof *r.list, "a plan");
  OPI_TRY(read_u32(&r, play, "pieces", PIECES_MOST, &r.list->n_pieces));
  const uint32_t width = opi_plan_width(&plan->decided);
  const uint64_t wanted = width > 1 ? r.list->n_pieces : opi_plan_pieces(&plan->decided);
  if (r.list->n_pieces != wanted || wanted == 0 || wanted % width != 0 ||
      wanted * plan->decided.n_stages > PIECES_MOST) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: %u stages of %u pieces; the layout has %llu pieces a stage, and there may "
                    "be %d in all",
                    WHAT, plan->decided.n_stages, r.list->n_pieces, (unsigned long long)wanted,
                    PIECES_MOST);
  }
  OPI_TRY(read_streams(&r, play));
  OPI_TRY(read_works(&r, play));
  OPI_TRY(read_groups(&r, play));
  OPI_TRY(read_lists(&r, play));
  plan->predicted.play = r.list;
  return OPIPE_OK;
}
