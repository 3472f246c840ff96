/* SPDX-License-Identifier: Apache-2.0 */
/* Notes on the board. Each rank leaves one, in as many parts as it takes: its NCCL, its GPU, how
 * many streams and groups it has opened with whom, and a hash of them. Notes that do not fit
 * together are refused before NCCL is asked, since it would wait, or end the process.
 */
#include "world.h"

#define MAGIC UINT32_C(0x6f706e31) /* changes with the note */
enum { ENTRY_EDGE = 1, ENTRY_SET = 2 };

typedef struct entry {
  uint32_t kind, peer; /* peer: of an edge */
  uint64_t id;         /* of a set: a hash of its ranks */
  uint64_t n, hash;    /* streams or groups */
} entry;

typedef struct head {
  uint32_t magic, n_ranks, version, n_parts, n_entries, reserved;
  uint8_t uuid[16];
} head;

enum { ENTRIES = (OPIPE_BOARD_BYTES - sizeof(head)) / sizeof(entry) };
typedef struct note {
  head head;
  entry entries[ENTRIES];
} note;
_Static_assert(sizeof(note) <= OPIPE_BOARD_BYTES, "a note of the board");

typedef struct end_note { /* why a rank has ended the world */
  uint32_t magic, rank;
  int32_t status;
  char text[NCCL_TEXT];
} end_note;

static void key_of(uint32_t rank, uint32_t part, char out[OPIPE_BOARD_KEY]) {
  if (part == 0)
    (void)snprintf(out, OPIPE_BOARD_KEY, "nccl/%u", rank);
  else
    (void)snprintf(out, OPIPE_BOARD_KEY, "nccl/%u/%u", rank, part);
}

static uint64_t id_of(const nccl_comm *comm) {
  uint64_t hash[2];
  machine_hash_ranks(comm->ranks, comm->n, hash);
  return hash[0];
}

/* ---- the own note ---- */

/* Writes the entries from number `first` on that fit, and how many there are in all. */
static uint32_t list(const opipe_endpoint *e, uint32_t first, note *out) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < e->world->n_ranks; ++r) {
    const nccl_edge *edge = &e->setup.edges[r];
    if (edge->n_streams == 0)
      continue;
    if (n >= first && n - first < ENTRIES)
      out->entries[n - first] = (entry){ENTRY_EDGE, r, 0, edge->n_streams, edge->hash};
    ++n;
  }
  for (const nccl_comm *comm = e->comms; comm != NULL; comm = comm->next) {
    if (!comm->sums)
      continue;
    if (n >= first && n - first < ENTRIES)
      out->entries[n - first] = (entry){ENTRY_SET, 0, id_of(comm), comm->n_groups, comm->hash};
    ++n;
  }
  return n;
}

static opipe_status post(opipe_endpoint *e, opipe_error *err) {
  const opipe_board *board = e->world->board;
  const nccl_library *lib = e->world->library;
  char key[OPIPE_BOARD_KEY];
  CUuuid uuid;
  note own;
  memset(&own, 0, sizeof own);
  memset(&uuid, 0, sizeof uuid);
  const CUresult result = lib->driver.device_uuid(&uuid, e->gpu);
  if (result != NCCL_CUDA_FINE) {
    return opipe_fail(err, OPIPE_E_DEVICE, "rank %u: its GPU's identity: the driver answers %d",
                      e->rank, (int)result);
  }
  memcpy(e->setup.uuids[e->rank], &uuid, sizeof uuid);
  e->setup.heard[e->rank] = true;
  const uint32_t n = list(e, 0, &own), n_parts = n == 0 ? 1 : (n + ENTRIES - 1) / ENTRIES;
  for (opipe_status status = OPIPE_OK; board != NULL && e->setup.n_posted < n_parts;) {
    (void)list(e, e->setup.n_posted * ENTRIES, &own);
    const uint32_t left = n - e->setup.n_posted * ENTRIES;
    own.head = (head){.magic = MAGIC,
                      .n_ranks = e->world->n_ranks,
                      .version = (uint32_t)lib->version,
                      .n_parts = n_parts,
                      .n_entries = left < ENTRIES ? left : (uint32_t)ENTRIES};
    memcpy(own.head.uuid, &uuid, sizeof uuid);
    key_of(e->rank, e->setup.n_posted, key);
    status = board->post(board->ctx, key, &own,
                         offsetof(note, entries) + own.head.n_entries * sizeof(entry), err);
    if (status < 0)
      return status;
    ++e->setup.n_posted;
  }
  return OPIPE_OK;
}

/* ---- the others' ---- */

static opipe_status check_head(const opipe_endpoint *e, uint32_t rank, const note *n,
                               uint64_t n_bytes, opipe_error *err) {
  char own[32], theirs[32];
  if (n_bytes < sizeof(head) || n->head.magic != MAGIC || n->head.n_entries > ENTRIES ||
      n_bytes != offsetof(note, entries) + n->head.n_entries * sizeof(entry)) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "rank %u: its note on the board (%llu bytes) is of another version", rank,
                      (unsigned long long)n_bytes);
  }
  if (n->head.n_ranks != e->world->n_ranks) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "rank %u is in a world of %u ranks, rank %u in one of %u", rank,
                      n->head.n_ranks, e->rank, e->world->n_ranks);
  }
  if (n->head.version == (uint32_t)e->world->library->version)
    return OPIPE_OK;
  nccl_version_text(e->world->library->version, own);
  nccl_version_text((int)n->head.version, theirs);
  return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                    "transport 'nccl': rank %u has NCCL %s, rank %u NCCL %s: all ranks of a run "
                    "need the same version",
                    e->rank, own, rank, theirs);
}

static opipe_status check_gpu(const opipe_endpoint *e, uint32_t rank, opipe_error *err) {
  char text[40];
  size_t n = 0;
  for (uint32_t r = 0; r < e->world->n_ranks; ++r) {
    if (r == rank || !e->setup.heard[r] || memcmp(e->setup.uuids[r], e->setup.uuids[rank], 16) != 0)
      continue;
    for (int i = 0; i < 16; ++i) {
      n += (size_t)snprintf(text + n, sizeof text - n, "%s%02x",
                            i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                            e->setup.uuids[rank][i]);
    }
    return opipe_fail(
        err, OPIPE_E_UNSUPPORTED,
        "transport 'nccl': ranks %u and %u are on one GPU (GPU-%s), and NCCL takes one "
        "rank of each: give each a GPU of its own (for tests: nccl:share=1)",
        r < rank ? r : rank, r < rank ? rank : r, text);
  }
  return OPIPE_OK;
}

static bool has_member(const nccl_comm *comm, uint32_t rank) {
  uint32_t i = 0;
  while (i < comm->n && comm->ranks[i] != rank)
    ++i;
  return i < comm->n;
}

static opipe_status differs(const opipe_endpoint *e, uint32_t rank, const char *what, uint64_t own,
                            uint64_t theirs, opipe_error *err) {
  return opipe_fail(err, OPIPE_E_INVALID,
                    "transport 'nccl': ranks %u and %u have not opened the same %s: rank %u has "
                    "%llu, rank %u %llu%s",
                    e->rank, rank, what, e->rank, (unsigned long long)own, rank,
                    (unsigned long long)theirs,
                    own == theirs ? ", of other sizes or between other stages" : "");
}

/* Compares one part; *io_edge: an entry of the edge between the two was found. */
static opipe_status compare(opipe_endpoint *e, uint32_t rank, const note *n, bool *io_edge,
                            opipe_error *err) {
  const nccl_edge *edge = &e->setup.edges[rank];
  for (uint32_t i = 0; i < n->head.n_entries; ++i) {
    const entry *at = &n->entries[i];
    if (at->kind == ENTRY_EDGE && at->peer == e->rank) {
      *io_edge = true;
      if (at->n != edge->n_streams || at->hash != edge->hash)
        return differs(e, rank, "streams", edge->n_streams, at->n, err);
    }
    for (nccl_comm *comm = e->comms; comm != NULL && at->kind == ENTRY_SET; comm = comm->next) {
      if (!comm->sums || id_of(comm) != at->id)
        continue;
      comm->seen = rank + 1;
      if (at->n != comm->n_groups || at->hash != comm->hash)
        return differs(e, rank, "groups of their ranks", comm->n_groups, at->n, err);
    }
  }
  return OPIPE_OK;
}

static opipe_status hear(opipe_endpoint *e, uint32_t rank, opipe_error *err) {
  const opipe_board *board = e->world->board;
  char key[OPIPE_BOARD_KEY];
  uint32_t n_parts = 1;
  bool has_edge = false;
  note there;
  for (uint32_t part = 0; part < n_parts; ++part) {
    uint64_t n_bytes = sizeof there;
    key_of(rank, part, key);
    opipe_status status = board->look(board->ctx, key, &there, &n_bytes, err);
    if (status == OPIPE_OK)
      status = check_head(e, rank, &there, n_bytes, err);
    if (status == OPIPE_OK)
      status = compare(e, rank, &there, &has_edge, err);
    if (status != OPIPE_OK)
      return status;
    n_parts = there.head.n_parts;
  }
  if (!has_edge && e->setup.edges[rank].n_streams != 0)
    return differs(e, rank, "streams", e->setup.edges[rank].n_streams, 0, err);
  for (const nccl_comm *comm = e->comms; comm != NULL; comm = comm->next) {
    if (comm->sums && has_member(comm, rank) && comm->seen != rank + 1)
      return differs(e, rank, "groups of their ranks", comm->n_groups, 0, err);
  }
  memcpy(e->setup.uuids[rank], there.head.uuid, sizeof there.head.uuid);
  e->setup.heard[rank] = true;
  return e->world->options.share ? OPIPE_OK : check_gpu(e, rank, err);
}

opipe_status nccl_meet(opipe_endpoint *e, opipe_error *err) {
  opipe_status all = post(e, err);
  if (all < 0)
    return all;
  if (e->world->board == NULL && e->world->n_ranks > 1) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "transport 'nccl': %u ranks without a board: NCCL takes one rank of each "
                      "process (onnx-pipe launch -n)",
                      e->world->n_ranks);
  }
  for (uint32_t r = 0; r < e->world->n_ranks; ++r) {
    const opipe_status status = e->setup.heard[r] ? OPIPE_OK : hear(e, r, err);
    if (status < 0)
      return status;
    all = status == OPIPE_OK ? all : OPIPE_PENDING;
  }
  return all;
}

/* ---- unique ids ---- */

opipe_status nccl_find_id(opipe_endpoint *e, const nccl_comm *comm, ncclUniqueId *out,
                          opipe_error *err) {
  const opipe_board *board = e->world->board;
  char key[OPIPE_BOARD_KEY];
  uint64_t hash[2], n_bytes = sizeof *out;
  machine_hash_ranks(comm->ranks, comm->n, hash);
  (void)snprintf(key, sizeof key, "nccl/id/%s%016llx%016llx", comm->sums ? "s" : "m",
                 (unsigned long long)hash[0], (unsigned long long)hash[1]);
  if (comm->index != 0) {
    const opipe_status status = board->look(board->ctx, key, out, &n_bytes, err);
    if (status != OPIPE_OK || n_bytes == sizeof *out)
      return status;
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u: its id on the board has %llu bytes, not %zu",
                      comm->ranks[0], (unsigned long long)n_bytes, sizeof *out);
  }
  const opipe_status status =
      nccl_fine(e, comm, "ncclGetUniqueId", e->world->library->nccl.unique_id(out), err);
  return status < 0 || comm->n == 1 ? status : board->post(board->ctx, key, out, sizeof *out, err);
}

/* ---- the end ---- */

enum { HEARS = 64 }; /* ranks of which one look hears */

static void key_of_end(uint32_t rank, char out[OPIPE_BOARD_KEY]) {
  (void)snprintf(out, OPIPE_BOARD_KEY, "nccl/end/%u", rank);
}

/* The first reason of this process, under a key of its rank. */
void nccl_post_end(opipe_world *world, uint32_t own, uint32_t rank, const opipe_error *why) {
  end_note end = {.magic = MAGIC, .rank = rank, .status = why->status};
  char key[OPIPE_BOARD_KEY];
  if (world->board == NULL)
    return;
  key_of_end(own, key);
  (void)snprintf(end.text, sizeof end.text, "%.*s", NCCL_TEXT - 1, why->message);
  (void)world->board->post(world->board->ctx, key, &end, sizeof end, NULL);
}

static void hear_end(opipe_world *world, uint32_t rank) {
  end_note end;
  uint64_t n_bytes = sizeof end;
  opipe_error why = OPIPE_ERROR_INIT;
  char key[OPIPE_BOARD_KEY];
  key_of_end(rank, key);
  if (world->board->look(world->board->ctx, key, &end, &n_bytes, NULL) != OPIPE_OK ||
      n_bytes != sizeof end || end.magic != MAGIC)
    return;
  end.text[sizeof end.text - 1] = '\0';
  (void)opipe_fail(&why, end.status, "%s", end.text);
  nccl_end(world, end.rank, &why, false);
}

void nccl_hear_end(opipe_endpoint *e, bool of_all) {
  opipe_world *world = e->world;
  const uint32_t n = world->n_ranks, most = of_all || n < HEARS ? n : (uint32_t)HEARS;
  for (uint32_t i = 0; i < most && world->board != NULL && atomic_load(&world->ended) == 0; ++i) {
    e->helper.hears = (e->helper.hears + 1) % n;
    if (e->helper.hears != e->rank)
      hear_end(world, e->helper.hears);
  }
}
