/* The golden reader against files that lie. Good files are covered by straight_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <hdf5.h>

#include "base/rng.h"
#include "ckpt/golden.h"
#include "ckpt/probe.h"
#include "config/config.h"

#define MIXTRAL SOURCE_DIR "/tests/golden/mixtral.h5"
#define LLAMA   SOURCE_DIR "/tests/golden/llama-dense.h5"

static const char CONFIG[] =
    "{\"family\": \"mixtral\", \"vocab\": 9, \"hidden\": 4, \"layers\": 2, \"heads\": 4, \"kv_heads\": 2, \"head_dim\": 2, \"experts\": 6, "
    "\"top_k\": 2, "
    "\"ffn\": 20, \"dense_ffn\": 28, \"first_dense\": 1, \"shared_experts\": 0, \"shared_ffn\": null, \"rope_theta\": 10000.0, "
    "\"norm_eps\": 1e-05, "
    "\"tied\": true, \"sliding_window\": null, \"q_lora\": 12, \"kv_lora\": 8, \"rope_dim\": 4, \"nope_dim\": 6, \"v_dim\": 6, "
    "\"n_group\": 1, "
    "\"topk_group\": 1, \"routed_scale\": 1, \"norm_topk\": false, \"swiglu_limit\": 7.0, \"swiglu_alpha\": 1.702, \"aux_coeff\": 0.01, "
    "\"aux_form\": "
    "\"switch\", \"z_coeff\": 0.001, \"batch\": 2, \"seq\": 13, \"seed\": 1, \"ignore\": [[0, 12], [1, 3]], \"steps\": 5, \"init_std\": "
    "0.2, "
    "\"bias_std\": 0.3, \"lr\": 0.01, \"beta1\": 0.9, \"beta2\": 0.95, \"eps\": 1e-08, \"weight_decay\": 0.1, \"clip\": 1.0}";

typedef struct Place {
  Arena a;
  char dir[64], *path;
} Place;

static void set_up(Place *p) {
  *p = (Place){.dir = "/tmp/golden-reader-XXXXXX"};
  arena_open(&p->a, "test", (size_t)16 << 20);
  assert_non_null(mkdtemp(p->dir));
  p->path = arena_printf(&p->a, "%s/x.h5", p->dir);
}
static void tear_down(Place *p) {
  unlink(p->path);
  rmdir(p->dir);
  arena_close(&p->a);
}

static char *replaced(Arena *a, const char *text, const char *from, const char *to) {
  const char *at = strstr(text, from);
  if (!at) fail_msg("no %s in the config", from);
  return arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------- */

static void put_config(hid_t file, const char *text) {
  hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, H5T_VARIABLE);
  hid_t attr = H5Acreate2(file, "config", type, space, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(H5Awrite(attr, type, &text) >= 0);
  H5Aclose(attr), H5Sclose(space), H5Tclose(type);
}

/* Allocates late: a data set declared huge costs nothing until it is written. */
static void put_set(hid_t file, const char *name, hid_t type, int rank, const hsize_t *dims, hid_t plist, const void *data) {
  hid_t space = rank ? H5Screate_simple(rank, dims, NULL) : H5Screate(H5S_SCALAR), links = H5Pcreate(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(links, 1);
  hid_t set = H5Dcreate2(file, name, type, space, links, plist, H5P_DEFAULT);
  assert_true(set >= 0);
  if (data) assert_true(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
  H5Dclose(set), H5Pclose(links), H5Sclose(space);
}

static hid_t begin(Place *p, const char *config) {
  hid_t file = H5Fcreate(p->path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(file >= 0);
  if (config) put_config(file, config);
  return file;
}

static const double NINE[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
static void put_good(hid_t file) { put_set(file, "weights/w", H5T_IEEE_F64LE, 2, (hsize_t[]){3, 3}, H5P_DEFAULT, NINE); }

/* ---- expectations ----------------------------------------------------------------------------------------------------------------- */

static void must_fail(const Err *e, bool ok, ErrCode code, const char *says) {
  if (ok) fail_msg("accepted, where \"%s\" was expected", says);
  if (e->code != code || !strstr(e->text, says)) fail_msg("code %d: \"%s\" does not say \"%s\"", e->code, e->text, says);
}

static void refused_path(Place *p, const char *path, ErrCode code, const char *says) {
  Golden *g;
  Err e = {0};
  bool ok = golden_open(&g, &p->a, path, &e);
  must_fail(&e, ok, code, says);
  if (!strstr(e.text, path)) fail_msg("\"%s\" does not name the file", e.text);
}

static void refused(Place *p, hid_t file, ErrCode code, const char *says) {
  H5Fclose(file);
  refused_path(p, p->path, code, says);
}

static void refused_config(Place *p, const char *from, const char *to, ErrCode code, const char *says) {
  hid_t file = begin(p, replaced(&p->a, CONFIG, from, to));
  put_good(file);
  refused(p, file, code, says);
}

static Golden *accepted(Place *p, const char *path) {
  Golden *g;
  Err e = {0};
  if (!golden_open(&g, &p->a, path, &e)) fail_msg("%s", e.text);
  return g;
}

/* ---- tests ------------------------------------------------------------------------------------------------------------------------ */

static void good_file(void **state) {
  (void)state;
  Place p;
  set_up(&p);
  hid_t file = begin(&p, CONFIG);
  put_good(file);
  H5Fclose(file);
  Golden *g = accepted(&p, p.path);
  const GoldenConfig *c = golden_config(g);
  assert_true(c->heads == 4 && c->shared_ffn == 0 && c->tied && !c->norm_topk && c->seed == 1 && c->routed_scale == 1 && c->clip == 1);
  assert_true(c->n_ignore == 2 && c->ignore[0] == 0 && c->ignore[1] == 12 && c->ignore[2] == 1 && c->ignore[3] == 3);
  assert_string_equal(c->aux_form, "switch");
  int n, n_dim;
  int64_t dims[GOLDEN_MAX_DIM];
  const GoldenTensor *w = golden_weights(g, &n);
  assert_int_equal(n, 1);
  assert_string_equal(w->name, "w");
  assert_true(w->n_dim == 2 && w->dims[0] == 3 && w->dims[1] == 3);
  Err e = {0};
  double x[9];
  assert_true(golden_read_f64(g, "weights/w", x, 9, &e));
  assert_memory_equal(x, NINE, sizeof x);
  assert_true(golden_dims(g, "weights/w", &n_dim, dims, &e) && n_dim == 2 && dims[1] == 3);
  assert_true(golden_has(g, "weights/w"));
  assert_false(golden_has(g, "weights") || golden_has(g, "weights/v") || golden_has(g, "no/such/path") || golden_has(g, ""));
  golden_close(g);
  tear_down(&p);
}

static void oracle_file(void **state) {
  (void)state;
  Place p;
  set_up(&p);
  Golden *g = accepted(&p, MIXTRAL);
  int n, n_dim;
  int64_t dims[GOLDEN_MAX_DIM], tokens[26];
  Err e = {0};
  const GoldenTensor *w = golden_weights(g, &n);
  assert_int_equal(n, 78);
  assert_string_equal(w[0].name, "lm_head.weight");
  assert_true(w[0].n_dim == 2 && w[0].dims[0] == 97 && w[0].dims[1] == 16);
  assert_true(golden_dims(g, "step1/loss/ce", &n_dim, dims, &e) && n_dim == 0);
  assert_true(golden_read_i64(g, "steps/5/tokens", tokens, 26, &e));
  must_fail(&e, golden_read_i64(g, "steps/5/tokens", tokens, 25, &e), ERR_CKPT, "steps/5/tokens has 26 elements where 25 are expected");
  e = (Err){0};
  must_fail(&e, golden_read_f64(g, "steps/5/tokens", (double *)tokens, 26, &e), ERR_CKPT, "not of type float64");
  e = (Err){0};
  must_fail(&e, golden_read_i64(g, "train/ce", tokens, 5, &e), ERR_CKPT, "not of type int64");
  e = (Err){0};
  must_fail(&e, golden_read_i64(g, "steps/6/tokens", tokens, 26, &e), ERR_CKPT, "no data set steps/6/tokens");
  e = (Err){0};
  must_fail(&e, golden_dims(g, "steps", &n_dim, dims, &e), ERR_CKPT, "no data set steps");
  golden_close(g);
  tear_down(&p);
}

static void foreign_file(void **state) {
  (void)state;
  Place p;
  set_up(&p);
  refused_path(&p, p.path, ERR_CKPT, "no such file");
  refused_path(&p, p.dir, ERR_CKPT, "not a regular one");
  FILE *f = fopen(p.path, "w");
  fclose(f);
  refused_path(&p, p.path, ERR_CKPT, "not an HDF5 file");
  f = fopen(p.path, "w");
  fputs("{\"family\": \"mixtral\"}", f);
  fclose(f);
  refused_path(&p, p.path, ERR_CKPT, "not an HDF5 file");
  refused(&p, begin(&p, NULL), ERR_CKPT, "no attribute config");
  hid_t file = begin(&p, NULL), space = H5Screate(H5S_SCALAR);
  H5Aclose(H5Acreate2(file, "config", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT));
  H5Sclose(space);
  refused(&p, file, ERR_CKPT, "not one string");
  file = begin(&p, NULL), space = H5Screate(H5S_SCALAR);
  hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, H5T_VARIABLE);
  H5Aclose(H5Acreate2(file, "config", type, space, H5P_DEFAULT, H5P_DEFAULT)); /* never written: a null string */
  H5Sclose(space), H5Tclose(type);
  refused(&p, file, ERR_CKPT, "not one string");
  tear_down(&p);
}

static void wrong_config(void **state) {
  (void)state;
  Place p;
  set_up(&p);
  refused_config(&p, "\"mixtral\"", "\"qwen3_moe\"", ERR_CONFIG, "family qwen3_moe is not in this version; there are: llama, mixtral");
  refused_config(&p, "\"mixtral\"", "\"\"", ERR_CONFIG, "there are: llama, mixtral");
  refused_config(&p, "\"mixtral\"", "7", ERR_CKPT, "family is missing or not a text");
  refused_config(&p, "\"vocab\": 9", "\"vocab\": 9,", ERR_CKPT, "not JSON");
  refused_config(&p, "\"vocab\": 9", "\"vocab\": 9, \"vocab\": 10", ERR_CKPT, "not JSON");
  refused_config(&p, CONFIG, "[1, 2]", ERR_CKPT, "not a JSON object");
  refused_config(&p, "\"vocab\": 9, ", "", ERR_CKPT, "vocab is missing");
  refused_config(&p, "\"vocab\": 9", "\"vocab\": 9, \"qk_norm\": true", ERR_CKPT, "newer oracle");
  refused_config(&p, "\"vocab\": 9", "\"vocab\": 9.5", ERR_CKPT, "vocab is not an integer");
  refused_config(&p, "\"vocab\": 9", "\"vocab\": null", ERR_CKPT, "vocab is not an integer");
  refused_config(&p, "\"vocab\": 9", "\"vocab\": 0", ERR_CKPT, "vocab is 0; allowed are 1");
  refused_config(&p, "\"vocab\": 9", "\"vocab\": 4611686018427387904", ERR_CKPT, "vocab is 4.6");
  refused_config(&p, "\"beta2\": 0.95", "\"beta2\": \"x\"", ERR_CKPT, "beta2 is not a number");
  refused_config(&p, "\"beta2\": 0.95", "\"beta2\": 2", ERR_CKPT, "beta2 is 2; allowed are 0 to 1");
  refused_config(&p, "\"tied\": true", "\"tied\": 1", ERR_CKPT, "tied is neither true nor false");
  refused_config(&p, "\"switch\"", "3", ERR_CKPT, "aux_form is not a text");
  refused_config(&p, "[1, 3]", "[1, 13]", ERR_CKPT, "ignore names [1, 13]");
  refused_config(&p, "[1, 3]", "[2, 3]", ERR_CKPT, "ignore names [2, 3]");
  refused_config(&p, "[1, 3]", "[-1, 3]", ERR_CKPT, "something else than pairs");
  refused_config(&p, "[1, 3]", "[1]", ERR_CKPT, "something else than pairs");
  refused_config(&p, "[1, 3]", "[1, 3, 5]", ERR_CKPT, "something else than pairs");
  refused_config(&p, "[[0, 12], [1, 3]]", "4", ERR_CKPT, "ignore is not a list");
  refused_config(&p, "\"kv_heads\": 2", "\"kv_heads\": 3", ERR_CKPT, "heads 4 is no multiple of kv_heads 3");
  refused_config(&p, "\"head_dim\": 2", "\"head_dim\": 3", ERR_CKPT, "head_dim 3 is odd");
  refused_config(&p, "\"top_k\": 2", "\"top_k\": 7", ERR_CKPT, "top_k 7 of experts 6");
  refused_config(&p, "\"first_dense\": 1", "\"first_dense\": 3", ERR_CKPT, "first_dense 3 is above layers 2");
  refused_config(&p, "\"dense_ffn\": 28", "\"dense_ffn\": 0", ERR_CKPT, "dense_ffn is 0");
  refused_config(&p, "\"shared_experts\": 0", "\"shared_experts\": 1", ERR_CKPT, "mixtral has none");
  tear_down(&p);
}

static void wrong_weights(void **state) {
  (void)state;
  Place p;
  set_up(&p);
  refused(&p, begin(&p, CONFIG), ERR_CKPT, "no group weights");
  hid_t file = begin(&p, CONFIG);
  put_set(file, "weights", H5T_IEEE_F64LE, 1, (hsize_t[]){9}, H5P_DEFAULT, NINE);
  refused(&p, file, ERR_CKPT, "no group weights");
  file = begin(&p, CONFIG);
  H5Gclose(H5Gcreate2(file, "weights", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  refused(&p, file, ERR_CKPT, "empty");
  file = begin(&p, CONFIG);
  put_set(file, "weights/w/x", H5T_IEEE_F64LE, 1, (hsize_t[]){9}, H5P_DEFAULT, NINE);
  refused(&p, file, ERR_CKPT, "no data set weights/w");
  file = begin(&p, CONFIG);
  put_good(file);
  put_set(file, "weights/x", H5T_IEEE_F64LE, 5, (hsize_t[]){1, 1, 1, 1, 1}, H5P_DEFAULT, NULL);
  refused(&p, file, ERR_CKPT, "weights/x: unexpected rank");
  file = begin(&p, CONFIG);
  put_set(file, "weights/x", H5T_IEEE_F64LE, 2, (hsize_t[]){(hsize_t)1 << 20, (hsize_t)1 << 20}, H5P_DEFAULT, NULL);
  refused(&p, file, ERR_CKPT, "more than the file of");
  file = begin(&p, CONFIG);
  put_set(file, "weights/x", H5T_IEEE_F64LE, 3, (hsize_t[]){100, 100, 100}, H5P_DEFAULT,
          NULL); /* each is small enough, the product is not */
  refused(&p, file, ERR_CKPT, "dimension 1 is 100, more than the file of");
  file = begin(&p, CONFIG);
  put_set(file, "weights/x", H5T_IEEE_F64LE, 1, (hsize_t[]){0}, H5P_DEFAULT, NULL);
  refused(&p, file, ERR_CKPT, "dimension 0 is 0");
  file = begin(&p, CONFIG);
  put_good(file);
  H5Lcreate_soft("/weights/w", file, "/weights/x", H5P_DEFAULT, H5P_DEFAULT);
  refused(&p, file, ERR_CKPT, "no data set weights/x");
  file = begin(&p, CONFIG);
  put_good(file);
  H5Lcreate_external(MIXTRAL, "/train/ce", file, "/weights/x", H5P_DEFAULT, H5P_DEFAULT);
  refused(&p, file, ERR_CKPT, "no data set weights/x");
  tear_down(&p);
}

/* Compression and external storage could make a small file claim, or reach, what is not in it. */
static void wrong_storage(void **state) {
  (void)state;
  Place p;
  set_up(&p);
  hid_t file = begin(&p, CONFIG), chunked = H5Pcreate(H5P_DATASET_CREATE), outside = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(chunked, 1, (hsize_t[]){9});
  put_set(file, "weights/w", H5T_IEEE_F64LE, 1, (hsize_t[]){9}, chunked, NINE);
  refused(&p, file, ERR_CKPT, "weights/w: unexpected rank, layout");
  file = begin(&p, CONFIG);
  H5Pset_external(outside, MIXTRAL, 0, 72);
  put_set(file, "weights/w", H5T_IEEE_F64LE, 1, (hsize_t[]){9}, outside, NULL);
  refused(&p, file, ERR_CKPT, "weights/w: unexpected rank, layout");
  H5Pclose(chunked), H5Pclose(outside);
  file = begin(&p, CONFIG);
  put_set(file, "weights/w", H5T_IEEE_F32LE, 1, (hsize_t[]){9}, H5P_DEFAULT, NULL);
  put_set(file, "weights/big", H5T_IEEE_F64BE, 1, (hsize_t[]){9}, H5P_DEFAULT, NULL);
  H5Fclose(file);
  Golden *g = accepted(&p, p.path);
  Err e = {0};
  double x[9];
  must_fail(&e, golden_read_f64(g, "weights/w", x, 9, &e), ERR_CKPT, "not of type float64");
  e = (Err){0};
  must_fail(&e, golden_read_f64(g, "weights/big", x, 9, &e), ERR_CKPT, "not of type float64");
  golden_close(g);
  tear_down(&p);
}

/* Opens and reads whatever can be read; only the manner of failing matters. */
static void use_all(Place *p, const char *path) {
  Golden *g;
  Err e = {0};
  ArenaMark m = arena_mark(&p->a);
  if (golden_open(&g, &p->a, path, &e)) {
    int n;
    const GoldenTensor *w = golden_weights(g, &n);
    for (int i = 0; i < n; i++) {
      int64_t count = 1;
      for (int d = 0; d < w[i].n_dim; d++) count *= w[i].dims[d];
      double *x = ARENA_NEW(&p->a, double, count);
      e = (Err){0};
      if (!golden_read_f64(g, arena_printf(&p->a, "weights/%s", w[i].name), x, count, &e)) assert_int_equal(e.code, ERR_CKPT);
    }
    golden_close(g);
  } else {
    assert_true(e.code == ERR_CKPT || e.code == ERR_CONFIG);
  }
  arena_release(&p->a, m);
}

static void write_bytes(const char *path, const char *bytes, size_t n) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

/* Truncated at many places; then single bytes of it changed. The seed is fixed, so a failure is repeatable. */
static void damaged_file(void **state) {
  (void)state;
  Place p;
  set_up(&p);
  enum { MAX = 1 << 20, N_FLIP = 60, HEAP_SIZE = 2075 };
  char *bytes = ARENA_NEW(&p.a, char, MAX);
  FILE *f = fopen(LLAMA, "r");
  assert_non_null(f);
  size_t n = fread(bytes, 1, MAX, f);
  fclose(f);
  assert_true(n > 100000 && n < MAX);
  for (size_t cut = 0; cut < n; cut += n / 16) {
    write_bytes(p.path, bytes, cut);
    refused_path(&p, p.path, ERR_CKPT, "HDF5");
  }
  char was = bytes[HEAP_SIZE]; /* in the length of the config's text: HDF5 1.10 reads far outside its buffer, and dies */
  bytes[HEAP_SIZE] = 0x7f;
  write_bytes(p.path, bytes, n);
  bytes[HEAP_SIZE] = was;
  refused_path(&p, p.path, ERR_CKPT, "");
  RngKey key = {.seed = 1, .purpose = RNG_TEST};
  for (uint64_t i = 0; i < N_FLIP; i++) {
    size_t at = (size_t)rng_below(key, 2 * i, i % 2 ? n : 8192);
    char old = bytes[at];
    bytes[at] = (char)(old ^ (char)(1 + rng_below(key, 2 * i + 1, 255)));
    write_bytes(p.path, bytes, n);
    bytes[at] = old;
    use_all(&p, p.path);
  }
  tear_down(&p);
}

static void touch_nothing(void *ctx) { (void)ctx; }
static void touch_null(void *ctx) { *(volatile int *)ctx = 1; }

static void touch_exit(void *ctx) { _exit(*(int *)ctx); }

/* Two seconds, where one is left. */
static void touch_slowly(void *ctx) {
  setrlimit(RLIMIT_CPU, &(struct rlimit){(rlim_t)(clock() / CLOCKS_PER_SEC) + 1, RLIM_INFINITY});
  if (*(bool *)ctx) probe_progress();
  for (clock_t end = clock() + 2 * CLOCKS_PER_SEC; clock() < end;) {}
}

static void trial_process(void **state) {
  (void)state;
  Err e = {0};
  assert_true(probe_survives(touch_nothing, NULL, &e));
  assert_true(probe_survives(touch_slowly, &(bool){true}, &e));
  must_fail(&e, probe_survives(touch_null, NULL, &e), ERR_CKPT, "crashed or hung in a trial");
  e = (Err){0};
  must_fail(&e, probe_survives(touch_exit, &(int){1}, &e), ERR_CKPT, "crashed or hung in a trial"); /* a sanitizer ends it so */
  e = (Err){0};
  must_fail(&e, probe_survives(touch_slowly, &(bool){false}, &e), ERR_CKPT, "crashed or hung in a trial");
}

static void as_settings(void **state) {
  (void)state;
  Place p;
  set_up(&p);
  Golden *g = accepted(&p, SOURCE_DIR "/tests/golden/mixtral-window-raw.h5");
  static const char *const EXPECTED[] = {"model.model_type=mixtral",
                                         "model.vocab_size=97",
                                         "model.hidden_size=16",
                                         "model.num_hidden_layers=3",
                                         "model.num_attention_heads=6",
                                         "model.num_key_value_heads=3",
                                         "model.head_dim=6",
                                         "model.intermediate_size=28",
                                         "model.sliding_window=5",
                                         "model.tie_word_embeddings=true",
                                         "model.rope_theta=500",
                                         "model.rms_norm_eps=9.9999999999999995e-07",
                                         "model.moe_intermediate_size=20",
                                         "model.num_local_experts=5",
                                         "model.num_experts_per_tok=3",
                                         "model.first_k_dense_replace=1",
                                         "model.norm_topk_prob=false",
                                         "model.router_aux_loss_coef=0.029999999999999999",
                                         "model.router_z_loss_coef=0.002",
                                         "moe.aux_scope=global",
                                         "optimizer.lr=0.01",
                                         "optimizer.adam_beta1=0.90000000000000002",
                                         "optimizer.adam_beta2=0.94999999999999996",
                                         "optimizer.adam_eps=1e-08",
                                         "optimizer.weight_decay=0.29999999999999999",
                                         "optimizer.clip_grad=0",
                                         "optimizer.lr_decay_style=constant",
                                         "optimizer.lr_warmup_iters=0",
                                         "train.global_batch_size=2",
                                         "train.train_iters=3",
                                         "data.seq_length=13",
                                         "schedule.name=all_forward"};
  int n;
  const char *const *sets = golden_config_sets(golden_config(g), &p.a, &n);
  assert_int_equal(n, sizeof EXPECTED / sizeof *EXPECTED);
  for (int i = 0; i < n; i++) assert_string_equal(sets[i], EXPECTED[i]);
  golden_close(g);
  g = accepted(&p, LLAMA);
  sets = golden_config_sets(golden_config(g), &p.a, &n);
  for (int i = 0; i < n; i++) assert_true(!strstr(sets[i], "expert") && !strstr(sets[i], "moe")); /* a dense model has no such keys */
  golden_close(g);
  tear_down(&p);
}

/* The trainer's config takes every setting, under the meaning it has here. */
static void as_config(void **state) {
  (void)state;
  static const char *const FILES[] = {MIXTRAL, LLAMA, SOURCE_DIR "/tests/golden/mixtral-window-raw.h5"};
  for (int i = 0; i < 3; i++) {
    Place p;
    set_up(&p);
    Golden *g = accepted(&p, FILES[i]);
    const GoldenConfig *c = golden_config(g);
    int n;
    Err e = {0};
    ConfigDoc d;
    const char *const *sets = golden_config_sets(c, &p.a, &n);
    if (!config_read(&d, &p.a, NULL, sets, n, &e)) fail_msg("%s", e.text);
    const ModelConfig *m = &d.c.model;
    assert_true(m->model_type == (i == 1 ? FAMILY_LLAMA : FAMILY_MIXTRAL) && m->vocab_size == c->vocab && m->head_dim == c->head_dim);
    assert_true(m->num_key_value_heads == c->kv_heads && m->sliding_window == c->sliding_window && m->tie_word_embeddings == c->tied);
    assert_true(m->rope_theta == c->rope_theta && m->rms_norm_eps == c->norm_eps && m->intermediate_size == c->dense_ffn);
    for (int64_t l = 0; l < c->layers; l++) assert_int_equal(config_layer_is_moe(m, (int)l), i != 1 && l >= c->first_dense);
    if (i != 1) assert_true(config_ffn_expert(m) == c->ffn && m->router_aux_loss_coef == c->aux_coeff && m->norm_topk_prob == c->norm_topk);
    assert_true(d.c.optimizer.lr == c->lr && d.c.optimizer.clip_grad == c->clip && d.c.optimizer.adam_beta2 == c->beta2);
    assert_true(d.c.moe.aux_scope == AUX_GLOBAL || i == 1);
    assert_int_equal(d.c.schedule.name, SCHED_ALL_FORWARD);
    golden_close(g);
    tear_down(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(good_file),    cmocka_unit_test(oracle_file),   cmocka_unit_test(foreign_file),
                                     cmocka_unit_test(wrong_config), cmocka_unit_test(wrong_weights), cmocka_unit_test(wrong_storage),
                                     cmocka_unit_test(damaged_file), cmocka_unit_test(trial_process), cmocka_unit_test(as_settings),
                                     cmocka_unit_test(as_config)};
  return cmocka_run_group_tests_name("golden_reader", tests, NULL, NULL);
}
