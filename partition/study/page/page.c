/* SPDX-License-Identifier: Apache-2.0 */
/* Spans as bytes, bytes as JSON, JSON in a document. */
#include "partition/study/page/page.h"

#include <math.h>
#include <string.h>

#include "loader/base/json.h"
#include "partition/study/page/document.h"

#define SPAN_NAME(NAME, name) name,
static const char *const names[OPI_SPAN_KINDS] = {OPI_SPANS(SPAN_NAME)};

/* ---- begun ---- */

void opi_page_begin(opi_page *page, const opipe_allocator *allocator, const char *title,
                    const char *unit) {
  *page = (opi_page){.in_tracks = true};
  opi_text_init(&page->data, allocator);
  opi_text_init(&page->bytes, allocator);
  opi_arena_init(&page->arena, allocator, 0);
  opi_text_puts(&page->data, "{\"format\": \"onnx-pipe page 1\",\n\"title\": ");
  opi_text_json(&page->data, title);
  opi_text_puts(&page->data, ",\n\"unit\": ");
  opi_text_json(&page->data, unit);
  opi_text_puts(&page->data, ",\n\"kinds\": [");
  for (uint32_t k = 0; k < OPI_SPAN_KINDS; ++k)
    opi_text_printf(&page->data, "%s\"%s\"", k == 0 ? "" : ", ", names[k]);
  opi_text_puts(&page->data, "],\n\"tracks\": [");
}

static void put_number(opi_page *page, const char *name, double value) {
  opi_text_puts(&page->data, name);
  opi_json_double(&page->data, value);
}

/* ---- bytes ---- */

static void put_varint(opi_text *to, uint64_t value) {
  char byte[10];
  size_t n = 0;
  for (; value >= 0x80; value >>= 7)
    byte[n++] = (char)(0x80 | (value & 0x7f));
  byte[n++] = (char)value;
  opi_text_add(to, byte, n);
}

static void put_zigzag(opi_text *to, int64_t value) {
  put_varint(to, ((uint64_t)value << 1) ^ (value < 0 ? UINT64_MAX : 0));
}

static void put_base64(opi_text *to, const opi_text *from) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const uint8_t *data = (const uint8_t *)from->data;
  for (size_t i = 0; i < from->n; i += 3) {
    const size_t n = from->n - i < 3 ? from->n - i : 3;
    const uint32_t bits = (uint32_t)data[i] << 16 | (n > 1 ? (uint32_t)data[i + 1] << 8 : 0u) |
                          (n > 2 ? data[i + 2] : 0u);
    const char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63],
                          n > 1 ? digits[bits >> 6 & 63] : '=', n > 2 ? digits[bits & 63] : '='};
    opi_text_add(to, four, sizeof four);
  }
}

/* ---- lanes ---- */

static void put_index(opi_page *page, uint32_t value) {
  if (value == OPIPE_NONE)
    opi_text_puts(&page->data, "-1,");
  else
    opi_text_printf(&page->data, "%u,", value);
}

static void put_classes(opi_page *page) {
  opi_text_puts(&page->data, ", \"classes\": [");
  for (uint32_t i = 0; i < page->n_classes; ++i) {
    const opi_page_span *k = &page->classes[i].key;
    opi_text_printf(&page->data, "%s[%u,", i == 0 ? "" : ",", k->kind);
    put_index(page, k->stage);
    opi_text_printf(&page->data, "%u,%u,%u,", k->replica, k->slice, k->part);
    opi_json_double(&page->data, k->take);
    put_number(page, ",", k->give);
    opi_text_puts(&page->data, "]");
  }
  opi_text_puts(&page->data, "]");
}

static void end_lane(opi_page *page) {
  const opi_page_lane *l = &page->lane;
  if (!page->in_lane)
    return;
  page->in_lane = false;
  opi_text_printf(&page->data, "%s\n {\"rank\": %u, \"peer\": ", page->n_lanes == 1 ? "" : ",",
                  l->rank);
  put_index(page, l->peer);
  opi_text_printf(&page->data, " \"copies\": %u, \"device\": ", l->copies);
  if (l->device == NULL)
    opi_text_puts(&page->data, "null");
  else
    opi_text_json(&page->data, l->device);
  if (l->clock != NULL)
    opi_text_printf(&page->data, ", \"clock\": \"%s\"", l->clock);
  put_number(page, ", \"fixed_bytes\": ", l->fixed_bytes);
  put_number(page, ", \"cap_bytes\": ", l->cap_bytes);
  put_number(page, ", \"message_bytes\": ", l->message_bytes);
  put_number(page, ", \"busy\": ", page->busy);
  opi_text_puts(&page->data, ", \"idle\": {");
  for (uint32_t k = OPI_SPAN_IDLE, n = 0; k < OPI_SPAN_IDLE_END; ++k) {
    if (page->idle[k] == 0)
      continue;
    opi_text_printf(&page->data, "%s\"%s\": ", n++ == 0 ? "" : ", ", names[k]);
    opi_json_double(&page->data, page->idle[k]);
  }
  opi_text_puts(&page->data, "}");
  put_classes(page);
  opi_text_printf(&page->data, ", \"n\": %u, \"spans\": \"", page->n_spans);
  put_base64(&page->data, &page->bytes);
  opi_text_puts(&page->data, "\"}");
}

void opi_page_add_lane(opi_page *page, const opi_page_lane *lane) {
  end_lane(page);
  page->lane = *lane;
  page->in_lane = true;
  page->n_classes = page->at_class = page->n_spans = 0;
  page->end = 0;
  page->busy = 0;
  memset(page->idle, 0, sizeof page->idle);
  page->bytes.n = 0;
  ++page->n_lanes;
}

/* ---- tracks ---- */

static void end_track(opi_page *page) {
  end_lane(page);
  if (page->in_track)
    opi_text_puts(&page->data, "]}");
  page->in_track = false;
}

void opi_page_add_track(opi_page *page, const opi_page_track *track) {
  enum { TICK_BITS = 31 };
  int exponent = 0;
  end_track(page);
  (void)frexp(track->end, &exponent);
  page->track = *track;
  page->tick = track->end > 0 ? ldexp(1, exponent - TICK_BITS) : 1;
  page->n_lanes = 0;
  page->in_track = true;
  opi_text_puts(&page->data, page->n_tracks++ == 0 ? "\n{\"name\": " : ",\n{\"name\": ");
  opi_text_json(&page->data, track->name);
  opi_text_puts(&page->data, ", \"kept\": ");
  opi_text_json(&page->data, track->kept);
  put_number(page, ", \"tick\": ", page->tick);
  put_number(page, ", \"end\": ", track->end);
  put_number(page, ", \"first\": ", track->first);
  put_number(page, ", \"step\": ", track->step);
  opi_text_puts(&page->data, ",\n\"figures\": ");
  opi_text_puts(&page->data, track->figures == NULL ? "null" : track->figures);
  opi_text_puts(&page->data, ",\n\"lanes\": [");
}

/* ---- spans ---- */

/* Searches from after the last hit: spans repeat in order. */
static opi_page_class *class_of(opi_page *page, const opi_page_span *span) {
  opi_page_span key = *span;
  key.microbatch = 0;
  key.start = key.end = 0;
  for (uint32_t i = 0; i < page->n_classes; ++i) {
    page->at_class = (page->at_class + 1) % page->n_classes;
    const opi_page_span *k = &page->classes[page->at_class].key;
    if (k->kind == key.kind && k->stage == key.stage && k->replica == key.replica &&
        k->slice == key.slice && k->part == key.part && k->take == key.take && k->give == key.give)
      return &page->classes[page->at_class];
  }
  if (!opi_arena_grow(&page->arena, (void **)&page->classes, &page->room_classes,
                      page->n_classes + 1, sizeof *page->classes)) {
    page->data.failed = true;
    return NULL;
  }
  page->at_class = page->n_classes++;
  page->classes[page->at_class] = (opi_page_class){.key = key, .microbatch = OPIPE_NONE};
  return &page->classes[page->at_class];
}

static void sum_up(opi_page *page, const opi_page_span *span) {
  const double last = page->track.first + page->track.step;
  const double start = fmax(span->start, page->track.first), end = fmin(span->end, last);
  if (end <= start)
    return;
  if (span->kind < OPI_SPAN_IDLE)
    page->busy += end - start;
  else
    page->idle[span->kind] += end - start;
}

void opi_page_add_span(opi_page *page, const opi_page_span *span) {
  if (span->end <= span->start && span->kind >= OPI_SPAN_IDLE && span->take == 0 && span->give == 0)
    return;
  opi_page_class *c = class_of(page, span);
  if (c == NULL)
    return;
  const int64_t start = llround(span->start / page->tick), end = llround(span->end / page->tick);
  put_varint(&page->bytes, page->at_class);
  put_zigzag(&page->bytes, (int64_t)(uint32_t)(span->microbatch + 1) -
                               (int64_t)(uint32_t)(c->microbatch + 1) - 1);
  put_zigzag(&page->bytes, start - page->end);
  put_zigzag(&page->bytes, end - start - c->length);
  c->microbatch = span->microbatch;
  c->length = end - start;
  page->end = end;
  ++page->n_spans;
  sum_up(page, span);
}

/* ---- written ---- */

void opi_page_add_member(opi_page *page, const char *name, const char *json) {
  end_track(page);
  if (page->in_tracks)
    opi_text_puts(&page->data, "]");
  page->in_tracks = false;
  opi_text_puts(&page->data, ",\n");
  opi_text_json(&page->data, name);
  opi_text_puts(&page->data, ": ");
  opi_text_puts(&page->data, json == NULL ? "null" : json);
}

opipe_status opi_page_add_json(opi_page *page, const char *name, const void *json, uint64_t n_bytes,
                               const char *what, opipe_error *err) {
  json_t *root = NULL;
  OPI_TRY(opi_json_parse(json, n_bytes, what, &root, err));
  json_decref(root);
  opi_page_add_member(page, name, "");
  opi_text_add(&page->data, json, (size_t)n_bytes);
  return OPIPE_OK;
}

/* In JSON, '<' occurs in strings only. */
static opipe_status write_data(const opi_text *data, opipe_write_fn write, void *ctx) {
  const char *at = data->data, *end = at + data->n;
  opipe_status status = OPIPE_OK;
  while (at < end && status >= 0) {
    const char *found = memchr(at, '<', (size_t)(end - at));
    status = write(ctx, at, (size_t)((found == NULL ? end : found) - at));
    if (found != NULL && status >= 0)
      status = write(ctx, "\\u003c", 6);
    at = found == NULL ? end : found + 1;
  }
  return status;
}

opipe_status opi_page_write(opi_page *page, opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_page_add_member(page, "spans", "\"LEB128\"");
  opi_text_puts(&page->data, "}\n");
  if (page->data.failed || page->bytes.failed)
    return opi_fail_nomem(err, page->data.room, "a page");
  opipe_status status = write(ctx, opi_page_before, opi_page_before_bytes);
  if (status >= 0)
    status = write_data(&page->data, write, ctx);
  if (status >= 0)
    status = write(ctx, opi_page_after, opi_page_after_bytes);
  return status >= 0 ? OPIPE_OK : opi_fail(err, status, "the page could not be written");
}

void opi_page_release(opi_page *page) {
  opi_text_release(&page->data);
  opi_text_release(&page->bytes);
  opi_arena_release(&page->arena);
}
