/* Verbs, their options and the one way out: main returns what the verb's error says (README, "Exit codes"). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/path.h"
#include "ckpt/ckpt.h"
#include "ckpt/diff.h"
#include "data/data.h"
#include "device/device.h"
#include "train/check.h"
#include "train/compare.h"
#include "train/eval_verb.h"
#include "train/golden_verb.h"
#include "train/loop.h"
#include "train/outputs.h"
#include "train/plan_verb.h"
#include "train/report.h"
#include "train/sample.h"
#include "train/version.h"
#include "train/weights.h"

enum { MAX_ARGS = 256, ARENA_CAP_GIB = 64 };

/* Options that any verb may declare. */
typedef enum {
  OPT_SET,
  OPT_RESUME,
  OPT_PRINT_CONFIG,
  OPT_PRINT,
  OPT_RANKS,
  OPT_RANK,
  OPT_ROUTING,
  OPT_FORMAT,
  OPT_PROMPT,
  OPT_TOKENS,
  OPT_TEMPERATURE,
  OPT_SEED,
  OPT_TOLERANCE,
  OPT_STEPS,
  OPT_SIMULATE,
  OPT_COST,
  N_OPT
} OptId;
typedef struct Args {
  const char *pos[MAX_ARGS];
  int n_pos;
  const char *sets[MAX_ARGS];
  int n_sets;
  const char *opt[N_OPT]; /* value, or "" for a flag that is there */
} Args;
typedef struct Verb {
  const char *name, *usage, *help;
  unsigned opts;
  int min_pos, max_pos;
  bool mpi;
  bool (*run)(World *w, Arena *a, const Args *args, Err *e);
} Verb;

static const struct {
  const char *name;
  bool takes_value;
  const char *help;
} opt_table[N_OPT] = {
    [OPT_SET] = {"--set", true, "key=value: overrides the configuration, e.g. --set layout.ep=2 (repeatable)"},
    [OPT_RESUME] = {"--resume", true, "PATH: continue from a checkpoint, or from the latest in a directory"},
    [OPT_PRINT_CONFIG] = {"--print-config", false, "print every resolved value and where it came from, then stop"},
    [OPT_PRINT] = {"--print", false, "print the instruction list of the shown rank"},
    [OPT_RANKS] = {"--ranks", true, "N: plan for N ranks (default: layout.dp x tp x pp x cp, else 1)"},
    [OPT_RANK] = {"--rank", true, "R: the rank whose details are shown (default 0)"},
    [OPT_ROUTING] = {"--routing", true,
                     "bound | balanced | all_to_one: routed rows that flops, traffic, bytes touched and --simulate count (default bound; "
                     "--simulate then: balanced). Memory is planned at the bound whatever it says"},
    [OPT_SIMULATE] = {"--simulate", false,
                      "run all ranks' lists against each other in time: that messages meet, how long a step takes, where it waits"},
    [OPT_COST] = {"--cost", true,
                  "key=value,...: flops, memory, bandwidth (per s), latency (s), tp.bandwidth ...: what --simulate counts with (default: "
                  "measured here, links assumed)"},
    [OPT_FORMAT] = {"--format", true, "auto | megatron | u16 | u32 | text"},
    [OPT_PROMPT] = {"--prompt", true, "TEXT: what the model continues (default: nothing, a document begins)"},
    [OPT_TOKENS] = {"--tokens", true, "N: at most N bytes of continuation (default 200); it stops where a document ends"},
    [OPT_TEMPERATURE] = {"--temperature", true, "T: below 1 the likelier bytes gain; 0: always the likeliest (default 0.8)"},
    [OPT_TOLERANCE] = {"--tolerance", true, "T: relative differences up to T are none; hashes are not compared then (default 0: bits)"},
    [OPT_STEPS] = {"--steps", true, "N: training steps in the file (default 5)"},
    [OPT_SEED] = {"--seed", true, "S: of the draws (default: train.seed)"},
};

/* ---- verbs ------------------------------------------------------------------------------------------------------------------------------------ */
static bool read_number(const Args *args, OptId o, int least, int *out, Err *e) {
  char *end;
  if (!args->opt[o]) return true;
  long v = strtol(args->opt[o], &end, 10);
  if (*end || end == args->opt[o] || v < least || v > 10000000)
    return err_set(e, ERR_CONFIG, "%s: \"%s\" is not a whole number from %d to 10000000", opt_table[o].name, args->opt[o], least);
  *out = (int)v;
  return true;
}

static bool read_real(const Args *args, OptId o, double most, double *out, Err *e) {
  char *end;
  if (!args->opt[o]) return true;
  *out = strtod(args->opt[o], &end);
  if (*end || end == args->opt[o] || !(*out >= 0 && *out <= most))
    return err_set(e, ERR_CONFIG, "%s: \"%s\" is not a number from 0 to %g", opt_table[o].name, args->opt[o], most);
  return true;
}

/* Settings below those of the command line; the same list on all ranks. */
typedef struct Sets {
  const char **text;
  int n;
} Sets;
static Sets add_sets(Arena *a, const char *const *below, int n, const Args *args) {
  Sets s = {ARENA_NEW(a, const char *, n + args->n_sets + 1), n + args->n_sets};
  for (int i = 0; i < n; i++) s.text[i] = below[i];
  for (int i = 0; i < args->n_sets; i++) s.text[n + i] = args->sets[i];
  return s;
}
/* The configuration that a checkpoint carries, but the layout that this world has: data parallel, unless the command line says more. */
static bool config_of_checkpoint(World *w, Arena *a, const Args *args, ConfigDoc *doc, Err *e) {
  static const char *const layout[] = {"layout.dp=0",  "layout.tp=1", "layout.pp=1",     "layout.ep=1",
                                       "layout.etp=1", "layout.cp=1", "layout.chunks=1", "layout.pp_layers="};
  Sets s = add_sets(a, layout, (int)(sizeof layout / sizeof *layout), args);
  char *file;
  const char *text = weights_config(w, a, args->opt[OPT_RESUME], &file, e);
  if (text && config_read_text(doc, a, file, text, s.text, s.n, e)) config_resolve(doc, world_size(w), e);
  return world_agree(w, e);
}
/* Of the file that is named, else of the checkpoint. */
static bool read_config(World *w, Arena *a, const Args *args, ConfigDoc *doc, Err *e) {
  if (!args->n_pos) return config_of_checkpoint(w, a, args, doc, e);
  if (config_read(doc, a, args->pos[0], args->sets, args->n_sets, e)) config_resolve(doc, world_size(w), e);
  return world_agree(w, e);
}

static bool needs_resume(const Args *args, Err *e) {
  return args->opt[OPT_RESUME] || err_set(e, ERR_CONFIG, "--resume is missing: it names a checkpoint, or a directory of them");
}

static bool verb_train(World *w, Arena *a, const Args *args, Err *e) {
  ConfigDoc *doc = ARENA_NEW(a, ConfigDoc, 1);
  if (config_read(doc, a, args->pos[0], args->sets, args->n_sets, e) && config_resolve(doc, world_size(w), e))
    outputs_apart(a, &doc->c, args->pos[0], args->opt[OPT_RESUME], e);
  TRY(world_agree(w, e));
  if (args->opt[OPT_PRINT_CONFIG]) {
    if (world_rank(w) == 0) config_print(doc, stdout);
    return true;
  }
  return train_run(w, a, &doc->c, args->opt[OPT_RESUME], e);
}

static int layout_ranks(const Config *c) {
  int64_t dp = c->layout.dp > 0 ? c->layout.dp : c->layout.ep;
  return (int)(dp * c->layout.tp * c->layout.pp * c->layout.cp);
}
static bool verb_plan(World *w, Arena *a, const Args *args, Err *e) {
  (void)w;
  ConfigDoc *doc = ARENA_NEW(a, ConfigDoc, 1);
  TRY(config_read(doc, a, args->pos[0], args->sets, args->n_sets, e));
  PlanArgs p = {.world = layout_ranks(&doc->c),
                .print = args->opt[OPT_PRINT] != NULL,
                .routing = args->opt[OPT_ROUTING],
                .simulate = args->opt[OPT_SIMULATE] != NULL,
                .cost = args->opt[OPT_COST]};
  TRY(read_number(args, OPT_RANKS, 1, &p.world, e) && read_number(args, OPT_RANK, 0, &p.rank, e));
  TRY(config_resolve(doc, p.world, e));
  if (args->opt[OPT_PRINT_CONFIG]) return config_print(doc, stdout), true;
  return plan_verb(a, doc, &p, stdout, e);
}

static bool verb_check(World *w, Arena *a, const Args *args, Err *e) {
  return check_run(w, a, args->pos[0], args->sets, args->n_sets, stdout, e);
}

static bool verb_eval(World *w, Arena *a, const Args *args, Err *e) {
  ConfigDoc *doc = ARENA_NEW(a, ConfigDoc, 1);
  TRY(needs_resume(args, e) && read_config(w, a, args, doc, e));
  return eval_verb(w, a, &doc->c, args->opt[OPT_RESUME], stdout, e);
}

/* What `etalon golden` sets otherwise than the file and the command line; the number of steps is asked for. */
static const char *golden_changes(Arena *a, const Args *args, const Config *c) {
  ConfigDoc was;
  Err unheard = {0};
  const char *const steps[] = {arena_printf(a, "train.train_iters=%lld", (long long)c->train.train_iters)};
  Sets s = add_sets(a, steps, 1, args);
  const char *changes =
      config_read(&was, a, args->pos[0], s.text, s.n, &unheard) ? config_changes(a, config_text(&was, a), c->text, CONFIG_SCOPE_ALL) : "";
  return changes ? changes : "";
}

static bool verb_golden(World *w, Arena *a, const Args *args, Err *e) {
  ConfigDoc *doc = ARENA_NEW(a, ConfigDoc, 1);
  int n_step = 5, n;
  TRY(read_number(args, OPT_STEPS, 1, &n_step, e));
  const char *const *below = golden_verb_sets(a, n_step, &n);
  Sets s = add_sets(a, below, n, args);
  const char *out = args->pos[1];
  if (config_read(doc, a, args->pos[0], s.text, s.n, e) && config_resolve(doc, world_size(w), e) &&
      path_apart("etalon golden", out, "it", args->pos[0], e) && path_apart("etalon golden", out, "--resume", args->opt[OPT_RESUME], e))
    path_apart("etalon golden", out, "data.train", doc->c.data.train, e);
  TRY(world_agree(w, e));
  return golden_verb(w, a, &doc->c, args->pos[1], args->opt[OPT_RESUME], golden_changes(a, args, &doc->c), stdout, e);
}

static bool verb_sample(World *w, Arena *a, const Args *args, Err *e) {
  ConfigDoc *doc = ARENA_NEW(a, ConfigDoc, 1);
  int n_token = 200, seed = -1;
  SampleArgs s = {.prompt = args->opt[OPT_PROMPT] ? args->opt[OPT_PROMPT] : "", .temperature = 0.8};
  TRY(needs_resume(args, e) && read_number(args, OPT_TOKENS, 1, &n_token, e) && read_number(args, OPT_SEED, 0, &seed, e));
  TRY(read_real(args, OPT_TEMPERATURE, 100, &s.temperature, e) && read_config(w, a, args, doc, e));
  s.n_token = n_token, s.seed = seed >= 0 ? (uint64_t)seed : (uint64_t)doc->c.train.seed;
  return sample_verb(w, a, &doc->c, args->opt[OPT_RESUME], &s, stdout, e);
}

static bool verb_data(World *w, Arena *a, const Args *args, Err *e) {
  (void)w;
  static const char *const name[] = {"megatron", "u16", "u32", "text", "auto"};
  TokenFormat format = TOK_AUTO;
  for (int i = 0; args->opt[OPT_FORMAT] && (size_t)i <= sizeof name / sizeof *name; i++) {
    if ((size_t)i == sizeof name / sizeof *name)
      return err_set(e, ERR_CONFIG, "--format: \"%s\" is not a format; there are: auto, megatron, u16, u32, text", args->opt[OPT_FORMAT]);
    format = (TokenFormat)i;
    if (!strcmp(name[i], args->opt[OPT_FORMAT])) break;
  }
  if (!strcmp(args->pos[0], "pack") && args->n_pos == 3) return data_pack(a, args->pos[1], args->pos[2], stdout, e);
  if (!strcmp(args->pos[0], "info") && args->n_pos == 2) return data_info(a, args->pos[1], format, stdout, e);
  return err_set(e, ERR_CONFIG, "etalon data: give `pack TEXT OUT` or `info PATH`");
}

static bool verb_compare(World *w, Arena *a, const Args *args, Err *e) {
  (void)w;
  double tolerance = 0;
  return read_real(args, OPT_TOLERANCE, 1, &tolerance, e) && compare_run(a, args->pos[0], args->pos[1], tolerance, stdout, e);
}

static bool verb_report(World *w, Arena *a, const Args *args, Err *e) {
  (void)w;
  return report_run(a, args->pos[0], args->pos[1], stdout, e);
}

static bool verb_ckpt(World *w, Arena *a, const Args *args, Err *e) {
  (void)w;
  double tolerance = 0;
  TRY(read_real(args, OPT_TOLERANCE, 1, &tolerance, e));
  if (!strcmp("diff", args->pos[0]) && args->n_pos == 3)
    return diff_run(a, FILE_CHECKPOINT, args->pos[1], args->pos[2], tolerance, stdout, e);
  static const struct {
    const char *name;
    bool (*run)(Arena *, const char *, FILE *, Err *);
  } sub[] = {{"list", ckpt_list}, {"show", ckpt_show}, {"verify", ckpt_verify}};
  for (size_t i = 0; i < sizeof sub / sizeof *sub; i++)
    if (!strcmp(sub[i].name, args->pos[0]) && args->n_pos == 2) return sub[i].run(a, args->pos[1], stdout, e);
  return err_set(e, ERR_CONFIG, "etalon ckpt: give `list DIR`, `show PATH`, `verify PATH` or `diff A B`");
}

static bool verb_config(World *w, Arena *a, const Args *args, Err *e) {
  (void)w, (void)a, (void)args, (void)e;
  config_print_reference(stdout);
  return true;
}

#define BIT(o) (1u << (o))
static const Verb verbs[] = {
    {"train", "CONFIG [--set key=value ...] [--resume PATH] [--print-config]", "train a model; start it with mpirun",
     BIT(OPT_SET) | BIT(OPT_RESUME) | BIT(OPT_PRINT_CONFIG), 1, 1, true, verb_train},
    {"plan", "CONFIG [--ranks N] [--rank R] [--routing R] [--simulate [--cost C]] [--print] [--print-config] [--set key=value ...]",
     "memory, flops, traffic, time and instructions of a run, without running it",
     BIT(OPT_SET) | BIT(OPT_PRINT) | BIT(OPT_RANKS) | BIT(OPT_RANK) | BIT(OPT_ROUTING) | BIT(OPT_SIMULATE) | BIT(OPT_COST) |
         BIT(OPT_PRINT_CONFIG),
     1, 1, false, verb_plan},
    {"check", "FILE.h5 [--set key=value ...]", "train a golden file's model and compare every number with it", BIT(OPT_SET), 1, 1, true,
     verb_check},
    {"eval", "[CONFIG] --resume CKPT [--set key=value ...]",
     "validation loss of a checkpoint over all tokens of data.valid; CONFIG left out: the checkpoint's own, without its layout",
     BIT(OPT_SET) | BIT(OPT_RESUME), 0, 1, true, verb_eval},
    {"sample", "[CONFIG] --resume CKPT --prompt TEXT [--tokens N] [--temperature T] [--seed S]",
     "text as a checkpoint continues it (byte tokenizer)",
     BIT(OPT_SET) | BIT(OPT_RESUME) | BIT(OPT_PROMPT) | BIT(OPT_TOKENS) | BIT(OPT_TEMPERATURE) | BIT(OPT_SEED), 0, 1, true, verb_sample},
    {"golden", "CONFIG OUT.h5 [--steps N] [--resume CKPT] [--set key=value ...]",
     "write reference numbers of this model and data, for `check` and for tests of other trainers",
     BIT(OPT_SET) | BIT(OPT_RESUME) | BIT(OPT_STEPS), 2, 2, true, verb_golden},
    {"data", "pack TEXT OUT | info PATH [--format F]",
     "pack text into a Megatron data set OUT.bin, OUT.idx (documents are what blank lines part; a byte a token, 256 ends a document), or "
     "describe a data set",
     BIT(OPT_FORMAT), 1, 3, false, verb_data},
    {"compare", "A B [--tolerance T]",
     "where two runs part: of metrics (JSONL), golden files or checkpoints; exit code 0 equal, 7 different", BIT(OPT_TOLERANCE), 2, 2,
     false, verb_compare},
    {"report", "METRICS.jsonl OUT.html", "a page with plots of a run's metrics (log.metrics); nothing else is needed to read it", 0, 2, 2,
     false, verb_report},
    {"ckpt", "list DIR | show PATH | verify PATH | diff A B [--tolerance T]", "look at checkpoints", BIT(OPT_TOLERANCE), 2, 3, false,
     verb_ckpt},
    {"config", "", "print the reference of every configuration key (Markdown)", 0, 0, 0, false, verb_config},
};
enum { N_VERB = sizeof verbs / sizeof *verbs };

/* ---- arguments -------------------------------------------------------------------------------------------------------------------------------- */
static void print_usage(FILE *f) {
  fprintf(f, "etalon: a reference trainer for Mixture-of-Experts transformers\n\n");
  for (int i = 0; i < N_VERB; i++) fprintf(f, "  etalon %-7s %s\n          %s\n", verbs[i].name, verbs[i].usage, verbs[i].help);
  fprintf(f, "\n  etalon VERB --help, etalon --version\n");
}
static void print_help(const Verb *v) {
  printf("etalon %s %s\n\n%s\n", v->name, v->usage, v->help);
  for (int o = 0; o < N_OPT; o++)
    if (v->opts >> o & 1) printf("  %-15s %s\n", opt_table[o].name, opt_table[o].help);
}
static void print_version(void) {
  printf("etalon %s\ncompiler %s\n", version_text(), __VERSION__);
  Device d;
  Err e = {0};
  if (device_open(&d, "cpu", "auto", 1, 0, &e)) {
    printf("gemm %s %s\nisa %s\n", d.gemm_name, d.gemm_version, d.isa);
    device_close(&d);
  }
}

static bool parse_option(const Verb *v, int argc, char **argv, int *i, Args *args, Err *e) {
  for (int o = 0; o < N_OPT; o++) {
    if (!(v->opts >> o & 1) || strcmp(argv[*i], opt_table[o].name)) continue;
    if (!opt_table[o].takes_value) return args->opt[o] = "", true;
    if (++*i >= argc) return err_set(e, ERR_CONFIG, "%s needs a value: %s", opt_table[o].name, opt_table[o].help);
    if (o == OPT_SET)
      args->sets[args->n_sets++] = argv[*i];
    else
      args->opt[o] = argv[*i];
    return true;
  }
  return err_set(e, ERR_CONFIG, "etalon %s: %s is not an option; see etalon %s --help", v->name, argv[*i], v->name);
}
static bool parse_args(const Verb *v, int argc, char **argv, Args *args, Err *e) {
  if (argc > MAX_ARGS) return err_set(e, ERR_CONFIG, "more than %d arguments", MAX_ARGS);
  for (int i = 2; i < argc; i++) {
    if (argv[i][0] == '-')
      TRY(parse_option(v, argc, argv, &i, args, e));
    else
      args->pos[args->n_pos++] = argv[i];
  }
  if (args->n_pos < v->min_pos || args->n_pos > v->max_pos) return err_set(e, ERR_CONFIG, "usage: etalon %s %s", v->name, v->usage);
  return true;
}

static const Verb *find_verb(const char *name) {
  for (int i = 0; i < N_VERB; i++)
    if (!strcmp(verbs[i].name, name)) return &verbs[i];
  return NULL;
}

/* What was asked for is lost if standard output takes no more; of training only the log is. */
static void check_output(const Verb *v, World *w, Err *e) {
  if (w && world_rank(w) != 0) return;
  if (fflush(stdout) == 0 && !ferror(stdout)) return;
  const char *why = strerror(errno);
  if (v->run != verb_train)
    err_set(e, ERR_CONFIG, "standard output cannot be written: %s", why);
  else
    fprintf(stderr, "warning: standard output cannot be written: %s\n", why);
}

static int run_verb(const Verb *v, int argc, char **argv) {
  Err e = {0};
  Args args = {0};
  Arena arena;
  World *world = NULL;
  arena_open(&arena, "main", (size_t)ARENA_CAP_GIB << 30);
  bool ok = !v->mpi || world_open(&world, &arena, &argc, &argv, &e);
  if (ok && parse_args(v, argc, argv, &args, &e)) v->run(world, &arena, &args, &e);
  check_output(v, world, &e);
  if (world) return world_close(world, &e);
  if (e.code) fprintf(stderr, "error: %s\n", e.text);
  arena_close(&arena);
  return (int)e.code;
}

int main(int argc, char **argv) {
  if (argc < 2) return print_usage(stderr), ERR_CONFIG;
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return print_usage(stdout), 0;
  if (!strcmp(argv[1], "--version")) return print_version(), 0;
  const Verb *v = find_verb(argv[1]);
  if (!v) return fprintf(stderr, "error: \"%s\" is not a verb; see etalon --help\n", argv[1]), ERR_CONFIG;
  for (int i = 2; i < argc; i++)
    if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return print_help(v), 0;
  return run_verb(v, argc, argv);
}
