/* SPDX-License-Identifier: Apache-2.0 */
/* A process's place from launchers' variables: a table of environments, as the launchers set them,
 * nested, cut short and contradicting. */
#include <string.h>

#include "runtime/launch/launchers.h"
#include "tests/support/support.h"

#define TORCHRUN                                                                           \
  "RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1", \
      "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=0"
#define OPENMPI                                                                       \
  "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1", \
      "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=1885732865"
#define HYDRA "PMI_RANK=0", "PMI_SIZE=3", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=3"
#define SLURM                                                                       \
  "SLURM_JOB_ID=77", "SLURM_STEP_ID=1", "SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=5", \
      "SLURM_NTASKS=9", "SLURM_LOCALID=4"
enum { VARIABLES = 24 };

typedef struct row {
  const char *wanted, *variables[VARIABLES];
  opipe_status status;
  const char *says; /* part of the message, or the job */
  const char *launcher;
  uint32_t rank, size;
} row;

static const char *look(void *ctx, const char *name) {
  const char *const *at = ctx;
  const size_t n = strlen(name);
  for (; *at != NULL; ++at) {
    if (strncmp(*at, name, n) == 0 && (*at)[n] == '=')
      return *at + n + 1;
  }
  return NULL;
}

static void ancestor(void *ctx, const char *name, char *out, size_t room) {
  (void)ctx;
  OPI_ASSERT(strcmp(name, "hydra_pmi_prox") == 0);
  (void)snprintf(out, room, "55-9");
}

static opipe_status find(const row *r, opi_place *out, opipe_error *err) {
  const opi_variables v = {(void *)(uintptr_t)r->variables, look, ancestor};
  return opi_launcher_place(&v, r->wanted, out, err);
}

static const row complete[] = {
    {NULL, {"HOME=/root"}, OPIPE_OK, "", "none", 0, 0},
    {NULL, {TORCHRUN}, OPIPE_OK, "torchrun-29500-none-0", "torchrun", 2, 4},
    {NULL, {OPENMPI}, OPIPE_OK, "openmpi-1885732865", "openmpi", 1, 2},
    {NULL, {HYDRA}, OPIPE_OK, "hydra-55-9", "hydra", 0, 3},
    {NULL, {SLURM}, OPIPE_OK, "slurm-77-1", "slurm", 4, 5},
    /* env:// as Kubernetes' operators set it. */
    {NULL,
     {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=pod-0", "MASTER_PORT=23456"},
     OPIPE_OK,
     "torchrun-23456",
     "torchrun",
     1,
     2},
    /* An older srun has no SLURM_STEP_NUM_TASKS. */
    {NULL,
     {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=2"},
     OPIPE_OK,
     "slurm-7-0",
     "slurm",
     1,
     2},
    /* A batch script is no step. */
    {NULL, {"SLURM_JOB_ID=77", "SLURM_PROCID=0", "SLURM_NTASKS=5"}, OPIPE_OK, "", "none", 0, 0},
    /* Nested: the first complete set, in the order of the table. */
    {NULL, {SLURM, TORCHRUN}, OPIPE_OK, "torchrun-29500-none-0", "torchrun", 2, 4},
    {NULL, {SLURM, OPENMPI}, OPIPE_OK, "openmpi-1885732865", "openmpi", 1, 2},
    {NULL, {SLURM, HYDRA}, OPIPE_OK, "hydra-55-9", "hydra", 0, 3},
    /* One by name, or none. */
    {"slurm", {TORCHRUN, SLURM}, OPIPE_OK, "slurm-77-1", "slurm", 4, 5},
    {"none", {TORCHRUN}, OPIPE_OK, "", "none", 0, 0},
    {"none", {"RANK=9"}, OPIPE_OK, "", "none", 0, 0},
    /* An incomplete set before a complete one: scripts export these for srun. */
    {NULL, {"WORLD_SIZE=5", "MASTER_PORT=1", SLURM}, OPIPE_OK, "slurm-77-1", "slurm", 4, 5},
    /* srun with PMI-2. */
    {NULL, {"PMI_RANK=4", "PMI_SIZE=5", SLURM}, OPIPE_OK, "slurm-77-1", "slurm", 4, 5}};

static void test_the_first_complete_set_counts(void) {
  for (uint32_t i = 0; i < OPI_COUNT(complete); ++i) {
    const row *r = &complete[i];
    opi_place place;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK(find(r, &place, &err), &err);
    OPI_ASSERT_STR(place.launcher, r->launcher);
    OPI_ASSERT_STR(place.job, r->says);
    OPI_ASSERT_INT(place.rank, r->rank);
    OPI_ASSERT_INT(place.size, r->size);
    OPI_ASSERT_INT(place.local_size, r->size);
    OPI_ASSERT_INT(place.local_rank, r->rank);
  }
}

/* Sets that do not count are told if they say otherwise. */
static void test_what_says_otherwise_is_told(void) {
  static const row rows[] = {
      {NULL, {TORCHRUN, SLURM}, OPIPE_OK, "slurm says rank 4 of 5", "torchrun", 2, 4},
      {NULL,
       {TORCHRUN, OPENMPI, HYDRA},
       OPIPE_OK,
       "openmpi says rank 1 of 2, hydra says rank 0 of 3",
       "torchrun",
       2,
       4},
      {NULL, {SLURM, "PMI_RANK=4", "PMI_SIZE=5"}, OPIPE_OK, "", "slurm", 4, 5},
      {NULL,
       {OPENMPI, "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=2"},
       OPIPE_OK,
       "",
       "openmpi",
       1,
       2},
      {"openmpi", {OPENMPI, SLURM}, OPIPE_OK, "", "openmpi", 1, 2}};
  for (uint32_t i = 0; i < OPI_COUNT(rows); ++i) {
    opi_place place;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK(find(&rows[i], &place, &err), &err);
    OPI_ASSERT_STR(place.launcher, rows[i].launcher);
    OPI_ASSERT_STR(place.against, rows[i].says);
  }
}

static const row refused[] = {
    {NULL,
     {"RANK=0", "MASTER_PORT=1"},
     OPIPE_E_INVALID,
     "RANK is set as by torchrun, but WORLD_SIZE, MASTER_ADDR are not"},
    {NULL, {"WORLD_SIZE=4"}, OPIPE_E_INVALID, "but RANK, MASTER_PORT, MASTER_ADDR are not"},
    {NULL,
     {"RANK=0", "WORLD_SIZE=", "MASTER_PORT=1", "MASTER_ADDR=a"},
     OPIPE_E_INVALID,
     "but WORLD_SIZE is not"},
    {NULL,
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0"},
     OPIPE_E_INVALID,
     "set as by openmpi, but OMPI_COMM_WORLD_LOCAL_SIZE, PMIX_NAMESPACE are not"},
    {NULL, {"PMI_SIZE=2"}, OPIPE_E_INVALID, "PMI_SIZE is set as by hydra, but PMI_RANK"},
    {NULL,
     {"SLURM_STEP_ID=0", "SLURM_PROCID=0"},
     OPIPE_E_INVALID,
     "but SLURM_STEP_NUM_TASKS, SLURM_JOB_ID are not"},
    {"openmpi", {TORCHRUN}, OPIPE_E_INVALID, "launcher 'openmpi' was asked for, but OMPI_COMM"},
    {"slurm",
     {"SLURM_JOB_ID=77", "SLURM_PROCID=0", "SLURM_NTASKS=5"},
     OPIPE_E_INVALID,
     "launcher 'slurm' was asked for, but SLURM_STEP_ID is not set"},
    {"mpirun", {TORCHRUN}, OPIPE_E_NOTFOUND, "no launcher 'mpirun'"},
    {NULL,
     {"RANK=4", "WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=1"},
     OPIPE_E_INVALID,
     "RANK is 4, but WORLD_SIZE is 4"},
    {NULL,
     {"RANK=-1", "WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=1"},
     OPIPE_E_INVALID,
     "RANK is '-1', not a number from 0 to 4096"},
    {NULL,
     {"RANK=0", "WORLD_SIZE=0", "MASTER_ADDR=a", "MASTER_PORT=1"},
     OPIPE_E_INVALID,
     "WORLD_SIZE is '0', not a number from 1 to 4096"},
    {NULL,
     {"RANK=1x", "WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=1"},
     OPIPE_E_INVALID,
     "RANK is '1x'"},
    {NULL,
     {"RANK=0", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=5", "MASTER_ADDR=a", "MASTER_PORT=1"},
     OPIPE_E_INVALID,
     "torchrun: 5 processes on this machine, but 4 in the job"},
    {NULL,
     {SLURM, "SLURM_STEP_NUM_NODES=two"},
     OPIPE_E_INVALID,
     "SLURM_STEP_NUM_NODES is 'two', not a number"},
    {NULL,
     {"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=4", "MASTER_ADDR=a", "MASTER_PORT=1"},
     OPIPE_E_INVALID,
     "LOCAL_RANK is 4, but 4 processes are on this machine"}};

static void test_other_sets_are_refused_by_name(void) {
  for (uint32_t i = 0; i < OPI_COUNT(refused); ++i) {
    opi_place place;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_ERROR(find(&refused[i], &place, &err), refused[i].status, &err, refused[i].says);
  }
}

static void test_given_numbers_must_agree(void) {
  opi_place place;
  opipe_error err = OPIPE_ERROR_INIT;
  const row torchrun = {NULL, {TORCHRUN}, OPIPE_OK, "", "", 0, 0},
            none = {"none", {NULL}, 0, "", "", 0, 0};
  OPI_ASSERT_OK(find(&torchrun, &place, &err), &err);
  OPI_ASSERT_OK(opi_place_given(&place, 2, 4, "mine", &err), &err);
  OPI_ASSERT_STR(place.job, "mine");
  OPI_ASSERT_ERROR(opi_place_given(&place, 1, 4, NULL, &err), OPIPE_E_INVALID, &err,
                   "rank 1 of 4 is given, but torchrun says rank 2 of 4");
  OPI_ASSERT_ERROR(opi_place_given(&place, 2, 3, NULL, &err), OPIPE_E_INVALID, &err,
                   "rank 2 of 3 is given, but torchrun says rank 2 of 4");
  OPI_ASSERT_OK(find(&none, &place, &err), &err);
  OPI_ASSERT_ERROR(opi_place_given(&place, 3, 3, NULL, &err), OPIPE_E_INVALID, &err,
                   "rank 3 of 3 processes: ranks are 0 to 2");
  OPI_ASSERT_ERROR(opi_place_given(&place, 0, 4097, NULL, &err), OPIPE_E_LIMIT, &err,
                   "4097 processes, at most 4096");
  OPI_ASSERT_ERROR(opi_place_given(&place, 1, 0, NULL, &err), OPIPE_E_INVALID, &err,
                   "rank 1 is given without size");
  OPI_ASSERT_ERROR(opi_place_given(&place, 0, 1, "", &err), OPIPE_E_INVALID, &err,
                   "the job's name is empty");
}

/* The ancestor of all processes that one launcher started, in this machine's /proc. */
static void test_an_ancestor_is_named(void) {
  char a[64] = "", b[64] = "";
  opi_process_variables.ancestor(NULL, "nobody-has-this", a, sizeof a);
  opi_process_variables.ancestor(NULL, "nobody-has-this", b, sizeof b);
  OPI_ASSERT_STR(a, b);
  OPI_ASSERT(strchr(a, '-') != NULL);
}

/* ---- where a job of several machines meets ---- */

#define FAR "RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2"
#define FAR_MPI                                                                       \
  "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1", \
      "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=18"
#define FAR_HYDRA "PMI_RANK=2", "PMI_SIZE=4", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2"

/* says: the address, or part of the message. */
static const row far[] = {
    {NULL, {TORCHRUN}, OPIPE_OK, "", "torchrun-29500-none-0", 2, 4},
    {NULL, {TORCHRUN, "ONNX_PIPE_ADDRESS=a:7"}, OPIPE_OK, "a:7", "torchrun-29500-none-0", 2, 4},
    {NULL, {FAR, "MASTER_ADDR=a", "MASTER_PORT=77"}, OPIPE_OK, "a:77", "torchrun-77", 2, 4},
    {NULL,
     {FAR, "MASTER_ADDR=fe80::1", "MASTER_PORT=7"},
     OPIPE_OK,
     "[fe80::1]:7",
     "torchrun-7",
     2,
     4},
    {NULL,
     {FAR, "MASTER_ADDR=a", "MASTER_PORT=77", "TORCHELASTIC_USE_AGENT_STORE=True"},
     OPIPE_E_INVALID,
     "(2 of 4 here): they meet at an address of process 0's machine, and none is guessed: export "
     "ONNX_PIPE_ADDRESS=HOST:PORT in all of them; the port of MASTER_PORT is in use by torchrun",
     NULL,
     2,
     4},
    {NULL,
     {FAR_MPI},
     OPIPE_E_INVALID,
     "openmpi started the job's processes on several",
     NULL,
     1,
     4},
    {NULL, {FAR_MPI, "ONNX_PIPE_ADDRESS=n1:29511"}, OPIPE_OK, "n1:29511", "openmpi-18", 1, 4},
    {NULL,
     {FAR_HYDRA},
     OPIPE_E_INVALID,
     "hydra started the job's processes on several",
     NULL,
     2,
     4},
    /* Each machine has a proxy of its own, which names no job of all. */
    {NULL, {FAR_HYDRA, "ONNX_PIPE_ADDRESS=n1:2"}, OPIPE_OK, "n1:2", "hydra-n1:2", 2, 4},
    {NULL,
     {SLURM, "SLURM_STEP_NUM_NODES=2"},
     OPIPE_E_INVALID,
     "slurm started the job's processes on several machines: they meet",
     NULL,
     4,
     5},
    {NULL,
     {SLURM, "SLURM_NNODES=2", "ONNX_PIPE_ADDRESS=n1:2"},
     OPIPE_OK,
     "n1:2",
     "slurm-77-1",
     4,
     5},
    {NULL,
     {SLURM, "ONNX_PIPE_ADDRESS=n1"},
     OPIPE_E_INVALID,
     "ONNX_PIPE_ADDRESS 'n1' is not HOST:PORT",
     NULL,
     4,
     5},
    {NULL, {SLURM, "SLURM_STEP_NUM_NODES=1", "SLURM_NNODES=9"}, OPIPE_OK, "", "slurm-77-1", 4, 5}};

static void test_where_several_machines_meet(void) {
  for (uint32_t i = 0; i < OPI_COUNT(far); ++i) {
    const row *r = &far[i];
    const opi_variables v = {(void *)(uintptr_t)r->variables, look, ancestor};
    opi_place place;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK_FATAL(opi_launcher_place(&v, NULL, &place, &err), &err);
    OPI_ASSERT_INT(place.rank, r->rank);
    OPI_ASSERT_INT(place.size, r->size);
    if (r->status < 0) {
      OPI_ASSERT_ERROR(opi_place_address(&v, NULL, &place, &err), r->status, &err, r->says);
      continue;
    }
    OPI_ASSERT_OK(opi_place_address(&v, NULL, &place, &err), &err);
    OPI_ASSERT_STR(place.address, r->says);
    OPI_ASSERT_STR(place.job, r->launcher);
    OPI_ASSERT_OK(opi_place_address(&v, "given:9", &place, &err), &err);
    OPI_ASSERT_STR(place.address, "given:9");
  }
}

OPI_TEST_MAIN("launchers", OPI_TEST(test_the_first_complete_set_counts),
              OPI_TEST(test_what_says_otherwise_is_told),
              OPI_TEST(test_other_sets_are_refused_by_name),
              OPI_TEST(test_where_several_machines_meet), OPI_TEST(test_given_numbers_must_agree),
              OPI_TEST(test_an_ancestor_is_named))
