#include "ckpt/golden.h"

#include <hdf5.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

struct Golden {
  hid_t file;
  int64_t bytes; /* size of the file: nothing in it can be larger */
  const char *path;
  GoldenConfig config;
  GoldenTensor *weights;
  int n_weights;
};

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_TENSORS = 1 << 16, MAX_NAME = 512 };

/* HDF5 prints a stack of its own on every failure. We say it once, in our words: each public function is quiet from start to end. */
typedef struct Quiet {
  H5E_auto2_t print;
  void *ctx;
} Quiet;
static Quiet quiet_begin(void) {
  Quiet q = {0};
  H5Eget_auto2(H5E_DEFAULT, &q.print, &q.ctx);
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
  return q;
}
static void quiet_end(Quiet q) {
  H5Eclear2(H5E_DEFAULT);
  H5Eset_auto2(H5E_DEFAULT, q.print, q.ctx);
}

/* ---- config ---------------------------------------------------------------------------------------------------------------------- */

typedef enum { KEY_INT, KEY_REAL, KEY_BOOL, KEY_TEXT, KEY_PAIRS } KeyKind;
typedef struct Key {
  const char *name;
  KeyKind kind;
  size_t offset;
  double min, max;
  bool nullable;
} Key;
#define KEY(kind, field, min, max, nullable)                                                                                               \
  { #field, kind, offsetof(GoldenConfig, field), min, max, nullable }
#define INT(field, min)       KEY(KEY_INT, field, min, 1 << 24, false)
#define INT_OR_NULL(field)    KEY(KEY_INT, field, 0, 1 << 24, true)
#define REAL(field, min, max) KEY(KEY_REAL, field, min, max, false)
static const Key KEYS[] = {KEY(KEY_TEXT, family, 0, 0, false),
                           INT(vocab, 1),
                           INT(hidden, 1),
                           INT(layers, 1),
                           INT(heads, 1),
                           INT(kv_heads, 1),
                           INT(head_dim, 1),
                           INT(experts, 0),
                           INT(top_k, 0),
                           INT(ffn, 0),
                           INT(dense_ffn, 0),
                           INT(first_dense, 0),
                           INT(shared_experts, 0),
                           INT_OR_NULL(shared_ffn),
                           REAL(rope_theta, 0, 1e300),
                           REAL(norm_eps, 0, 1),
                           KEY(KEY_BOOL, tied, 0, 0, false),
                           INT_OR_NULL(sliding_window),
                           INT(q_lora, 0),
                           INT(kv_lora, 0),
                           INT(rope_dim, 0),
                           INT(nope_dim, 0),
                           INT(v_dim, 0),
                           INT(n_group, 0),
                           INT(topk_group, 0),
                           REAL(routed_scale, 0, 1e300),
                           KEY(KEY_BOOL, norm_topk, 0, 0, false),
                           REAL(swiglu_limit, 0, 1e300),
                           REAL(swiglu_alpha, 0, 1e300),
                           REAL(aux_coeff, 0, 1e300),
                           KEY(KEY_TEXT, aux_form, 0, 0, false),
                           REAL(z_coeff, 0, 1e300),
                           INT(batch, 1),
                           INT(seq, 1),
                           KEY(KEY_INT, seed, 0, 9e15, false),
                           KEY(KEY_PAIRS, ignore, 0, 1 << 24, false),
                           INT(steps, 1),
                           REAL(init_std, 0, 1e300),
                           REAL(bias_std, 0, 1e300),
                           REAL(lr, 0, 1e300),
                           REAL(beta1, 0, 1),
                           REAL(beta2, 0, 1),
                           REAL(eps, 0, 1),
                           REAL(weight_decay, 0, 1e300),
                           KEY(KEY_REAL, clip, 0, 1e300, true)};
enum { N_KEYS = sizeof KEYS / sizeof KEYS[0] };

static bool config_number(const Key *k, const json_t *v, GoldenConfig *c, Err *e) {
  bool null = k->nullable && json_is_null(v);
  if (!null && !(k->kind == KEY_INT ? json_is_integer(v) : json_is_number(v)))
    return err_set(e, ERR_CKPT, "config key %s is not %s", k->name, k->kind == KEY_INT ? "an integer" : "a number");
  double x = null ? 0 : json_number_value(v);
  if (!(x >= k->min && x <= k->max))
    return err_set(e, ERR_CKPT, "config key %s is %.17g; allowed are %.17g to %.17g", k->name, x, k->min, k->max);
  char *to = (char *)c + k->offset;
  if (k->kind == KEY_INT)
    *(int64_t *)to = null ? 0 : (int64_t)json_integer_value(v);
  else
    *(double *)to = x;
  return true;
}

static bool config_pairs(const Key *k, const json_t *v, GoldenConfig *c, Arena *a, Err *e) {
  size_t n = json_array_size(v);
  if (!json_is_array(v)) return err_set(e, ERR_CKPT, "config key %s is not a list", k->name);
  int64_t *pair = ARENA_NEW(a, int64_t, 2 * n + 1);
  for (size_t i = 0; i < 2 * n; i++) {
    const json_t *p = json_array_get(v, i / 2), *x = json_array_get(p, i % 2);
    bool ok = json_array_size(p) == 2 && json_is_integer(x);
    pair[i] = ok ? (int64_t)json_integer_value(x) : -1;
    if (pair[i] < 0 || pair[i] >= (int64_t)k->max)
      return err_set(e, ERR_CKPT, "config key %s holds something else than pairs [b, s]", k->name);
  }
  c->n_ignore = (int64_t)n;
  c->ignore = pair;
  return true;
}

static bool config_key(const Key *k, const json_t *v, GoldenConfig *c, Arena *a, Err *e) {
  char *to = (char *)c + k->offset;
  if (!v) return err_set(e, ERR_CKPT, "config key %s is missing", k->name);
  if (k->kind == KEY_INT || k->kind == KEY_REAL) return config_number(k, v, c, e);
  if (k->kind == KEY_PAIRS) return config_pairs(k, v, c, a, e);
  if (k->kind == KEY_BOOL) {
    if (!json_is_boolean(v)) return err_set(e, ERR_CKPT, "config key %s is neither true nor false", k->name);
    *(bool *)to = json_is_true(v);
    return true;
  }
  if (!json_is_string(v)) return err_set(e, ERR_CKPT, "config key %s is not a text", k->name);
  *(const char **)to = arena_printf(a, "%s", json_string_value(v));
  return true;
}

static bool config_rules(const GoldenConfig *c, Err *e) {
  if (c->heads % c->kv_heads)
    return err_set(e, ERR_CKPT, "config: heads %lld is no multiple of kv_heads %lld", (long long)c->heads, (long long)c->kv_heads);
  if (c->head_dim % 2) return err_set(e, ERR_CKPT, "config: head_dim %lld is odd", (long long)c->head_dim);
  for (int64_t i = 0; i < c->n_ignore; i++)
    if (c->ignore[2 * i] >= c->batch || c->ignore[2 * i + 1] >= c->seq)
      return err_set(e, ERR_CKPT, "config: ignore names [%lld, %lld], outside batch %lld and seq %lld", (long long)c->ignore[2 * i],
                     (long long)c->ignore[2 * i + 1], (long long)c->batch, (long long)c->seq);
  if (c->first_dense > c->layers && strcmp(c->family, "llama"))
    return err_set(e, ERR_CKPT, "config: first_dense %lld is above layers %lld", (long long)c->first_dense, (long long)c->layers);
  bool llama = !strcmp(c->family, "llama");
  if (c->dense_ffn < 1 && (llama || c->first_dense)) return err_set(e, ERR_CKPT, "config: dense layers, but dense_ffn is 0");
  if (llama) return true;
  if (c->top_k < 1 || c->top_k > c->experts || c->ffn < 1)
    return err_set(e, ERR_CKPT, "config: top_k %lld of experts %lld of width %lld", (long long)c->top_k, (long long)c->experts,
                   (long long)c->ffn);
  if (c->shared_experts) return err_set(e, ERR_CKPT, "config: shared_experts %lld; mixtral has none", (long long)c->shared_experts);
  return true;
}

static bool config_object(const json_t *o, GoldenConfig *c, Arena *a, Err *e) {
  if (!json_is_object(o)) return err_set(e, ERR_CKPT, "the attribute config is not a JSON object");
  const char *family = json_string_value(json_object_get(o, "family"));
  if (!family) return err_set(e, ERR_CKPT, "config key family is missing or not a text");
  if (strcmp(family, "llama") && strcmp(family, "mixtral"))
    return err_set(e, ERR_CONFIG, "family %.64s is not in this version; there are: llama, mixtral", family);
  for (int i = 0; i < N_KEYS; i++) TRY(config_key(&KEYS[i], json_object_get(o, KEYS[i].name), c, a, e));
  /* An unknown key may change what the numbers mean. */
  if (json_object_size(o) != N_KEYS)
    return err_set(e, ERR_CKPT, "config has %zu keys where this version knows %d; the file is of a newer oracle", json_object_size(o),
                   N_KEYS);
  return config_rules(c, e);
}

/* h5py writes a Python string as one variable-length UTF-8 string; NumPy bytes as one of fixed length. */
static char *config_attribute(hid_t attr, hid_t type, Arena *a) {
  size_t n = H5Tget_size(type);
  htri_t variable = H5Tis_variable_str(type);
  hid_t space = H5Aget_space(attr);
  bool one = space >= 0 && H5Sget_simple_extent_npoints(space) == 1;
  if (space >= 0) H5Sclose(space);
  if (H5Tget_class(type) != H5T_STRING || variable < 0 || !one || n == 0 || n > MAX_CONFIG_BYTES) return NULL;
  if (!variable) {
    char *text = arena_alloc(a, n + 1, 1);
    return H5Aread(attr, type, text) < 0 ? NULL : text;
  }
  char *text = NULL, *copy = NULL;
  if (H5Aread(attr, type, &text) < 0 || !text) return NULL;
  if (strnlen(text, MAX_CONFIG_BYTES) < MAX_CONFIG_BYTES) copy = arena_printf(a, "%s", text);
  H5free_memory(text);
  return copy;
}

static bool config_load(Golden *g, Arena *a, Err *e) {
  hid_t attr = H5Aexists(g->file, "config") > 0 ? H5Aopen(g->file, "config", H5P_DEFAULT) : -1;
  if (attr < 0) return err_set(e, ERR_CKPT, "no attribute config: not a golden file");
  hid_t type = H5Aget_type(attr);
  char *text = type < 0 ? NULL : config_attribute(attr, type, a);
  if (type >= 0) H5Tclose(type);
  H5Aclose(attr);
  if (!text) return err_set(e, ERR_CKPT, "the attribute config is not one string");
  json_error_t where;
  json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &where);
  if (!o) return err_set(e, ERR_CKPT, "the attribute config is not JSON: %s (line %d, column %d)", where.text, where.line, where.column);
  bool ok = config_object(o, &g->config, a, e);
  json_decref(o);
  return ok;
}

/* ---- data sets ------------------------------------------------------------------------------------------------------------------- */

/* Walks the path: H5Lexists wants every parent to exist, and a soft or external link could lead out of the file. */
static bool link_is_here(hid_t file, const char *name) {
  char part[MAX_NAME];
  size_t n = strlen(name);
  if (n == 0 || n >= sizeof part) return false;
  for (size_t i = 1; i <= n; i++) {
    if (name[i] != '/' && name[i] != 0) continue;
    memcpy(part, name, i);
    part[i] = 0;
    H5L_info_t info;
    if (H5Lexists(file, part, H5P_DEFAULT) <= 0 || H5Lget_info(file, part, &info, H5P_DEFAULT) < 0 || info.type != H5L_TYPE_HARD)
      return false;
  }
  return true;
}

static hid_t dataset_open(Golden *g, const char *name, Err *e) {
  hid_t object = link_is_here(g->file, name) ? H5Oopen(g->file, name, H5P_DEFAULT) : -1;
  if (object >= 0 && H5Iget_type(object) == H5I_DATASET) return object;
  if (object >= 0) H5Oclose(object);
  err_set(e, ERR_CKPT, "no data set %s", name);
  return -1;
}

/* Only data stored plainly in the file itself is read: then its size is bounded by the file's before anything is allocated for it. */
static bool dataset_is_plain(hid_t set) {
  hid_t p = H5Dget_create_plist(set);
  if (p < 0) return false;
  H5D_layout_t layout = H5Pget_layout(p);
  bool plain = (layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) && H5Pget_external_count(p) == 0;
  H5Pclose(p);
  return plain;
}

static bool dataset_dims(Golden *g, hid_t set, const char *name, int *n_dim, int64_t dims[GOLDEN_MAX_DIM], Err *e) {
  hid_t space = H5Dget_space(set);
  int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
  H5S_class_t class = space < 0 ? H5S_NO_CLASS : H5Sget_simple_extent_type(space);
  hsize_t d[GOLDEN_MAX_DIM] = {0};
  bool ok = rank >= 0 && rank <= GOLDEN_MAX_DIM && (class == H5S_SIMPLE || class == H5S_SCALAR) &&
            H5Sget_simple_extent_dims(space, d, NULL) == rank;
  if (space >= 0) H5Sclose(space);
  if (!ok || !dataset_is_plain(set)) return err_set(e, ERR_CKPT, "%s: unexpected rank, layout or extent", name);
  int64_t left = g->bytes / 8;
  for (int i = 0; i < rank; i++) {
    if (d[i] == 0 || d[i] > (hsize_t)left)
      return err_set(e, ERR_CKPT, "%s: dimension %d is %llu, more than the file of %lld bytes can hold", name, i, (unsigned long long)d[i],
                     (long long)g->bytes);
    left /= (int64_t)d[i];
    dims[i] = (int64_t)d[i];
  }
  *n_dim = rank;
  return true;
}

static bool dataset_read(Golden *g, hid_t set, const char *name, hid_t stored, hid_t memory, void *out, int64_t n, Err *e) {
  int n_dim;
  int64_t dims[GOLDEN_MAX_DIM], count = 1;
  TRY(dataset_dims(g, set, name, &n_dim, dims, e));
  for (int i = 0; i < n_dim; i++) count *= dims[i];
  if (count != n) return err_set(e, ERR_CKPT, "%s has %lld elements where %lld are expected", name, (long long)count, (long long)n);
  hid_t type = H5Dget_type(set);
  bool same = type >= 0 && H5Tequal(type, stored) > 0;
  if (type >= 0) H5Tclose(type);
  if (!same) return err_set(e, ERR_CKPT, "%s is not of type %s", name, memory == H5T_NATIVE_DOUBLE ? "float64" : "int64");
  if (H5Dread(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0)
    return err_set(e, ERR_CKPT, "%s can't be read: the file is damaged", name);
  return true;
}

static bool read_all(Golden *g, const char *name, hid_t stored, hid_t memory, void *out, int64_t n, Err *e) {
  hid_t set = dataset_open(g, name, e);
  bool ok = set >= 0 && dataset_read(g, set, name, stored, memory, out, n, e);
  if (set >= 0) H5Dclose(set);
  return ok || err_wrap(e, "%s", g->path);
}

bool golden_read_f64(Golden *g, const char *name, double *out, int64_t n, Err *e) {
  Quiet q = quiet_begin();
  bool ok = read_all(g, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, out, n, e);
  quiet_end(q);
  return ok;
}

bool golden_read_i64(Golden *g, const char *name, int64_t *out, int64_t n, Err *e) {
  Quiet q = quiet_begin();
  bool ok = read_all(g, name, H5T_STD_I64LE, H5T_NATIVE_INT64, out, n, e);
  quiet_end(q);
  return ok;
}

bool golden_dims(Golden *g, const char *name, int *n_dim, int64_t dims[GOLDEN_MAX_DIM], Err *e) {
  Quiet q = quiet_begin();
  hid_t set = dataset_open(g, name, e);
  bool ok = set >= 0 && dataset_dims(g, set, name, n_dim, dims, e);
  if (set >= 0) H5Dclose(set);
  quiet_end(q);
  return ok || err_wrap(e, "%s", g->path);
}

bool golden_has(Golden *g, const char *name) {
  Err ignored = {0};
  Quiet q = quiet_begin();
  hid_t set = dataset_open(g, name, &ignored);
  if (set >= 0) H5Dclose(set);
  quiet_end(q);
  return set >= 0;
}

/* ---- opening --------------------------------------------------------------------------------------------------------------------- */

typedef struct Listing {
  Golden *g;
  Arena *a;
  int room;
} Listing;

static herr_t list_name(hid_t group, const char *name, const H5L_info_t *info, void *ctx) {
  (void)group, (void)info;
  Listing *l = ctx;
  if (l->g->n_weights == l->room || strnlen(name, MAX_NAME) >= MAX_NAME - sizeof "weights/") return -1;
  l->g->weights[l->g->n_weights++].name = arena_printf(l->a, "%s", name);
  return 0;
}

static bool weights_list(Golden *g, Arena *a, Err *e) {
  hid_t group = link_is_here(g->file, "weights") ? H5Gopen2(g->file, "weights", H5P_DEFAULT) : -1;
  H5G_info_t info = {0};
  if (group < 0 || H5Gget_info(group, &info) < 0) {
    if (group >= 0) H5Gclose(group);
    return err_set(e, ERR_CKPT, "no group weights: not a golden file, or a damaged one");
  }
  /* A link costs more than 16 bytes of file. */
  bool ok = info.nlinks > 0 && info.nlinks <= MAX_TENSORS && (int64_t)info.nlinks <= g->bytes / 16;
  if (ok) {
    g->weights = ARENA_NEW(a, GoldenTensor, info.nlinks);
    Listing l = {g, a, (int)info.nlinks};
    ok = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, NULL, list_name, &l) >= 0 && g->n_weights == l.room;
  }
  H5Gclose(group);
  if (!ok) return err_set(e, ERR_CKPT, "the group weights is empty, too large or damaged");
  for (int i = 0; i < g->n_weights; i++) {
    GoldenTensor *t = &g->weights[i];
    char path[MAX_NAME];
    snprintf(path, sizeof path, "weights/%s", t->name);
    hid_t set = dataset_open(g, path, e);
    ok = set >= 0 && dataset_dims(g, set, path, &t->n_dim, t->dims, e);
    if (set >= 0) H5Dclose(set);
    if (!ok) return false;
  }
  return true;
}

static bool open_file(Golden *g, Arena *a, Err *e) {
  struct stat st;
  if (stat(g->path, &st) != 0 || !S_ISREG(st.st_mode)) return err_set(e, ERR_CKPT, "no such file, or not a regular one");
  g->bytes = st.st_size;
  if (H5Fis_hdf5(g->path) <= 0) return err_set(e, ERR_CKPT, "not an HDF5 file");
  g->file = H5Fopen(g->path, H5F_ACC_RDONLY, H5P_DEFAULT);
  if (g->file < 0) return err_set(e, ERR_CKPT, "HDF5 can't open it: truncated or damaged");
  if (config_load(g, a, e) && weights_list(g, a, e)) return true;
  H5Fclose(g->file);
  return false;
}

bool golden_open(Golden **g, Arena *a, const char *path, Err *e) {
  Quiet q = quiet_begin();
  *g = ARENA_NEW(a, Golden, 1);
  (*g)->path = arena_printf(a, "%s", path);
  bool ok = open_file(*g, a, e);
  quiet_end(q);
  return ok || err_wrap(e, "%s", path);
}

void golden_close(Golden *g) { H5Fclose(g->file); }
const GoldenConfig *golden_config(const Golden *g) { return &g->config; }
const GoldenTensor *golden_weights(const Golden *g, int *n) { return *n = g->n_weights, g->weights; }
