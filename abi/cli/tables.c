/* SPDX-License-Identifier: Apache-2.0 */
/* The options, one row each, and the commands. Rows are in the order in which a section lists them.
 * A new option needs a row here, a field of cli_options, and code that uses it.
 */
#include "tables.h"

#include <stddef.h>
#include <string.h>

enum {
  END = 0,
  PLAN,          /* plans: plan, run, train */
  MODEL,         /* models */
  INSPECT_TRAIN, /* inspect */
  INSPECT,
  PLAN_OUT, /* plan */
  DATA,     /* training: train, plans for it */
  TRAINED,  /* the same, and trainable parameters */
  OPTIMIZE,
  PLAN_SEED, /* plan */
  RUN,
  TRAIN,
  TEAM, /* run, train */
  PLUGINS,
  SCHEDULE,
  SIMULATE, /* simulate */
  PLAYED,   /* the same, and schedule */
  PLANNER,  /* plan, simulate, run, train */
  LAYERS,   /* plan, simulate */
  PROFILE,  /* profile */
  TUNE,     /* tune */
  LAUNCH,   /* launch */
  FOLLOW,   /* follow */
  GENERATE, /* generate */
  PASSES,   /* generate, plan */
  COMMON    /* every command */
};

/* How a value is read, and the field that it fills. */
#define AT(field) offsetof(cli_options, field)
#define FLAG(field) cli_take_flag, AT(field), 0, 0, NULL
#define BITS(field, bits) cli_take_bits, AT(field), 0, bits, NULL
#define TEXT(field) cli_take_text, AT(field), 0, 0, NULL
#define LIST(field) cli_take_list, AT(field), 0, 0, NULL
#define NUMBER(field) cli_take_numeral, AT(field), 0, 0, NULL
#define SIZE(field) cli_take_amount, AT(field), 0, 0, NULL
#define REAL(field) cli_take_real, AT(field), 0, 0, NULL
#define COUNT(field, most) cli_take_within, AT(field), 1, most, NULL
#define COMPUTE_WORD(key, word) "|" word
#define CHOICE(field, choices) cli_take_index, AT(field), 0, 0, choices
#define OWN(reader) cli_take_##reader, 0, 0, 0, NULL

enum { ORDER_MOST = 1 << 24 };

#define OPTIMIZER_NAME(KEY, number, name, ...) name ", "
#define NUMBER_KEY(KEY, field, key, ...) key ", "
#define SWITCH_KEY(KEY, field, key, off, on) key "=" off "|" on ", "

#define TUNED_HELP \
  "require: refuse a plan without a matching table of kernels ('tune'); allow (default): warn"

const cli_option cli_option_rows[] = {
    {PLAN, "device", "KIND[:N|:UUID][,memory=SIZE][,threads=N]",
     "devices in order; the last is used for all further ranks (repeatable)", OWN(device),
     .in_plan = true},
    {PLAN, "fallback", "none|cpu",
     "cpu: run nodes that a device lacks on the CPU (default); none: refuse them (default of "
     "train)",
     CHOICE(on.fallback, "none|cpu"), .in_plan = true},
    {PLAN, "cluster", "FILE|NAME[:nodes=N]",
     "devices and link from a description (guide/clusters.md); they need not be present",
     TEXT(plan.cluster), .in_plan = true},
    {PLAN, "stages", "S", "number of stages (default: 1; run: one per core, at most 8)",
     COUNT(plan.n_stages, 4096), .in_plan = true},
    {PLAN, "ranks", "P", "number of ranks; the schedule decides how many stages they have",
     COUNT(plan.n_ranks, 4096), .in_plan = true},
    {PLAN, "threads", "T", "compute threads per rank", COUNT(on.n_threads, 4096), .in_plan = true},
    {PLAN, "cut", "SPEC",
     "tensors per boundary, with optional consumers: t1,t2:consumer1+consumer2;t3; in a name write "
     "\\ before , : + and ;, but not before ::",
     TEXT(plan.cut), .in_plan = true},
    {PLAN, "plan", "FILE", "a whole plan", TEXT(plan.plan_file)},
    {PLAN, "memory", "SIZE", "cap of every device without a cap of its own", SIZE(on.memory_bytes),
     .in_plan = true},
    {PLAN, "schedule", "NAME[:key=value,...]",
     "gpipe (default), or another of 'schedule list'; file:PATH; search[:moves=N,seed=N,"
     "from=NAME]: an order found by search",
     TEXT(plan.schedule), .in_plan = true},
    {PLAN, "improve", NULL,
     "search for a better order than the schedule's, as the schedule search does; without "
     "--schedule, than the best schedule's",
     FLAG(plan.improve), .in_plan = true},
    {PLAN, "microbatches", "M", "micro-batches of the whole mini-batch or request",
     COUNT(plan.n_microbatches, 1 << 20), .in_plan = true},
    {PLAN, "replicas", "N[,N...]",
     "N: copies of the pipeline, which share the micro-batches or (inference with fewer "
     "micro-batches) take requests in turn; several different numbers: replicas of single stages, "
     "which split every micro-batch",
     TEXT(t.replicas), .in_plan = true},
    {PLAN, "tensor", "T[,sequence=1|,scattered=1]",
     "divide products, tables and heads of every stage among T ranks that follow each other; "
     "--ranks counts all of them. sequence=1: each does the work between these for some of the "
     "rows (samples x tokens) alone. scattered=1: over links that do not write in place, each "
     "sends "
     "its part of a tensor to the next stage, which gathers them",
     OWN(tensor), .in_plan = true},
    {PLAN, "batch-dim", "NAME[,NAME...]",
     "free dimensions that micro-batches split (default: the first of every input, as far as "
     "lengths and the graph agree)",
     TEXT(plan.batch), .in_plan = true},
    {PLAN, "depth", "N", "slots of a boundary tensor (2; more if it skips stages)",
     COUNT(plan.depth, 1024), .in_plan = true},
    {PLAN, "transport", "NAME",
     "local (default; shm between processes) or another plugin's id, with options as "
     "NAME:key=value,...",
     TEXT(plan.transport), .in_plan = true},
    {PLAN, "cost", "rates|measured|F=N,I=N,W=N",
     "node times by device rates (default) or measured; or stage times in ms, F=5+5+9",
     cli_take_cost, 0, 0, 0, "rates|measured", .in_plan = true},
    {PLAN, "ignore-annotations", NULL, "ignore the file's pipeline_stage annotations in the cut",
     FLAG(graph.ignore_annotations), .in_plan = true},

    {MODEL, "bind", "DIM=N,...", "numbers for free dimensions (a name in the file, or INPUT.axis)",
     LIST(graph.bind)},
    {MODEL, "pin", "NAME=VALUE",
     "fix an input before constants are folded: a number, a list 1,2,3 or a .npy file",
     LIST(plan.pins)},
    {MODEL, "no-fuse", NULL, "do not recognise patterns", FLAG(graph.no_fuse)},
    {MODEL, "dropout", "off|graph|RATIO",
     "off (default except in train): identity; graph: as the operator defines it", OWN(dropout)},
    {MODEL, "allow-symlinks", NULL, "external data may be reached through symlinks",
     BITS(graph.load_flags, OPIPE_LOAD_ALLOW_SYMLINKS)},
    {MODEL, "allow-hardlinks", NULL, "external data may have several hard links",
     BITS(graph.load_flags, OPIPE_LOAD_ALLOW_HARDLINKS)},

    {INSPECT_TRAIN, "train", NULL, "list trainable initializers, and why", FLAG(train)},
    {INSPECT, "graph-only", NULL, "allow missing weights",
     BITS(graph.load_flags, OPIPE_LOAD_GRAPH_ONLY)},

    {PLAN_OUT, "output", "FILE", "write the plan (JSON); also -o", TEXT(out.output), .letter = 'o'},
    {PLAN_OUT, "annotate", "OUT.onnx",
     "write a copy of the model with the plan as IR-11 annotations", TEXT(out.annotate)},
    {PLAN_OUT, "html", "OUT.html", "write a page of the plan, or of two with 'plan explain'",
     TEXT(out.html)},
    {PLAN_OUT, "measure", NULL,
     "also run the best predicted plans on this machine's devices, show predicted and measured "
     "time and memory, and take the plan that measured best (--cost measured)",
     FLAG(measures)},
    {PLAN_OUT, "train", NULL, "make a plan for training; options below", FLAG(train)},

    {DATA, "data", "SOURCE",
     "a folder of NAME.npy, NAME=FILE.npy, FILE.npz (stored), or text:FILE (repeatable); samples "
     "lie along the input's batch axis; an input without a batch axis is passed whole",
     LIST(t.data)},
    {DATA, "batch", "N", "samples per mini-batch (as in --plan; else all if at most 64, else 8)",
     COUNT(t.batch, 1 << 30)},
    {TRAINED, "loss", "SPEC",
     "cross-entropy:logits=NAME,labels=NAME[,ignore=-100][,shift=0|1][,smoothing=0], "
     "mse:output=NAME,target=NAME, bce:..., output:NAME (default: the only scalar float output; "
     "shift=1 if text:FILE makes the labels)",
     TEXT(t.loss)},
    {TRAINED, "trainable", "GLOB",
     "train these (with patterns only, no others); the last match wins (repeatable)", cli_take_glob,
     0, 0, 1, NULL, .in_plan = true},
    {TRAINED, "frozen", "GLOB", "do not train these; the last match wins (repeatable)",
     cli_take_glob, 0, 0, 0, NULL, .in_plan = true},
    {TRAINED, "parameter", "NAME=FILE",
     "turn a graph input into a trainable initializer, .pb or .npy", LIST(t.parameters)},
    {OPTIMIZE, "optimizer", "SPEC",
     OPIPE_OPTIMIZERS(OPTIMIZER_NAME) "with :KEY=VALUE,... of " OPIPE_TAKES(
         NUMBER_KEY, SWITCH_KEY) "if it has them (" CLI_OPTIMIZER ")",
     TEXT(t.optimizer), .in_plan = true},
    {OPTIMIZE, "lr-schedule", "SPEC",
     "constant|linear|cosine[:warmup=N,total=N] (total, not for constant; default: the end of "
     "this run, --resume included)",
     TEXT(t.lr_schedule), .in_plan = true},
    {OPTIMIZE, "clip", "NORM", "scale gradients down to this total norm", REAL(t.clip),
     .in_plan = true},
    {OPTIMIZE, "no-decay", "GLOB", "parameters without decay (repeatable)", LIST(t.no_decay),
     .in_plan = true},
    {OPTIMIZE, "recompute", "none|stage|block|attention", "values that the backward recomputes",
     TEXT(t.recompute), .in_plan = true},
    {OPTIMIZE, "offload", "auto|none|GLOB",
     "stashes that wait in the host's memory between forwards and backwards: tensors whose names "
     "match; auto: as few as caps demand, or, with --recompute, all in its place if that is faster",
     TEXT(t.offload), .in_plan = true},
    {OPTIMIZE, "offload-memory", "SIZE", "most host memory of a rank for --offload",
     SIZE(t.offload_bytes), .in_plan = true},
    {OPTIMIZE, "compute", &OPIPE_COMPUTE_TYPES(COMPUTE_WORD)[1], "type of activations and products",
     TEXT(t.compute), .in_plan = true},
    {OPTIMIZE, "shard", "none|optimizer",
     "optimizer: replicas share out the optimizer's state and update", TEXT(t.shard),
     .in_plan = true},
    {OPTIMIZE, "steps", "N", "mini-batches of this run (one epoch)", NUMBER(t.n_steps)},
    {OPTIMIZE, "epochs", "N", "in place of --steps: passes over all samples of --data",
     NUMBER(t.n_epochs)},

    {PLAN_SEED, "seed", "N", "seed of dropout, with --train (0)", OWN(seed)},

    {RUN, "input", "NAME=FILE", "an input tensor, .npy or .pb (repeatable)", LIST(inputs)},
    {RUN, "output", "DIR", "write every output as DIR/NAME.npy; also -o", TEXT(out.output),
     .letter = 'o'},
    {RUN, "requests", "N", "run a stream of N requests: throughput and latency",
     COUNT(run.n_requests, 1 << 30)},
    {RUN, "check", "[max|element]", "compare with the outputs of a folder's data sets",
     cli_take_check, 0, 0, 0, "max|element"},
    {RUN, "rtol", "X", "relative tolerance of --check", REAL(run.rtol)},
    {RUN, "atol", "X", "absolute tolerance of --check", REAL(run.atol)},
    {RUN, "trace", "OUT.json|.svg|.html", "write the last request, planned and measured",
     TEXT(out.trace)},
    {RUN, "reference", NULL,
     "compare with the plan's stages run one by one, and with the uncut model",
     FLAG(run.reference)},
    {RUN, "check-finite", NULL, "fail if a node's output is NaN or infinite",
     FLAG(run.check_finite)},
    {RUN, "seed", "N", "seed of random inputs (0)", OWN(seed)},
    {RUN, "tuned", "allow|require", TUNED_HELP, CHOICE(on.tuned, "allow|require")},

    {TEAM, "launcher", "none|NAME",
     "whose variables say which of several processes this is: torchrun, openmpi, hydra, slurm "
     "(default: the first complete set)",
     TEXT(team.launcher)},
    {TEAM, "silence", "SECONDS",
     "a process that is not heard from, or a session in which all ranks stand still, for so long "
     "has failed (10, of sessions 60; at least 0.1)",
     REAL(team.silence_s)},
    {TEAM, "place", "RANKS/RANKS...",
     "the ranks of each of several processes, 0,1/2,3 (default: blocks of one size)",
     TEXT(team.place)},

    {TRAIN, "shuffle", NULL, "shuffle the samples anew in every epoch", FLAG(t.shuffle)},
    {TRAIN, "save", "DIR", "write a checkpoint at the end, and when SIGUSR1 asks", TEXT(t.save)},
    {TRAIN, "save-every", "N", "also after every N mini-batches", NUMBER(t.save_every)},
    {TRAIN, "resume", "DIR", "continue from a checkpoint", TEXT(t.resume)},
    {TRAIN, "overwrite", NULL, "--save may replace a checkpoint that this run does not resume",
     FLAG(t.overwrite)},
    {TRAIN, "save-model", "OUT.onnx", "write the model with its new weights", TEXT(t.save_model)},
    {TRAIN, "save-gradients", "OUT.safetensors",
     "write gradients of the last mini-batch, unclipped", TEXT(t.save_gradients)},
    {TRAIN, "trace", "OUT.json|.svg|.html", "write the last step, planned and measured",
     TEXT(out.trace)},
    {TRAIN, "reference", NULL,
     "compare with the plan's reference, which must have the same bits (be close where a transport "
     "adds in no fixed order), and with the uncut model, which must be close: losses within 1e-5 "
     "(bf16 0.02, fp16 0.002), gradients within 1e-4 of their norm (bf16 0.1, fp16 0.01, plus "
     "twice the uncut model's own distance from fp32 if needed), weights within what such "
     "differences of gradients change",
     FLAG(run.reference)},
    {TRAIN, "check-finite", NULL,
     "check every value; end at the first NaN or infinity and name its node",
     FLAG(run.check_finite)},
    {TRAIN, "go-on", NULL,
     "skip steps whose loss or norm is not finite (default: stop at the first one)", FLAG(t.go_on)},
    {TRAIN, "seed", "N", "seed of dropout and --shuffle (0)", OWN(seed)},
    {TRAIN, "tuned", "allow|require", TUNED_HELP, CHOICE(on.tuned, "allow|require")},

    {PLUGINS, "why", NULL, "also list every candidate that was refused, and why", FLAG(out.why)},

    {SCHEDULE, "ranks", "P", "ranks", COUNT(plan.n_ranks, ORDER_MOST)},
    {SCHEDULE, "stages", "S", "stages (a NAME needs only one of ranks and stages)",
     COUNT(plan.n_stages, ORDER_MOST)},
    {SCHEDULE, "microbatches", "M", "micro-batches of the whole mini-batch",
     COUNT(plan.n_microbatches, ORDER_MOST)},
    {SCHEDULE, "replicas", "N", "with a NAME: copies of the whole pipeline (1)",
     COUNT(order.n_replicas, ORDER_MOST)},
    {SCHEDULE, "forward", NULL, "with a NAME: the forward-only form", FLAG(order.forward)},
    {SCHEDULE, "format", "csv|text|json", "show, lower, convert: form of the output (csv)",
     CHOICE(order.format, "text|json|csv")},
    {SCHEDULE, "aligned", NULL, "show, with a NAME: idle cells, aligned in time",
     FLAG(order.aligned)},
    {SCHEDULE, "receives", "early|lazy[=DEPTH]", "lower, check: where receives are placed (early)",
     cli_take_receives, AT(order.receive_depth), 1, ORDER_MOST, NULL},
    {SCHEDULE, "rule", "RULE", "check: tag (default), stream, edge, pair, blocking or grouped",
     CHOICE(order.rule, "tag|stream|edge|pair|blocking|grouped")},
    {SCHEDULE, "cost", "F=1,I=1,W=1,comm=0",
     "times per stage and whole micro-batch; F=5+5+9: of stages 0, 1, 2; with a FILE: simulate, "
     "draw",
     OWN(order_cost)},
    {SCHEDULE, "dialect", "torch|torch-old|opipe", "show, lower, convert: dialect of a CSV (opipe)",
     CHOICE(order.dialect, "opipe|torch|torch-old")},
    {SCHEDULE, "from", "torch|torch-old|opipe",
     "dialect of a FILE (opipe, which also reads torch's)",
     CHOICE(order.from, "opipe|torch|torch-old")},
    {SCHEDULE, "improve", NULL, "search for a better order than NAME's, as search:from=NAME does",
     FLAG(plan.improve)},
    {SCHEDULE, "output", "FILE",
     "all but list and check: write to FILE, not standard output; also -o", TEXT(out.output),
     .letter = 'o'},
    {SCHEDULE, "cluster", "FILE|NAME[:nodes=N]",
     "simulate, draw: on a described cluster; costs are milliseconds", TEXT(plan.cluster)},
    {SCHEDULE, "load", "KEY=VALUE,...",
     "with --cluster, load of a stage: bytes that it sends, keeps, holds and reduces (send, stash, "
     "input, fixed, gradient), all-reduces of a tensor group in a forward (sums, tensor=SIZE of "
     "each), ms of the optimizer and of recomputing a forward (step, recompute), flops",
     TEXT(play.load)},
    {SCHEDULE, "tensor", "T", "with --cluster: width of tensor groups (1)",
     COUNT(play.tensor, 4096)},
    {SCHEDULE, "copies", "N",
     "with --cluster: replicas of the order, each with its own micro-batches (1)",
     COUNT(play.copies, 4096)},

    {SIMULATE, "train", NULL, "make a plan for training; options below", FLAG(train)},
    {SIMULATE, "trace", "OUT.json|.svg|.html", "write the times, for Perfetto or as a picture",
     TEXT(out.trace)},
    {SIMULATE, "html", "OUT.html", "write a page: times, memory, links, the plan and its rivals",
     TEXT(out.html)},
    {PLAYED, "collective", "auto|ring|rabenseifner|tree|hierarchical",
     "how groups sum (auto: as the cluster says)",
     CHOICE(play.collective, "auto|ring|rabenseifner|tree|hierarchical")},
    {PLAYED, "sharded", NULL, "scatter gradients over replicas, gather weights",
     BITS(play.flags, OPIPE_PLAY_SHARDED)},
    {PLAYED, "scattered", NULL, "send only each tensor rank's part between stages",
     BITS(play.flags, OPIPE_PLAY_SCATTERED)},
    {PLAYED, "pipeline-first", NULL, "place stages nearer to each other than replicas",
     BITS(play.flags, OPIPE_PLAY_PIPELINE_FIRST)},

    {PLANNER, "planner", "NAME",
     "planner that decides stages, replicas, micro-batches and schedule: auto, dapple, pipedream, "
     "2bw, chimera, megatron, terapipe",
     TEXT(planner.name), .in_plan = true},
    {PLANNER, "auto", "[step|throughput|memory|latency]",
     "let planner auto decide everything that is not given, by this objective (step); also if "
     "devices or "
     "a cluster are given without stages, ranks, schedule, cut or plan",
     cli_take_auto, 0, 0, 0, "step|throughput|memory|latency", .in_plan = true},
    {PLANNER, "budget", "SECONDS", "auto: also stop by the clock (and say so)",
     REAL(planner.budget_s), .in_plan = true},
    {PLANNER, "within", "MS", "--auto=memory: the longest that a step may take",
     REAL(planner.within_ms), .in_plan = true},
    {PLANNER, "allow-stale", NULL, "auto: allow schedules with delayed weights",
     BITS(planner.flags, OPIPE_STRATEGY_ALLOW_STALE), .in_plan = true},
    {PLANNER, "hypothetical", NULL,
     "auto: also strategies that cannot be executed, which are only printed and simulated",
     BITS(planner.flags, OPIPE_STRATEGY_HYPOTHETICAL), .in_plan = true},
    {PLANNER, "rows", "N",
     "samples of a micro-batch, for dapple, pipedream and auto (1); for generation most tokens of "
     "a "
     "pass (64)",
     COUNT(planner.samples, 1 << 20), .in_plan = true},
    {LAYERS, "arch", "SPEC",
     "in place of MODEL: gpt:layers=N,hidden=N,heads=N,vocab=N,seq=N[,...]; also llama, bert",
     TEXT(planner.arch)},
    {LAYERS, "profile", "FILE", "in place of MODEL: its layers, by 'profile', PipeDream or DAPPLE",
     TEXT(planner.profile)},
    {LAYERS, "samples", "N,N,...", "sizes of micro-batches to profile (1, 4, ... the batch)",
     TEXT(planner.sizes)},

    {PROFILE, "output", "FILE", "write the profile, or this machine's cluster; also -o",
     TEXT(out.output), .letter = 'o'},
    {PROFILE, "cluster", "[FILE|NAME[:nodes=N]]",
     "without a value: write this machine as a cluster file, its links and rates measured; with a "
     "cluster: profile by the rates of its first device",
     OWN(machine)},
    {PROFILE, "arch", "SPEC", "a described model, instead of MODEL", TEXT(planner.arch)},
    {PROFILE, "samples", "N,N,...", "sizes of micro-batches (1, 4, ... the batch)",
     TEXT(planner.sizes)},
    {PROFILE, "nodes", NULL, "a layer for every node", FLAG(planner.every_node)},
    {PROFILE, "cost", "rates|measured",
     "by the device's rates (default with --arch or a cluster), or by running every node alone, "
     "best of 3 (--cluster without a value: links and products)",
     CHOICE(plan.cost, "rates|measured")},
    {PROFILE, "device", "KIND[,threads=N]", "the device (cpu, one thread)", OWN(device)},
    {PROFILE, "threads", "T", "its compute threads", COUNT(on.n_threads, 4096)},
    {PROFILE, "transport", "NAME",
     "--cluster: transport of the links (local; between the processes of a launcher: shm)",
     TEXT(plan.transport)},
    {PROFILE, "launcher", "none|NAME",
     "--cluster: whose variables say which of several processes this is (default: the first "
     "complete set); links between the processes are measured",
     TEXT(team.launcher)},
    {PROFILE, "batch-dim", "NAME[,NAME...]", "the free dimensions that are the batch",
     TEXT(plan.batch)},
    {PROFILE, "train", NULL, "profile training too; see the options below", FLAG(train)},

    {TUNE, "plan", "FILE", "the plan, if it is not an operand; the table is written into it",
     TEXT(plan.plan_file)},
    {TUNE, "device", "KIND[:N]", "measure on this device, for all of its kind in the plan",
     OWN(device)},
    {TUNE, "output", "FILE", "write the plan with its table to FILE; also -o", TEXT(out.output),
     .letter = 'o'},
    {TUNE, "candidates", "N", "algorithms per kernel, at most (16)", COUNT(tune.n_candidates, 64)},
    {TUNE, "runs", "N", "runs of each; one whose bits differ is dropped (20)", cli_take_within,
     AT(tune.n_runs), 2, 1024, NULL},

    {TUNE, "allow-symlinks", NULL, "external data may be reached through symlinks",
     BITS(graph.load_flags, OPIPE_LOAD_ALLOW_SYMLINKS)},
    {TUNE, "allow-hardlinks", NULL, "external data may have several hard links",
     BITS(graph.load_flags, OPIPE_LOAD_ALLOW_HARDLINKS)},

    {LAUNCH, "processes", "N", "number of processes; also -n", COUNT(launch.n, 4096),
     .letter = 'n'},
    {LAUNCH, "restarts", "K",
     "start all again after a failure, at most K times (0); not after status 2, 130 or 143. 'train "
     "--save DIR' then resumes from DIR",
     cli_take_within, AT(launch.restarts), 0, 1000000, NULL},
    {LAUNCH, "nodes", "K",
     "the job is of K machines, with as many processes on each; launch runs on all",
     COUNT(launch.nodes, 4096)},
    {LAUNCH, "node", "R", "number of this machine, from 0; ranks are numbered by machine",
     cli_take_within, AT(launch.node), 0, 4095, NULL},
    {LAUNCH, "address", "HOST:PORT",
     "where process 0, on node 0, listens; beyond loopback all need ONNX_PIPE_TOKEN_FILE",
     TEXT(launch.address)},
    {LAUNCH, "tag", "0|1", "1 (default): '[rank R] ' before each line", CHOICE(launch.tag, "0|1")},
    {LAUNCH, "logs", "DIR", "also write each process's lines to DIR/rank-R.log", TEXT(launch.logs)},
    {LAUNCH, "help", NULL, "this text", NULL, 0, 0, 0, NULL, .letter = 'h'},

    {FOLLOW, "launcher", "none|NAME",
     "whose variables say which process this is: torchrun, openmpi, hydra, slurm (default: the "
     "first complete set)",
     TEXT(team.launcher)},
    {FOLLOW, "silence", "SECONDS",
     "a process that is not heard from for so long has failed (10; at least 0.1)",
     REAL(team.silence_s)},
    {FOLLOW, "allow-symlinks", NULL, "external data may be reached through symlinks",
     BITS(graph.load_flags, OPIPE_LOAD_ALLOW_SYMLINKS)},
    {FOLLOW, "allow-hardlinks", NULL, "external data may have several hard links",
     BITS(graph.load_flags, OPIPE_LOAD_ALLOW_HARDLINKS)},

    {GENERATE, "prompt", "TEXT|@FILE",
     "a prompt as text, by the folder's tokenizer (repeatable); without any, JSON lines on "
     "standard "
     "input",
     LIST(generate.prompts)},
    {GENERATE, "ids", "ID,ID,...", "a prompt as token ids (repeatable)", LIST(generate.ids)},
    {GENERATE, "requests", "FILE.jsonl",
     "a request per line: \"ids\" or \"prompt\", \"at\" (seconds), \"salt\", and sampling",
     TEXT(generate.requests)},
    {GENERATE, "max-tokens", "N", "tokens of an answer (128)",
     COUNT(generate.max_tokens, UINT32_MAX - 1)},
    {GENERATE, "temperature", "T", "0: the likeliest token (0, or as the folder says)",
     REAL(generate.temperature)},
    {GENERATE, "top-k", "K", "of the K likeliest tokens; 0: of all (as the folder says)",
     cli_take_within, AT(generate.top_k), 0, UINT32_MAX - 1, NULL},
    {GENERATE, "top-p", "P", "of the fewest tokens with this share of the weight",
     REAL(generate.top_p)},
    {GENERATE, "min-p", "P", "of tokens with this share of the likeliest one's weight",
     REAL(generate.min_p)},
    {GENERATE, "seed", "N", "seed of sampling (0)", OWN(seed)},
    {GENERATE, "stop", "ID[+ID...],...", "ids, or sequences of ids, that end an answer",
     TEXT(generate.stop)},
    {GENERATE, "sampling", "KEY=NUMBER,...",
     "other rules: repetition_penalty, presence_penalty, frequency_penalty, min_tokens, n, "
     "logprobs",
     TEXT(generate.sampling)},
    {GENERATE, "rows", "N", "most tokens of a pass (64)", COUNT(generate.plan.rows, 1 << 20),
     .in_plan = true},
    {GENERATE, "trace", "OUT.json|.svg|.html", "write the last pass, planned and measured",
     TEXT(out.trace)},
    {GENERATE, "reference", NULL,
     "compare with the tokens of each request alone, by the plan's stages run one by one",
     FLAG(run.reference)},
    {GENERATE, "check-finite", NULL, "fail if a node's output is NaN or infinite",
     FLAG(run.check_finite)},

    {PASSES, "context", "N", "most tokens of a sequence (as the folder says; 1024)",
     COUNT(generate.plan.context, UINT32_MAX - 1), .in_plan = true},
    {PASSES, "sequences", "N", "most sequences with keys and values at a time (16)",
     COUNT(generate.plan.active, 1 << 16), .in_plan = true},
    {PASSES, "groups", "N", "most passes under way (as many as are fastest by simulation)",
     COUNT(generate.plan.groups, 1 << 16), .in_plan = true},
    {PASSES, "page", "N", "tokens of a page of keys and values (64)",
     COUNT(generate.plan.page, 1 << 20), .in_plan = true},
    {PASSES, "tokens", "N", "keys and values that are held (as many as the caps leave)",
     NUMBER(generate.plan.n_tokens), .in_plan = true},
    {PASSES, "gap", "X", "longest pass with slices of prompts, in passes without any; 0: no limit",
     REAL(generate.plan.gap_passes), .in_plan = true},
    {PASSES, "gap-ms", "MS", "the same in milliseconds, as predicted, in place of --gap",
     REAL(generate.plan.gap_ms), .in_plan = true},
    {PASSES, "drafts", "none|ngram", "ngram: guess tokens from repetitions, 8 at most (none)",
     CHOICE(generate.drafts, "none|ngram")},

    {COMMON, "json", NULL, "machine-readable output", FLAG(out.json)},
    {COMMON, "plugin", "PATH", "a plugin file or a folder of plugins, searched first (repeatable)",
     LIST(plugins)},
    {COMMON, "help", NULL, "this text", NULL, 0, 0, 0, NULL, .letter = 'h'},
};

enum { N_ROWS = sizeof(cli_option_rows) / sizeof(cli_option_rows[0]) };
_Static_assert((int)N_ROWS <= (int)CLI_OPTIONS_MOST, "more room for options is needed");
const uint32_t cli_n_option_rows = N_ROWS;

const cli_command cli_commands[] = {
    {"inspect",
     "show a model: inputs, operators, patterns, parameters",
     "MODEL",
     cli_inspect,
     {MODEL, INSPECT_TRAIN, TRAINED, INSPECT, COMMON},
     .basics = "train bind json help"},
    {"plan",
     "cut a model into stages and print or write the plan",
     "MODEL|FOLDER",
     cli_plan,
     {PLAN, PLANNER, LAYERS, PASSES, MODEL, PLAN_OUT, DATA, TRAINED, OPTIMIZE, PLAN_SEED, COMMON},
     .basics = "stages device schedule microbatches memory auto output train bind json help"},
    {"simulate",
     "play a model's plan on a described cluster: times, bubble, memory, links",
     "PLAN|MODEL",
     cli_simulate,
     {PLAN, PLANNER, LAYERS, MODEL, SIMULATE, PLAYED, DATA, TRAINED, OPTIMIZE, PLAN_SEED, COMMON},
     .basics = "cluster stages schedule microbatches train html json help"},
    {"profile",
     "profile a model's layers, or describe this machine as a cluster",
     NULL,
     cli_profile,
     {PROFILE, MODEL, DATA, TRAINED, OPTIMIZE, COMMON},
     "usage: onnx-pipe profile MODEL|--arch SPEC [-o FILE] [OPTION ...]\n"
     "       onnx-pipe profile --cluster [-o FILE] [OPTION ...]\n",
     .basics = "output arch cluster device train help"},
    {"tune",
     "measure the kernels of a plan on a device, and write the choices into the plan",
     NULL,
     cli_tune,
     {TUNE, COMMON},
     "usage: onnx-pipe tune PLAN MODEL --device KIND[:N] [-o FILE] [OPTION ...]\n"
     "       onnx-pipe tune MODEL --plan PLAN --device KIND[:N] [-o FILE] [OPTION ...]\n",
     .basics = "plan device output help"},
    {"run",
     "run a model (or a model folder with data sets) as a pipeline",
     "MODEL|DIR",
     cli_run,
     {PLAN, PLANNER, MODEL, RUN, TEAM, COMMON},
     .basics = "stages device schedule microbatches memory auto input output requests check bind "
               "json help"},
    {"generate",
     "generate tokens with a decoder, for many requests at once, as a pipeline",
     "FOLDER|MODEL",
     cli_generate,
     {GENERATE, PASSES, PLAN, MODEL, TEAM, COMMON},
     .basics = "prompt ids requests max-tokens temperature stages device memory json help"},
    {"train",
     "train a model as a pipeline on data from files",
     "MODEL",
     cli_train,
     {DATA, TRAINED, OPTIMIZE, TRAIN, TEAM, PLAN, PLANNER, MODEL, COMMON},
     .basics = "data batch loss optimizer steps epochs save resume save-model stages device "
               "schedule microbatches help"},
    {"launch",
     "start processes of one command on this machine, as torchrun does",
     NULL,
     cli_launch,
     {LAUNCH},
     "usage: onnx-pipe launch -n N [OPTION ...] -- COMMAND ...\n\n"
     "COMMAND is a command of onnx-pipe, or any program. Every process gets torchrun's variables\n"
     "(RANK, WORLD_SIZE, ...); process 0 gets the input. The first process that fails is named, "
     "the\n"
     "others have 3 seconds, then SIGTERM, 5 seconds later SIGKILL; its status is that of launch\n"
     "(128 + N for signal N). Signals are passed on.\n",
     .basics = "processes help"},
    {"follow",
     "repeat the calls that process 0 of a team, a server or a host, makes on a model, with its "
     "plan",
     "MODEL",
     cli_follow,
     {FOLLOW, COMMON},
     .basics = "launcher silence json help"},
    {"plugins",
     "list the plugins found, and why others were refused",
     NULL,
     cli_plugins,
     {PLUGINS, COMMON},
     .basics = "why json help"},
    {"schedule",
     "schedules without a model: list, show, lower, check, simulate, draw, convert",
     NULL,
     cli_schedule,
     {SCHEDULE, PLAYED, COMMON},
     "usage: onnx-pipe schedule list|show|lower|check|simulate|draw|convert [FILE|NAME] "
     "[OPTION ...]\n\n"
     "  list      the schedules found and their options\n"
     "  show      compute order\n"
     "  lower     order with messages, reductions, frees and steps\n"
     "  check     proof under a transport's rule; status 1 if it refuses\n"
     "  simulate  makespan, span, bubble, peak stash; with --cluster, on its links\n"
     "  draw      SVG picture, or a page if --output ends in .html\n"
     "  convert   FILE in another form or dialect\n\n"
     "NAME is NAME[:key=value,...]. An existing file, or file:PATH, is read.\n"
     "search[:moves=N,seed=N,from=NAME] looks for a better order than NAME's, or than the best\n"
     "schedule's. gems and pipedream are for comparison only: no plan has them.\n",
     .basics = "ranks stages microbatches format cost output json help"},
    {NULL, NULL, NULL, NULL, {END}}};

bool cli_takes(const cli_command *command, const cli_option *option) {
  const uint32_t *s = command->sections;
  while (*s != END && *s != option->section)
    ++s;
  return *s != END;
}

bool cli_is_of_training(const cli_option *option) {
  return option->section == DATA || option->section == TRAINED || option->section == OPTIMIZE;
}

bool cli_is_settled(const cli_option *option) {
  const bool plays = option->section == SIMULATE || option->section == PLAYED ||
                     option->section == COMMON || strcmp(option->name, "cluster") == 0;
  return !plays || strcmp(option->name, "train") == 0;
}

/* ---- groups ---- */

static const char *const titles[] = {[PLAN] = "Stages, devices, schedules",
                                     [MODEL] = "Model",
                                     [INSPECT_TRAIN] = "Inspection",
                                     [INSPECT] = "Inspection",
                                     [PLAN_OUT] = "Results",
                                     [DATA] = "Data, loss, parameters",
                                     [TRAINED] = "Data, loss, parameters",
                                     [OPTIMIZE] = "Optimizer, precision, length",
                                     [PLAN_SEED] = "Optimizer, precision, length",
                                     [RUN] = "Requests, results, checks",
                                     [TRAIN] = "Results, checks, resuming",
                                     [TEAM] = "Several processes",
                                     [PLUGINS] = "Plugins",
                                     [SCHEDULE] = "Schedules",
                                     [SIMULATE] = "Results",
                                     [PLAYED] = "Described clusters",
                                     [PLANNER] = "Planners",
                                     [LAYERS] = "Without a model",
                                     [PROFILE] = "Profiles",
                                     [TUNE] = "Kernels",
                                     [LAUNCH] = "Processes",
                                     [FOLLOW] = "Following",
                                     [GENERATE] = "Prompts, sampling",
                                     [PASSES] = "Keys and values of generation",
                                     [COMMON] = "Common"};

/* True if it is the k-th word of "a b c". */
static bool is_word(const char *words, uint32_t k, const char *name) {
  const char *at = words;
  for (; k > 0 && *at != '\0'; --k)
    at += strcspn(at, " ") + (at[strcspn(at, " ")] == ' ');
  return *at != '\0' && strcspn(at, " ") == strlen(name) && memcmp(at, name, strlen(name)) == 0;
}

static bool is_basic(const cli_command *c, const char *name) {
  uint32_t n = 1;
  for (const char *at = c->basics; *at != '\0'; ++at)
    n += *at == ' ';
  for (uint32_t k = 0; k < n; ++k) {
    if (is_word(c->basics, k, name))
      return true;
  }
  return false;
}

void cli_each_option(const cli_command *c, cli_option_fn *visit, void *ctx) {
  const char *at = c->basics;
  for (uint32_t k = 0; *at != '\0'; ++k) {
    for (uint32_t i = 0; i < N_ROWS; ++i) {
      if (cli_takes(c, &cli_option_rows[i]) && is_word(c->basics, k, cli_option_rows[i].name))
        visit(ctx, "Basics", &cli_option_rows[i]);
    }
    at += strcspn(at, " ");
    at += *at == ' ';
  }
  for (const uint32_t *s = c->sections; *s != END; ++s) {
    for (uint32_t i = 0; i < N_ROWS; ++i) {
      if (cli_option_rows[i].section == *s && !is_basic(c, cli_option_rows[i].name))
        visit(ctx, titles[*s], &cli_option_rows[i]);
    }
  }
}
