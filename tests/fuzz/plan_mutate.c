/* SPDX-License-Identifier: Apache-2.0 */
/* The mutator of plans. Most of the time it changes a parsed plan: one value anywhere, an action,
 * the stage of a node, two ranks, the rows; sometimes plain bytes. The fingerprint is put right
 * again nearly always, so that the reader goes on behind it.
 */
#include <math.h>

#include "tests/fuzz/plans.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

enum { DEPTH = 8, TOKENS_MOST = 1024, TEXT_MOST = 1 << 15 };

static uint32_t rng;

static uint32_t pick(size_t n) {
  rng = rng * 1664525u + 1013904223u;
  return n == 0 ? 0 : (uint32_t)((rng >> 8) % n);
}

/* ---- places in a plan ---- */

/* A value and where it hangs: a member (key) or an element (index) of parent. */
typedef struct place {
  json_t *parent, *value;
  const char *key;
  size_t index;
} place;

static size_t count_of(const json_t *value) {
  return json_is_object(value) ? json_object_size(value) : json_array_size(value);
}

static place child(json_t *parent, size_t index) {
  place at = {.parent = parent, .index = index};
  if (json_is_array(parent)) {
    at.value = json_array_get(parent, index);
    return at;
  }
  void *member = json_object_iter(parent);
  while (index-- > 0)
    member = json_object_iter_next(parent, member);
  at.key = json_object_iter_key(member);
  at.value = json_object_iter_value(member);
  return at;
}

/* A random value: every member of the plan has the same chance, however much is below it. */
static bool descend(json_t *root, place *out) {
  json_t *at = root;
  for (uint32_t depth = 0; depth < DEPTH && count_of(at) > 0; ++depth) {
    *out = child(at, pick(count_of(at)));
    at = out->value;
    if (count_of(at) == 0 || pick(4) == 0)
      return true;
  }
  return at != root;
}

/* Takes `value` over. */
static void put(const place *at, json_t *value) {
  if (value == NULL)
    return;
  if (at->key != NULL)
    (void)json_object_set_new(at->parent, at->key, value);
  else
    (void)json_array_set_new(at->parent, at->index, value);
}

static void drop(const place *at) {
  if (at->key != NULL)
    (void)json_object_del(at->parent, at->key);
  else
    (void)json_array_remove(at->parent, at->index);
}

static json_t *some_seed(void) {
  const plan_bench *b = plan_bench_get();
  return b->seeds[pick(b->n_seeds)].root;
}

/* A random value of that type, in the plan or another one; NULL: none was met. Borrowed. */
static json_t *another(json_t *root, json_type type) {
  place at;
  json_t *from = pick(4) == 0 ? some_seed() : root;
  for (uint32_t i = 0; i < 20; ++i) {
    if (descend(from, &at) && json_typeof(at.value) == type)
      return at.value;
  }
  return NULL;
}

/* ---- one value ---- */

static json_t *change_integer(json_t *root, json_int_t value) {
  static const json_int_t numbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       -1,
                                       255,
                                       256,
                                       65535,
                                       65536,
                                       1 << 20,
                                       INT32_MAX,
                                       UINT32_MAX,
                                       INT64_MAX,
                                       INT64_MIN,
                                       UINT32_MAX - 1LL,
                                       INT64_C(1) << 40};
  const json_t *other = NULL;
  switch (pick(6)) {
    case 0:
      return json_integer(numbers[pick(OPI_COUNT(numbers))]);
    case 1:
      return json_integer((json_int_t)((uint64_t)(value / 2) * 3));
    case 2:
      other = another(root, JSON_INTEGER);
      return json_integer(other == NULL ? 4 : json_integer_value(other));
    default:
      return json_integer((json_int_t)((uint64_t)value + pick(5) - 2));
  }
}

static json_t *change_real(double value) {
  static const double numbers[] = {0, -0.0, 1, -1, 0.5, 1e308, -1e308, 5e-324, 1e-30, 1e30, 1e15};
  switch (pick(4)) {
    case 0:
      return json_real(numbers[pick(OPI_COUNT(numbers))]);
    case 1:
      return json_integer((json_int_t)pick(9));
    default:
      value *= pick(2) == 0 ? 1.5 : -1;
      return isfinite(value) ? json_real(value) : NULL;
  }
}

/* A number in the text becomes another. */
static void change_digits(char *text, size_t *n) {
  char digits[24];
  for (uint32_t i = 0; i < 20 && *n > 0; ++i) {
    size_t from = pick(*n), to = from;
    if (text[from] < '0' || text[from] > '9')
      continue;
    while (from > 0 && text[from - 1] >= '0' && text[from - 1] <= '9')
      --from;
    while (to < *n && text[to] >= '0' && text[to] <= '9')
      ++to;
    const unsigned long old = strtoul(text + from, NULL, 10);
    const int room = snprintf(digits, sizeof digits, "%lu",
                              pick(8) == 0 ? (unsigned long)UINT32_MAX : old + pick(4) - 1);
    if (*n + (size_t)room > TEXT_MOST)
      return;
    memmove(text + from + room, text + to, *n - to);
    memcpy(text + from, digits, (size_t)room);
    *n = *n - (to - from) + (size_t)room;
    return;
  }
}

static json_t *change_string(json_t *root, const json_t *value) {
  static char text[2 * TEXT_MOST];
  size_t n = json_string_length(value);
  const json_t *other = pick(3) == 0 ? another(root, JSON_STRING) : NULL;
  if (other != NULL || n > TEXT_MOST / 2)
    return json_copy((json_t *)(uintptr_t)(other == NULL ? value : other));
  memcpy(text, json_string_value(value), n);
  if (pick(2) == 0)
    change_digits(text, &n);
  else
    n = LLVMFuzzerMutate((uint8_t *)text, n, n + 8);
  for (size_t i = 0; i < n; ++i) { /* it stays text */
    text[i] = (char)(text[i] & 127);
    text[i] = text[i] == '\0' ? '0' : text[i];
  }
  return json_stringn(text, n);
}

static json_t *change_type(const json_t *value) {
  switch (pick(7)) {
    case 0:
      return json_null();
    case 1:
      return json_boolean(pick(2));
    case 2:
      return json_pack("[O]", value);
    case 3:
      return json_object();
    case 4:
      return json_array();
    case 5:
      return json_string(json_is_string(value) ? "" : "1");
    default:
      return json_is_integer(value) ? json_real(0.5 + (double)pick(3)) : json_integer(1);
  }
}

static void change_value(json_t *root, const place *at) {
  if (pick(24) == 0) {
    put(at, change_type(at->value));
    return;
  }
  switch (json_typeof(at->value)) {
    case JSON_INTEGER:
      put(at, change_integer(root, json_integer_value(at->value)));
      return;
    case JSON_REAL:
      put(at, change_real(json_real_value(at->value)));
      return;
    case JSON_STRING:
      put(at, change_string(root, at->value));
      return;
    case JSON_TRUE:
    case JSON_FALSE:
      put(at, json_boolean(json_is_false(at->value)));
      return;
    default:
      put(at, change_type(at->value));
      return;
  }
}

/* ---- places in the tree ---- */

static void exchange(const place *a, const place *b) {
  json_t *first = json_deep_copy(a->value), *second = json_deep_copy(b->value);
  put(a, second);
  put(b, first);
}

/* The same member of another plan, else anything of it. */
static void splice(const place *at) {
  place from;
  json_t *seed = some_seed();
  json_t *same = at->key == NULL ? NULL : json_object_get(seed, at->key);
  if (same == NULL && at->key != NULL)
    same = json_object_get(json_object_get(seed, "training"), at->key);
  if (same != NULL && pick(4) != 0)
    put(at, json_deep_copy(same));
  else if (descend(seed, &from))
    put(at, json_deep_copy(from.value));
}

static void change_structure(json_t *root, const place *at) {
  place other = {.parent = NULL};
  switch (pick(6)) {
    case 0:
      drop(at);
      return;
    case 1: /* twice, or in another's place */
      if (at->key == NULL)
        (void)json_array_insert_new(at->parent, at->index, json_deep_copy(at->value));
      else if (descend(root, &other))
        put(&other, json_deep_copy(at->value));
      return;
    case 2:
      other = child(at->parent, pick(count_of(at->parent)));
      exchange(at, &other);
      return;
    case 3: /* moved: to the end of another list, or of the plan under its own name */
      if (descend(root, &other) && json_is_array(other.value) && other.value != at->value)
        (void)json_array_append_new(other.value, json_deep_copy(at->value));
      else if (at->key != NULL && at->parent != root)
        (void)json_object_set_new(root, at->key, json_deep_copy(at->value));
      return;
    default:
      splice(at);
      return;
  }
}

/* ---- meaning of a plan's members ---- */

static json_t *element(json_t *root, const char *list, size_t index) {
  return json_array_get(json_object_get(root, list), index);
}

/* Words of a line; text is cut apart in place. */
static uint32_t split(char *text, char **words) {
  uint32_t n = 0;
  char *more = NULL;
  for (char *word = strtok_r(text, " ", &more); word != NULL && n < TOKENS_MOST / 2;
       word = strtok_r(NULL, " ", &more))
    words[n++] = word;
  return n;
}

static void join(json_t *lines, size_t index, char *const *words, uint32_t n) {
  static char text[TEXT_MOST];
  size_t at = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < n && at < sizeof text - 64; ++i)
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%.60s", i == 0 ? "" : " ", words[i]);
  (void)json_array_set_new(lines, index, json_string(text));
}

/* One action, or word of `lines`: gone, twice, elsewhere, on another rank, or another one. */
static void change_actions(json_t *lines) {
  static char text[2][TEXT_MOST], changed[80];
  static const char marks[] = "@/~'+";
  char *words[2][TOKENS_MOST];
  uint32_t n[2];
  const size_t line[2] = {pick(json_array_size(lines)), pick(json_array_size(lines))};
  for (uint32_t i = 0; i < 2; ++i) {
    const char *from = json_string_value(json_array_get(lines, line[i]));
    (void)snprintf(text[i], TEXT_MOST, "%s", from == NULL ? "" : from);
    n[i] = split(text[i], words[i]);
  }
  if (n[0] == 0)
    return;
  const uint32_t a = pick(n[0]), b = pick(3) == 0 ? pick(n[0]) : (a + 1) % n[0];
  char *word = words[0][a];
  size_t length = strlen(word) < 60 ? strlen(word) : 60;
  switch (pick(7)) {
    case 0:
      memmove(words[0] + a, words[0] + a + 1, (--n[0] - a) * sizeof(char *));
      break;
    case 1:
      words[0][n[0]++] = word;
      break;
    case 2:
    case 3:
      words[0][a] = words[0][b];
      words[0][b] = word;
      break;
    case 4: /* to the other line */
      words[1][n[1]++] = word;
      if (line[0] != line[1])
        join(lines, line[1], words[1], n[1]);
      memmove(words[0] + a, words[0] + a + 1, (--n[0] - a) * sizeof(char *));
      break;
    case 5:
      memcpy(changed, word, length);
      change_digits(changed, &length);
      changed[length] = '\0';
      words[0][a] = changed;
      break;
    default:
      (void)snprintf(changed, sizeof changed, "%.60s%c%u", word, marks[pick(5)], pick(3));
      if (pick(2) == 0) {
        (void)snprintf(changed, sizeof changed, "%.60s", word);
        changed[strcspn(changed, "FIWB")] = "FIWB"[pick(4)];
      }
      words[0][a] = changed;
      break;
  }
  join(lines, line[0], words[0], n[0]);
}

/* A node goes to another stage: mostly one at the border, which may well be right. */
static void move_node(json_t *root) {
  const size_t n = json_array_size(json_object_get(root, "stages")), from = pick(n);
  const bool up = from + 1 < n && (from == 0 || pick(2) == 0);
  const size_t to = pick(8) == 0 ? pick(n) : up ? from + 1 : from == 0 ? 0 : from - 1;
  json_t *source = json_object_get(element(root, "stages", from), "nodes");
  json_t *target = json_object_get(element(root, "stages", to), "nodes");
  const size_t n_nodes = json_array_size(source);
  const size_t node = pick(6) == 0 || n_nodes == 0 ? pick(n_nodes) : up ? n_nodes - 1 : 0;
  json_t *value = json_deep_copy(json_array_get(source, node));
  if (value == NULL || json_array_append_new(target, value) != 0)
    return;
  (void)json_array_remove(source, node);
}

static void rename_rank(json_t *value, json_int_t a, json_int_t b) {
  const json_int_t rank = json_integer_value(value);
  if (json_is_integer(value) && (rank == a || rank == b))
    (void)json_integer_set(value, rank == a ? b : a);
}

/* Two ranks exchange all that they do. */
static void exchange_ranks(json_t *root) {
  json_t *lines = json_object_get(root, "actions");
  json_t *ranks = json_object_get(json_object_get(root, "training"), "ranks");
  const size_t n = json_array_size(lines);
  if (n < 2)
    return;
  const place a = child(lines, pick(n)), b = child(lines, pick(n));
  for (size_t s = 0; s < json_array_size(json_object_get(root, "stages")); ++s) {
    rename_rank(json_object_get(element(root, "stages", s), "rank"), (json_int_t)a.index,
                (json_int_t)b.index);
  }
  for (size_t i = 0; i < json_array_size(ranks); ++i)
    rename_rank(json_array_get(ranks, i), (json_int_t)a.index, (json_int_t)b.index);
  exchange(&a, &b);
}

/* As many rows, everywhere. */
static void change_rows(json_t *root) {
  static const json_int_t many[] = {64, 1000, 65536, 1 << 20};
  const char *name = NULL;
  json_t *value = NULL, *rows = json_object_get(root, "batch_rows");
  const json_int_t old = json_integer_value(rows);
  const json_int_t wanted = pick(8) == 0 ? many[pick(4)] : 1 + (json_int_t)pick(9);
  json_object_foreach(json_object_get(root, "dims"), name, value) {
    if (json_is_integer(value) && (json_integer_value(value) == old || pick(8) == 0))
      (void)json_integer_set(value, wanted);
  }
  if (json_is_integer(rows))
    (void)json_integer_set(rows, wanted);
}

/* Two micro-batches exchange their numbers, on all ranks. */
static void exchange_microbatches(json_t *root) {
  static char text[2 * TEXT_MOST];
  json_t *lines = json_object_get(root, "actions");
  const json_t *count = json_object_get(root, "microbatches");
  const size_t most = json_integer_value(count) > 0 ? (size_t)json_integer_value(count) : 1;
  const unsigned long a = pick(most), b = pick(most);
  for (size_t line = 0; line < json_array_size(lines); ++line) {
    const char *at = json_string_value(json_array_get(lines, line));
    size_t n = 0;
    while (at != NULL && *at != '\0' && n < TEXT_MOST) {
      const bool pass = strchr("FIWB", *at) != NULL;
      char *end = NULL;
      text[n++] = *at++;
      if (!pass || *at < '0' || *at > '9')
        continue;
      const unsigned long m = strtoul(at, &end, 10);
      n += (size_t)snprintf(text + n, 24, "%lu", m == a ? b : m == b ? a : m);
      at = end;
    }
    if (at != NULL)
      (void)json_array_set_new(lines, line, json_stringn(text, n));
  }
}

/* A device has about as much memory as is needed. */
static void fit_memory(json_t *root) {
  const size_t rank = pick(json_array_size(json_object_get(root, "devices")));
  const json_t *total = json_object_get(element(root, "memory", rank), "total_bytes");
  static const json_int_t more[] = {0, 0, -1, 1, 64, -64, 4096};
  (void)json_object_set_new(element(root, "devices", rank), "memory_bytes",
                            json_integer(json_integer_value(total) + more[pick(OPI_COUNT(more))]));
}

/* Another transport, schedule, recomputation ... of a seed. */
static void take_setting(json_t *root) {
  static const char *const names[] = {"transport", "depth", "in_flight", "recompute",
                                      "optimizer", "sync",  "trainable", "compute",
                                      "versions",  "loss",  "trained",   "doubtful"};
  const char *name = names[pick(OPI_COUNT(names))];
  const json_t *seed = some_seed();
  json_t *value = json_object_get(seed, name), *into = root;
  if (value == NULL) {
    value = json_object_get(json_object_get(seed, "training"), name);
    into = json_object_get(root, "training");
  }
  if (value != NULL && into != NULL)
    (void)json_object_set_new(into, name, json_deep_copy(value));
}

static void change_anything(json_t *root, uint32_t what) {
  place at;
  if (!descend(root, &at))
    return;
  const bool top = at.parent == root; /* a missing member there is soon known */
  if (what < 17 || (top && pick(6) != 0))
    change_value(root, &at);
  else
    change_structure(root, &at);
}

/* Changes the costs for playing a plan: no decision, so that its hash still fits. */
static void change_play(json_t *root) {
  json_t *play = json_object_get(root, "play");
  place at;
  if (json_array_size(json_object_get(play, "lists")) > 0 && pick(3) != 0)
    change_actions(json_object_get(play, "lists"));
  else if (!descend(play, &at))
    return;
  else if (pick(4) != 0)
    change_value(play, &at);
  else
    change_structure(play, &at);
}

static void mutate(json_t *root) {
  const uint32_t what = pick(20);
  const bool plan = json_array_size(json_object_get(root, "actions")) > 0 &&
                    json_array_size(json_object_get(root, "stages")) > 0;
  if (!plan || what > 12)
    change_anything(root, what);
  else if (what < 5)
    change_actions(json_object_get(root, "actions"));
  else if (what < 7)
    move_node(root);
  else if (what == 7)
    exchange_ranks(root);
  else if (what == 8)
    change_rows(root);
  else if (what == 9)
    exchange_microbatches(root);
  else if (what == 10)
    fit_memory(root);
  else
    take_setting(root);
}

/* ---- the mutator ---- */

static size_t write_plan(json_t *root, uint8_t *data, size_t max_size) {
  char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
  const size_t n = text == NULL ? 0 : strlen(text);
  if (n <= max_size && n > 0)
    memcpy(data, text, n);
  free(text);
  return n <= max_size ? n : 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
  rng = seed;
  if (pick(16) == 0)
    return LLVMFuzzerMutate(data, size, max_size);
  json_t *root = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
  if (root == NULL && pick(4) == 0)
    return LLVMFuzzerMutate(data, size, max_size);
  if (!json_is_object(root)) { /* start anew */
    json_decref(root);
    root = json_deep_copy(some_seed());
  }
  json_t *print = json_deep_copy(json_object_get(root, "fingerprint"));
  const uint32_t times = pick(3) == 0 ? 1 + pick(4) : 1;
  const bool plays = json_object_get(root, "play") != NULL && pick(4) == 0;
  for (uint32_t i = 0; i < times; ++i) {
    if (plays)
      change_play(root);
    else
      mutate(root);
  }
  if (print != NULL && pick(32) != 0)
    (void)json_object_set_new(root, "fingerprint", print);
  else
    json_decref(print);
  if (!plays && pick(16) != 0) /* changed decisions have another hash */
    (void)json_object_del(root, "hash");
  const size_t n = write_plan(root, data, max_size);
  json_decref(root);
  return n == 0 ? LLVMFuzzerMutate(data, size, max_size) : n;
}
