/* SPDX-License-Identifier: Apache-2.0 */
/* A cell at a time; no memory, one look-ahead: the action that an R or an OVERLAP_F_B waits for. */
#include "parse.h"

enum { STAGES_MOST = 1 << 20, MICROBATCHES_MOST = 1 << 24, RANKS_MOST = 1 << 16, SHOWN = 48 };

typedef struct reader {
  const char *at;   /* next character of the row */
  const char *cell; /* where the cell at hand begins, for messages */
  uint32_t rank, step, dialect;
  csv_visit_fn visit;
  void *ctx;
  opipe_action again; /* the R at hand */
  bool has_again;
} reader;

typedef enum word { WORD_COMPUTE, WORD_PLACED, WORD_REFUSED, WORD_GROUP } word;

typedef struct kind {
  const char *name;
  word what;
  uint8_t pass;
  bool again;
} kind;

/* Longer names first: SEND_F before S..., SCATTER_F before SCATTER, BW before B. */
static const kind kinds[] = {
    {"REDUCE_GRAD", WORD_PLACED, 0, false},
    {"UNSHARD", WORD_REFUSED, 0, false},
    {"RESHARD", WORD_REFUSED, 0, false},
    {"OFFLOAD", WORD_REFUSED, 0, false},
    {"RELOAD", WORD_REFUSED, 0, false},
    {"SCATTER_F", WORD_GROUP, 0, false},
    {"SCATTER_B", WORD_GROUP, 0, false},
    {"SCATTER", WORD_GROUP, 0, false},
    {"GATHER_F", WORD_GROUP, 0, false},
    {"GATHER_B", WORD_GROUP, 0, false},
    {"GATHER", WORD_GROUP, 0, false},
    {"SUM_F", WORD_GROUP, 0, false},
    {"SUM_B", WORD_GROUP, 0, false},
    {"SEND_F", WORD_PLACED, 0, false},
    {"RECV_F", WORD_PLACED, 0, false},
    {"SEND_B", WORD_PLACED, 0, false},
    {"RECV_B", WORD_PLACED, 0, false},
    {"REDUCE", WORD_PLACED, 0, false},
    {"STEP", WORD_PLACED, 0, false},
    {"FREE", WORD_PLACED, 0, false},
    {"BW", WORD_COMPUTE, OPIPE_PASS_BACKWARD, false},
    {"F", WORD_COMPUTE, OPIPE_PASS_FORWARD, false},
    {"B", WORD_COMPUTE, OPIPE_PASS_BACKWARD, false},
    {"I", WORD_COMPUTE, OPIPE_PASS_BACKWARD_INPUT, false},
    {"W", WORD_COMPUTE, OPIPE_PASS_BACKWARD_WEIGHT, false},
    {"R", WORD_COMPUTE, OPIPE_PASS_BACKWARD, true},
};

static bool ends_cell(char c) {
  return c == '\0' || c == '\n' || c == ',' || c == ' ' || c == '\t' || c == '\r';
}

static opipe_status refuse(const reader *r, opipe_error *err, const char *why) {
  int n = 0;
  while (n < SHOWN && !ends_cell(r->cell[n]))
    ++n;
  return opipe_fail(err, OPIPE_E_INVALID, "schedule 'csv', rank %u, step %u: '%.*s' %s", r->rank,
                    r->step, n, r->cell, why);
}

/* Digits below `most`; false when there are none or too many. */
static bool number(reader *r, uint32_t most, uint32_t *out) {
  uint64_t n = 0;
  const char *start = r->at;
  for (; *r->at >= '0' && *r->at <= '9' && n < most; ++r->at)
    n = n * 10 + (uint64_t)(*r->at - '0');
  *out = (uint32_t)n;
  return r->at != start && n < most;
}

/* MARK number, where MARK may be absent. */
static bool marked(reader *r, char mark, uint32_t most, uint32_t *out) {
  *out = 0;
  if (*r->at != mark)
    return true;
  ++r->at;
  return number(r, most, out);
}

static const kind *read_kind(reader *r) {
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
    const size_t n = strlen(kinds[i].name);
    if (strncmp(r->at, kinds[i].name, n) == 0) {
      r->at += n;
      return &kinds[i];
    }
  }
  return NULL;
}

static bool read_marks(reader *r, opipe_action *a) {
  uint32_t slice = 0, part = 0, version = 0, peer = 0;
  if (!marked(r, '/', UINT16_MAX, &slice) || !marked(r, '~', UINT8_MAX, &part) ||
      !marked(r, '\'', UINT16_MAX, &version))
    return false;
  a->slice = (uint16_t)slice;
  a->part = (uint8_t)part;
  a->version = (uint16_t)version;
  if (*r->at == '+') {
    a->flags |= OPIPE_ACTION_NEXT_STEP;
    ++r->at;
  }
  return marked(r, '>', STAGES_MOST, &peer) && marked(r, '@', UINT16_MAX, &peer);
}

/* One action; *out_kind says what it is. `last`: the characters that may follow. */
static opipe_status read_action(reader *r, const char *last, opipe_action *out,
                                const kind **out_kind, opipe_error *err) {
  opipe_action a;
  uint32_t replica = 0;
  memset(&a, 0, sizeof a);
  a.rank = r->rank;
  const bool staged = *r->at >= '0' && *r->at <= '9';
  if (staged && (!number(r, STAGES_MOST, &a.stage) || !marked(r, '@', UINT16_MAX, &replica)))
    return refuse(r, err, "names no stage");
  a.replica = (uint16_t)replica;
  const kind *k = read_kind(r);
  if (k == NULL || (!staged && k->what == WORD_COMPUTE))
    return refuse(r, err, "is not an action");
  if (k->what == WORD_REFUSED)
    return refuse(r, err, "moves weights or stashes: such plans are not executed");
  if (k->what == WORD_GROUP)
    return refuse(r, err, "is of a group of ranks: such plans are not executed");
  const bool counted = *r->at >= '0' && *r->at <= '9';
  if ((counted && !number(r, MICROBATCHES_MOST, &a.microbatch)) ||
      (!counted && k->what == WORD_COMPUTE) || !read_marks(r, &a))
    return refuse(r, err, "names no micro-batch, or something after it cannot be read");
  if (*last == '\0' ? !ends_cell(*r->at) : *r->at != *last)
    return refuse(r, err, "continues where it should end");
  a.pass = k->pass;
  if (r->dialect == CSV_B_IS_INPUT && strcmp(k->name, "B") == 0)
    a.pass = OPIPE_PASS_BACKWARD_INPUT;
  *out = a;
  *out_kind = k;
  return OPIPE_OK;
}

static bool same_unit(const opipe_action *a, const opipe_action *b) {
  return a->stage == b->stage && a->replica == b->replica && a->microbatch == b->microbatch &&
         a->slice == b->slice;
}

/* An R is kept until its backward comes, which must be the next compute action. */
static opipe_status take(reader *r, opipe_action *a, const kind *k, opipe_error *err) {
  if (k->what != WORD_COMPUTE)
    return OPIPE_OK;
  if (r->has_again) {
    const bool fits = !k->again && same_unit(&r->again, a) &&
                      (a->pass == OPIPE_PASS_BACKWARD || a->pass == OPIPE_PASS_BACKWARD_INPUT);
    if (!fits) {
      return refuse(r, err,
                    "follows an R of something else: an R comes directly before its backward");
    }
    a->flags |= OPIPE_ACTION_RECOMPUTE;
    r->has_again = false;
  }
  if (k->again) {
    r->again = *a;
    r->has_again = true;
    return OPIPE_OK;
  }
  return r->visit(r->ctx, a, r->step, err);
}

/* "(a;b)OVERLAP_F_B" */
static opipe_status read_pair(reader *r, opipe_error *err) {
  static const char tail[] = ")OVERLAP_F_B";
  opipe_action first, second;
  const kind *k1 = NULL, *k2 = NULL;
  ++r->at;
  opipe_status status = read_action(r, ";", &first, &k1, err);
  if (status < 0)
    return status;
  ++r->at;
  status = read_action(r, ")", &second, &k2, err);
  if (status < 0)
    return status;
  if (k1->what != WORD_COMPUTE || k2->what != WORD_COMPUTE || k1->again || k2->again ||
      strncmp(r->at, tail, sizeof tail - 1) != 0 || !ends_cell(r->at[sizeof tail - 1]))
    return refuse(r, err, "is not a pair (F;B)OVERLAP_F_B");
  r->at += sizeof tail - 1;
  first.flags |= OPIPE_ACTION_OVERLAP_NEXT;
  status = take(r, &first, k1, err);
  return status < 0 ? status : take(r, &second, k2, err);
}

static opipe_status read_row(reader *r, opipe_error *err) {
  r->has_again = false;
  while (*r->at != '\0' && *r->at != '\n') {
    if (ends_cell(*r->at) || (*r->at == '-' && ends_cell(r->at[1]))) {
      ++r->at; /* idle, or between cells */
      continue;
    }
    opipe_action action;
    const kind *k = NULL;
    r->cell = r->at;
    opipe_status status = OPIPE_OK;
    if (*r->at == '(') {
      status = read_pair(r, err);
    } else {
      status = read_action(r, "", &action, &k, err);
      status = status < 0 ? status : take(r, &action, k, err);
    }
    if (status < 0)
      return status;
    ++r->step;
  }
  if (r->has_again)
    return refuse(r, err, "ends a row whose R has no backward");
  return OPIPE_OK;
}

static bool only_blanks(const char *text) {
  return text[strspn(text, " \t\r\n")] == '\0';
}

/* "rank 2:" in front of a row must name the row. */
static opipe_status read_label(reader *r, opipe_error *err) {
  uint32_t n = 0;
  r->cell = r->at;
  r->step = 0;
  if (strncmp(r->at, "rank ", 5) != 0)
    return OPIPE_OK;
  r->at += 5;
  if (!number(r, STAGES_MOST, &n) || n != r->rank || *r->at != ':')
    return refuse(r, err, "does not begin with the number of its row");
  ++r->at;
  return OPIPE_OK;
}

/* Keys that say how an order is executed, in ways that a text's is not. */
static bool is_refused(const char *key) {
  static const char *const keys[] = {"sync=",   "shares=",   "lengths=",   "copies=",
                                     "tensor=", "sharded=1", "sequence=1", "scattered=1"};
  bool refused = false;
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i)
    refused = refused || strncmp(key, keys[i], strlen(keys[i])) == 0;
  return refused;
}

/* Idle ranks at the end are known from here alone. */
static opipe_status read_ranks(const char *value, size_t n, csv_head *head, opipe_error *err) {
  uint64_t ranks = 0;
  size_t i = 0;
  for (; i < n && value[i] >= '0' && value[i] <= '9' && ranks <= RANKS_MOST; ++i)
    ranks = ranks * 10 + (uint64_t)(value[i] - '0');
  if (i == 0 || i < n || ranks == 0 || ranks > RANKS_MOST) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule 'csv': the header's ranks=%.*s is not a number from 1 to %d",
                      (int)(n < SHOWN ? n : SHOWN), value, RANKS_MOST);
  }
  head->ranks = (uint32_t)ranks;
  return OPIPE_OK;
}

/* "#key=value key=value" */
static opipe_status read_header(reader *r, csv_head *head, opipe_error *err) {
  static const char *const syncs[] = {"sync=end", "sync=eager", "sync=eager-opt"};
  const size_t n = strcspn(r->at, "\r\n");
  for (size_t i = 1; i < n;) {
    const size_t length = strcspn(r->at + i, " \t\r\n");
    const char *key = r->at + i;
    bool known = false;
    for (uint32_t k = 0; k < 3; ++k) {
      if (length == strlen(syncs[k]) && strncmp(key, syncs[k], length) == 0) {
        head->sync = k;
        known = true;
      }
    }
    if (!known && is_refused(key)) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "schedule 'csv': the header's %.*s is not executed from a text%s",
                        (int)(length < SHOWN ? length : SHOWN), key,
                        strncmp(key, "lengths=", 8) == 0
                            ? ", whose token slices have equal lengths: name the schedule instead"
                            : "");
    }
    if (length >= 6 && strncmp(key, "ranks=", 6) == 0) {
      const opipe_status status = read_ranks(key + 6, length - 6, head, err);
      if (status < 0)
        return status;
    }
    i += length + 1;
  }
  r->at += n;
  return OPIPE_OK;
}

opipe_status csv_parse(const char *text, uint32_t dialect, csv_visit_fn visit, void *ctx,
                       csv_head *out_head, opipe_error *err) {
  reader r = {.at = text, .cell = text, .dialect = dialect, .visit = visit, .ctx = ctx};
  *out_head = (csv_head){.sync = OPIPE_SYNC_END};
  while (!only_blanks(r.at)) {
    opipe_status status = OPIPE_OK;
    if (*r.at == '#') {
      status = read_header(&r, out_head, err);
      r.at += strcspn(r.at, "\n");
    } else {
      status = read_label(&r, err);
      status = status < 0 ? status : read_row(&r, err);
      ++r.rank;
    }
    if (status < 0)
      return status;
    r.at += *r.at == '\n';
  }
  if (out_head->ranks != 0 && r.rank > out_head->ranks) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule 'csv': the header says %u ranks, the text has %u rows",
                      out_head->ranks, r.rank);
  }
  if (out_head->ranks == 0)
    out_head->ranks = r.rank;
  return OPIPE_OK;
}
