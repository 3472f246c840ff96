/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers' variables, a row each. */
#include "runtime/launch/launchers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NUMBERS = 4, JOB_PARTS = 3, MISSING_ROOM = 200, PROC_ROOM = 512, ANCESTORS_MOST = 64 };
enum { RANK, SIZE, LOCAL_RANK, LOCAL_SIZE };

/* Names separated by '|' are looked up in this order. */
typedef struct launcher {
  const char *name;
  const char *begins;           /* without this variable the set is not there at all; NULL: rank or
                                   size */
  const char *numbers[NUMBERS]; /* NULL: there is none */
  bool local_is_needed;
  const char *job[JOB_PARTS]; /* tell jobs apart; the first must be set */
  const char *needed;         /* one more that must be set */
  const char *ancestor;       /* tells jobs apart in place of variables, on one machine */
  const char *nodes;          /* how many machines take part; NULL: sizes tell */
  const char *address[2];     /* host and port of process 0's machine; NULL: none */
  const char *taken;          /* if this is set, the port is not for the job */
} launcher;

static const launcher launchers[] = {
    {.name = "torchrun",
     .numbers = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
     .job = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
     .needed = "MASTER_ADDR",
     .address = {"MASTER_ADDR", "MASTER_PORT"},
     .taken = "TORCHELASTIC_USE_AGENT_STORE"},
    {.name = "openmpi",
     .numbers = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                 "OMPI_COMM_WORLD_LOCAL_SIZE"},
     .local_is_needed = true,
     .job = {"PMIX_NAMESPACE|OMPI_MCA_ess_base_jobid|OMPI_MCA_orte_hnp_uri"}},
    {.name = "hydra",
     .numbers = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
     .local_is_needed = true,
     .ancestor = "hydra_pmi_prox"},
    {.name = "slurm",
     .begins = "SLURM_STEP_ID",
     .numbers = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS|SLURM_NTASKS", "SLURM_LOCALID"},
     .job = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
     .nodes = "SLURM_STEP_NUM_NODES|SLURM_JOB_NUM_NODES|SLURM_NNODES"}};

/* The value of the first of `names` that is set and not empty; NULL: none. */
static const char *look(const opi_variables *v, const char *names) {
  char name[64];
  while (names != NULL && *names != '\0') {
    const size_t n = strcspn(names, "|");
    (void)snprintf(name, sizeof name, "%.*s", (int)n, names);
    const char *value = v->look(v->ctx, name);
    if (value != NULL && value[0] != '\0')
      return value;
    names += n + (names[n] == '|');
  }
  return NULL;
}

static void add_missing(char *missing, const opi_variables *v, const char *names) {
  const size_t used = strlen(missing);
  if (names == NULL || look(v, names) != NULL)
    return;
  (void)snprintf(missing + used, MISSING_ROOM - used, "%s%.*s", used == 0 ? "" : ", ",
                 (int)strcspn(names, "|"), names);
}

/* A variable of the set that is there; NULL: the set is not there at all. */
static const char *begun(const launcher *l, const opi_variables *v) {
  if (l->begins != NULL)
    return look(v, l->begins) != NULL ? l->begins : NULL;
  for (uint32_t i = RANK; i <= SIZE; ++i) {
    if (look(v, l->numbers[i]) != NULL)
      return l->numbers[i];
  }
  return NULL;
}

/* Writes the names of what is not set, "" if nothing. missing [MISSING_ROOM]. */
static void find_missing(const launcher *l, const opi_variables *v, char *missing) {
  missing[0] = '\0';
  for (uint32_t i = 0; i < NUMBERS; ++i) {
    if (i <= SIZE || l->local_is_needed)
      add_missing(missing, v, l->numbers[i]);
  }
  add_missing(missing, v, l->job[0]);
  add_missing(missing, v, l->needed);
}

static opipe_status refuse_incomplete(const launcher *l, const opi_variables *v, const char *set,
                                      opipe_error *err) {
  char missing[MISSING_ROOM];
  find_missing(l, v, missing);
  if (set == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "launcher '%s' was asked for, but %s %s not set", l->name,
                    missing[0] == '\0' ? l->begins : missing,
                    strchr(missing, ',') == NULL ? "is" : "are");
  }
  return opi_fail(err, OPIPE_E_INVALID,
                  "%.*s is set as by %s, but %s %s not: set all of them, or use launcher 'none'",
                  (int)strcspn(set, "|"), set, l->name, missing,
                  strchr(missing, ',') == NULL ? "is" : "are");
}

/* ---- reading a complete set ---- */

static opipe_status read_number(const launcher *l, const opi_variables *v, uint32_t which,
                                uint32_t preset, uint32_t *out, opipe_error *err) {
  int64_t value = preset;
  const char *text = look(v, l->numbers[which]);
  const int64_t least = which == SIZE || which == LOCAL_SIZE;
  if (text != NULL && !opi_parse_int(text, least, OPI_TEAM_MOST, &value)) {
    char line[OPI_LINE_ROOM];
    return opi_fail(err, OPIPE_E_INVALID, "%s: %.*s is '%s', not a number from %d to %d", l->name,
                    (int)strcspn(l->numbers[which], "|"), l->numbers[which],
                    opi_text_line(line, text), (int)least, OPI_TEAM_MOST);
  }
  *out = (uint32_t)value;
  return OPIPE_OK;
}

static void name_job(const launcher *l, const opi_variables *v, opi_place *out) {
  char part[OPI_JOB_ROOM] = "";
  int n = snprintf(out->job, sizeof out->job, "%s", l->name);
  out->job_is_local = l->ancestor != NULL;
  if (l->ancestor != NULL) {
    v->ancestor(v->ctx, l->ancestor, part, sizeof part);
    (void)snprintf(out->job + n, sizeof out->job - (size_t)n, "-%s", part);
  }
  for (uint32_t i = 0; i < JOB_PARTS; ++i) {
    const char *value = look(v, l->job[i]);
    const size_t used = strlen(out->job);
    if (value != NULL && used + 1 < sizeof out->job)
      (void)snprintf(out->job + used, sizeof out->job - used, "-%s", value);
  }
  (void)opi_text_clean(out->job, sizeof out->job);
}

/* Do several machines take part? */
static opipe_status read_nodes(const launcher *l, const opi_variables *v, opi_place *io,
                               opipe_error *err) {
  int64_t n = 1;
  const char *text = l->nodes == NULL ? NULL : look(v, l->nodes);
  if (text != NULL && !opi_parse_int(text, 1, OPI_TEAM_MOST, &n)) {
    char line[OPI_LINE_ROOM];
    return opi_fail(err, OPIPE_E_INVALID, "%s: %.*s is '%s', not a number from 1 to %d", l->name,
                    (int)strcspn(l->nodes, "|"), l->nodes, opi_text_line(line, text),
                    OPI_TEAM_MOST);
  }
  if (io->local_size > io->size) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %u processes on this machine, but %u in the job",
                    l->name, io->local_size, io->size);
  }
  io->several = n > 1 || io->local_size < io->size;
  if (n > 1)
    io->local_size = 0;
  return OPIPE_OK;
}

static opipe_status read_set(const launcher *l, const opi_variables *v, opi_place *out,
                             opipe_error *err) {
  (void)snprintf(out->launcher, sizeof out->launcher, "%s", l->name);
  OPI_TRY(read_number(l, v, RANK, 0, &out->rank, err));
  OPI_TRY(read_number(l, v, SIZE, 0, &out->size, err));
  OPI_TRY(read_number(l, v, LOCAL_RANK, out->rank, &out->local_rank, err));
  OPI_TRY(read_number(l, v, LOCAL_SIZE, out->size, &out->local_size, err));
  if (out->rank >= out->size) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %s is %u, but %.*s is %u: ranks are 0 to %u",
                    l->name, l->numbers[RANK], out->rank, (int)strcspn(l->numbers[SIZE], "|"),
                    l->numbers[SIZE], out->size, out->size - 1);
  }
  OPI_TRY(read_nodes(l, v, out, err));
  if (out->local_size != 0 && out->local_rank >= out->local_size) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %s is %u, but %u processes are on this machine",
                    l->name, l->numbers[LOCAL_RANK], out->local_rank, out->local_size);
  }
  name_job(l, v, out);
  return OPIPE_OK;
}

/* Notes a complete set that is not the one that counts, if it has another rank or size. */
static void add_against(const launcher *l, const opi_variables *v, opi_place *io_place) {
  char missing[MISSING_ROOM];
  opi_place other = {.job = ""};
  const size_t used = strlen(io_place->against);
  if (begun(l, v) == NULL)
    return;
  find_missing(l, v, missing);
  if (missing[0] != '\0' || read_set(l, v, &other, NULL) < 0 ||
      (other.rank == io_place->rank && other.size == io_place->size))
    return;
  (void)snprintf(io_place->against + used, sizeof io_place->against - used,
                 "%s%s says rank %u of %u", used == 0 ? "" : ", ", l->name, other.rank, other.size);
}

static const launcher *find_launcher(const char *name) {
  for (uint32_t i = 0; i < OPI_COUNT(launchers); ++i) {
    if (strcmp(launchers[i].name, name) == 0)
      return &launchers[i];
  }
  return NULL;
}

opipe_status opi_launcher_place(const opi_variables *v, const char *wanted, opi_place *out,
                                opipe_error *err) {
  char missing[MISSING_ROOM], line[OPI_LINE_ROOM];
  const launcher *incomplete = NULL;
  memset(out, 0, sizeof *out);
  memcpy(out->launcher, "none", sizeof "none");
  if (wanted != NULL && strcmp(wanted, "none") == 0)
    return OPIPE_OK;
  const launcher *only = wanted == NULL ? NULL : find_launcher(wanted);
  if (wanted != NULL && only == NULL) {
    return opi_fail(err, OPIPE_E_NOTFOUND,
                    "there is no launcher '%s': none, torchrun, openmpi, hydra, slurm",
                    opi_text_line(line, wanted));
  }
  for (uint32_t i = 0; i < OPI_COUNT(launchers); ++i) {
    const launcher *l = &launchers[i];
    if ((only != NULL && only != l) || (only == NULL && begun(l, v) == NULL))
      continue;
    find_missing(l, v, missing);
    if (missing[0] == '\0' && begun(l, v) != NULL) {
      OPI_TRY(read_set(l, v, out, err));
      for (uint32_t k = i + 1; k < OPI_COUNT(launchers) && only == NULL; ++k)
        add_against(&launchers[k], v, out);
      return OPIPE_OK;
    }
    if (incomplete == NULL)
      incomplete = l;
  }
  return incomplete == NULL ? OPIPE_OK
                            : refuse_incomplete(incomplete, v, begun(incomplete, v), err);
}

opipe_status opi_place_given(opi_place *io_place, uint32_t rank, uint32_t size, const char *job,
                             opipe_error *err) {
  opi_place *p = io_place;
  if (size > OPI_TEAM_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "a team of %u processes, at most %d are allowed", size,
                    OPI_TEAM_MOST);
  }
  if (size != 0 && rank >= size) {
    return opi_fail(err, OPIPE_E_INVALID, "rank %u of %u processes: ranks are 0 to %u", rank, size,
                    size - 1);
  }
  if (size == 0 && rank != 0)
    return opi_fail(err, OPIPE_E_INVALID, "rank %u is given without size", rank);
  if (size != 0 && p->size != 0 && (size != p->size || rank != p->rank)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "rank %u of %u is given, but %s says rank %u of %u (launcher 'none' leaves its "
                    "variables alone)",
                    rank, size, p->launcher, p->rank, p->size);
  }
  if (size != 0 && p->size == 0) {
    p->rank = p->local_rank = rank;
    p->size = p->local_size = size;
  }
  if (job != NULL && strlen(job) >= sizeof p->job) {
    return opi_fail(err, OPIPE_E_LIMIT, "a job's name of %zu bytes, at most %zu are allowed",
                    strlen(job), sizeof p->job - 1);
  }
  if (job != NULL && job[0] == '\0')
    return opi_fail(err, OPIPE_E_INVALID, "the job's name is empty");
  if (job != NULL) {
    p->job_is_local = false;
    (void)snprintf(p->job, sizeof p->job, "%s", job);
    (void)opi_text_clean(p->job, sizeof p->job);
  }
  return OPIPE_OK;
}

/* ---- where to meet ---- */

static opipe_status need_address(const launcher *l, const opi_variables *v, const opi_place *p,
                                 opipe_error *err) {
  const bool taken = l != NULL && l->taken != NULL && look(v, l->taken) != NULL;
  char here[48] = "";
  if (p->local_size != 0)
    (void)snprintf(here, sizeof here, " (%u of %u here)", p->local_size, p->size);
  return opi_fail(
      err, OPIPE_E_INVALID,
      "%s started the job's processes on several machines%s: they meet at an address of "
      "process 0's machine, and none is guessed: export ONNX_PIPE_ADDRESS=HOST:PORT in "
      "all of them%s%s",
      p->launcher, here, taken ? "; the port of MASTER_PORT is in use by " : "",
      taken ? p->launcher : "");
}

opipe_status opi_place_address(const opi_variables *v, const char *given, opi_place *io_place,
                               opipe_error *err) {
  const launcher *l = find_launcher(io_place->launcher);
  const char *text = given != NULL ? given : look(v, "ONNX_PIPE_ADDRESS");
  const bool has_own = l != NULL && l->address[0] != NULL && look(v, l->address[0]) != NULL &&
                       look(v, l->address[1]) != NULL && look(v, l->taken) == NULL;
  io_place->address[0] = '\0';
  if (text != NULL) {
    OPI_TRY(
        opi_tcp_check(text, given != NULL ? "team_open: the address" : "ONNX_PIPE_ADDRESS", err));
    (void)snprintf(io_place->address, sizeof io_place->address, "%s", text);
  } else if (io_place->several && has_own) {
    const char *host = look(v, l->address[0]);
    const bool is_6 = strchr(host, ':') != NULL;
    const int n = snprintf(io_place->address, sizeof io_place->address, is_6 ? "[%s]:%s" : "%s:%s",
                           host, look(v, l->address[1]));
    if (n >= (int)sizeof io_place->address)
      return opi_fail(err, OPIPE_E_LIMIT, "%s has %zu bytes", l->address[0], strlen(host));
    OPI_TRY(opi_tcp_check(io_place->address, "MASTER_ADDR and MASTER_PORT", err));
  } else if (io_place->several) {
    return need_address(l, v, io_place, err);
  }
  if (io_place->several && io_place->job_is_local) {
    (void)snprintf(io_place->job, sizeof io_place->job, "%.15s-%.100s", io_place->launcher,
                   io_place->address);
  }
  return OPIPE_OK;
}

/* ---- this process ---- */

static const char *look_here(void *ctx, const char *name) {
  (void)ctx;
  return secure_getenv(name);
}

/* The name, parent and start time of a process, from /proc. */
static bool read_process(int64_t pid, char name[16], int64_t *out_parent, char *start,
                         size_t room) {
  char path[64], text[PROC_ROOM];
  (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
  FILE *file = fopen(path, "re");
  if (file == NULL)
    return false;
  const size_t n = fread(text, 1, sizeof text - 1, file);
  (void)fclose(file);
  text[n] = '\0';
  const char *open = strchr(text, '('), *close = strrchr(text, ')');
  if (open == NULL || close == NULL || close < open || close[1] == '\0')
    return false;
  (void)snprintf(name, 16, "%.*s", (int)(close - open - 1), open + 1);
  const char *at = close + 2; /* field 3; field 4 is the parent, 22 the start time */
  for (uint32_t field = 3; field < 22 && at != NULL; ++field) {
    at = strchr(at, ' ');
    at = at == NULL ? NULL : at + 1;
    if (field == 3 && at != NULL)
      *out_parent = strtoll(at, NULL, 10);
  }
  if (at == NULL)
    return false;
  (void)snprintf(start, room, "%.*s", (int)strspn(at, "0123456789"), at);
  return true;
}

static void ancestor_here(void *ctx, const char *name, char *out, size_t room) {
  char comm[16], start[32] = "";
  int64_t pid = getppid(), parent = 0;
  (void)ctx;
  (void)snprintf(out, room, "%lld", (long long)pid);
  for (uint32_t i = 0; i < ANCESTORS_MOST && pid > 0; ++i) {
    if (!read_process(pid, comm, &parent, start, sizeof start))
      return;
    const bool is_it = strncmp(comm, name, strlen(name)) == 0;
    if (i == 0 || is_it)
      (void)snprintf(out, room, "%lld-%s", (long long)pid, start);
    if (is_it)
      return;
    pid = parent;
  }
}

const opi_variables opi_process_variables = {NULL, look_here, ancestor_here};
