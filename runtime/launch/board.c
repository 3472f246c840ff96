/* SPDX-License-Identifier: Apache-2.0 */
/* The board: entries that every process sees. Each process holds all of them, so that a look never
 * waits; process 0 passes them on. */
#include <string.h>

#include "runtime/launch/team.h"

enum { ENTRIES_MOST = 1 << 16, FIRST_ROOM = 16 };

void opi_board_release(opi_team *t) {
  opi_board *b = &t->board;
  for (uint32_t i = 0; i < b->n; ++i)
    opi_free(t->allocator, b->entries[i].bytes, b->entries[i].n);
  opi_free(t->allocator, b->entries, b->room * sizeof *b->entries);
  opi_map_free(b->keys);
}

static opipe_status make_room(opi_team *t, opipe_error *err) {
  opi_board *b = &t->board;
  if (b->n == ENTRIES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "the board has %u entries, at most %d are allowed", b->n,
                    ENTRIES_MOST);
  }
  if (b->n < b->room)
    return OPIPE_OK;
  const uint32_t room = b->room == 0 ? FIRST_ROOM : b->room * 2;
  opi_entry_posted *grown =
      opi_resize(t->allocator, b->entries, b->room * sizeof *grown, room * sizeof *grown);
  if (grown == NULL)
    return opi_fail_nomem(err, room * sizeof *grown, "the board");
  b->entries = grown;
  b->room = room;
  return OPIPE_OK;
}

static opipe_status put(opi_team *t, const char *key, const uint8_t *bytes, uint32_t n,
                        opipe_error *err) {
  opi_board *b = &t->board;
  uint32_t i = 0;
  if (opi_map_get(b->keys, key, &i)) {
    return opi_fail(err, OPIPE_E_STATE,
                    "board entry '%s' is taken: it has %u bytes, now it is posted with %u", key,
                    b->entries[i].n, n);
  }
  OPI_TRY(make_room(t, err));
  uint8_t *copy = n == 0 ? NULL : opi_alloc(t->allocator, n);
  if (copy == NULL && n != 0)
    return opi_fail_nomem(err, n, "an entry of the board");
  const opipe_status status = opi_map_set(b->keys, key, b->n, err);
  if (status < 0) {
    opi_free(t->allocator, copy, n);
    return status;
  }
  if (n != 0)
    memcpy(copy, bytes, n);
  b->entries[b->n++] = (opi_entry_posted){copy, n};
  return OPIPE_OK;
}

static opipe_status replace(opi_team *t, uint32_t i, const opi_channel_message *m, uint64_t from,
                            opipe_error *err) {
  opi_entry_posted *entry = &t->board.entries[i];
  const uint32_t n = (uint32_t)(m->n_bytes - from);
  uint8_t *copy = n == 0 ? NULL : opi_alloc(t->allocator, n);
  if (copy == NULL && n != 0)
    return opi_fail_nomem(err, n, "an entry of the board");
  if (n != 0)
    memcpy(copy, m->bytes + from, n);
  opi_free(t->allocator, entry->bytes, entry->n);
  *entry = (opi_entry_posted){copy, n};
  return OPIPE_OK;
}

/* A message: the key with the 0 at its end, then the bytes. */
opipe_status opi_board_hear(opi_team *t, opi_connection *link, const opi_channel_message *m,
                            opipe_error *err) {
  const char *key = (const char *)m->bytes;
  const uint64_t n_key = strnlen(key, m->n_bytes < OPI_KEY_ROOM ? m->n_bytes : OPI_KEY_ROOM);
  if (n_key == 0 || n_key == m->n_bytes || n_key == OPI_KEY_ROOM ||
      m->n_bytes - n_key - 1 > OPI_POST_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "a board entry of %llu bytes without a key that fits",
                    (unsigned long long)m->n_bytes);
  }
  uint32_t taken = 0; /* two posted it at once: what process 0 had first counts */
  if (opi_map_get(t->board.keys, key, &taken))
    return opi_team_is_root(t) ? OPIPE_OK : replace(t, taken, m, n_key + 1, err);
  OPI_TRY(put(t, key, m->bytes + n_key + 1, (uint32_t)(m->n_bytes - n_key - 1), err));
  if (opi_team_is_root(t))
    opi_team_send(t, link->rank, OPI_FRAME_POST, 0, m->bytes, m->n_bytes);
  return OPIPE_OK;
}

static opipe_status check_key(const char *call, const char *key, opipe_error *err) {
  const size_t n = key == NULL ? 0 : strlen(key);
  return n != 0 && n < OPI_KEY_ROOM
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "%s: a key of %zu bytes, 1 to %d are allowed", call,
                        n, OPI_KEY_ROOM - 1);
}

opipe_status opi_team_post(opi_team *t, const char *key, const void *bytes, uint64_t n_bytes,
                           opipe_error *err) {
  uint8_t whole[OPI_KEY_ROOM + OPI_POST_MOST];
  OPI_TRY(check_key("post", key, err));
  if (n_bytes > OPI_POST_MOST || (bytes == NULL && n_bytes != 0)) {
    return opi_fail(err, OPIPE_E_LIMIT, "post '%s': %llu bytes, at most %d are allowed", key,
                    (unsigned long long)n_bytes, OPI_POST_MOST);
  }
  const size_t n_key = strlen(key) + 1;
  memcpy(whole, key, n_key);
  if (n_bytes != 0)
    memcpy(whole + n_key, bytes, n_bytes);
  opi_lock_take(&t->lock);
  opipe_status status = opi_team_failure(t, err);
  if (status == OPIPE_OK)
    status = put(t, key, bytes, (uint32_t)n_bytes, err);
  if (status == OPIPE_OK)
    opi_team_send(t, OPI_NOBODY, OPI_FRAME_POST, 0, whole, n_key + n_bytes);
  opi_lock_give(&t->lock);
  return status;
}

/* Is it the entry that each process has for itself, whatever precedes its name? */
static bool is_own_address(const char *key) {
  static const char name[] = "/" OPI_BOARD_ADDRESS;
  const size_t n = strlen(key);
  return n >= sizeof name - 1 && strcmp(key + n - (sizeof name - 1), name) == 0;
}

/* The end of any of its connections by TCP. */
static opipe_status look_own_address(opi_team *t, char *out, uint64_t *io_bytes, opipe_error *err) {
  char host[OPI_FROM_ROOM] = "";
  bool found = false;
  for (uint32_t i = 0; i < t->n_links && !found; ++i)
    found = t->links[i].fd >= 0 && opi_tcp_own_host(t->links[i].fd, host);
  const uint64_t n = strlen(host), room = *io_bytes;
  if (!found)
    return OPIPE_PENDING;
  *io_bytes = n;
  if (n > room) {
    return opi_fail(err, OPIPE_E_LIMIT, "look '" OPI_BOARD_ADDRESS "': %llu bytes, room for %llu",
                    (unsigned long long)n, (unsigned long long)room);
  }
  memcpy(out, host, n);
  return OPIPE_OK;
}

opipe_status opi_team_look(opi_team *t, const char *key, void *out, uint64_t *io_bytes,
                           opipe_error *err) {
  uint32_t i = 0;
  OPI_TRY(check_key("look", key, err));
  opi_lock_take(&t->lock);
  opipe_status status = opi_team_failure(t, err);
  if (status == OPIPE_OK && is_own_address(key)) {
    status = look_own_address(t, out, io_bytes, err);
    opi_lock_give(&t->lock);
    return status;
  }
  if (status == OPIPE_OK && !opi_map_get(t->board.keys, key, &i))
    status = OPIPE_PENDING;
  if (status == OPIPE_OK) {
    const opi_entry_posted *there = &t->board.entries[i];
    const uint64_t room = *io_bytes;
    *io_bytes = there->n;
    if (there->n > room) {
      status = opi_fail(err, OPIPE_E_LIMIT, "look '%s': %u bytes, there is room for %llu", key,
                        there->n, (unsigned long long)room);
    } else if (there->n != 0) {
      memcpy(out, there->bytes, there->n);
    }
  }
  opi_lock_give(&t->lock);
  return status;
}
