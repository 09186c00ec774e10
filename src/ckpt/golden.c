#include "ckpt/golden.h"

#include <hdf5.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ckpt/probe.h"

struct Golden {
  hid_t file;
  int64_t bytes; /* size of the file: nothing in it can be larger */
  const char *path;
  GoldenConfig config;
  const char *numerics;
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

/* Files of the oracle have none. */
static bool numerics_load(Golden *g, Arena *a, Err *e) {
  if (H5Aexists(g->file, "numerics") <= 0) return true;
  hid_t attr = H5Aopen(g->file, "numerics", H5P_DEFAULT), type = attr < 0 ? -1 : H5Aget_type(attr);
  g->numerics = type < 0 ? NULL : config_attribute(attr, type, a);
  if (type >= 0) H5Tclose(type);
  if (attr >= 0) H5Aclose(attr);
  return g->numerics || err_set(e, ERR_CKPT, "the attribute numerics is not one string");
}

static bool config_load(Golden *g, Arena *a, Err *e) {
  hid_t attr = H5Aexists(g->file, "config") > 0 ? H5Aopen(g->file, "config", H5P_DEFAULT) : -1;
  if (attr < 0) return err_set(e, ERR_CKPT, "no attribute config: not a golden file");
  hid_t type = H5Aget_type(attr);
  char *text = type < 0 ? NULL : config_attribute(attr, type, a);
  if (type >= 0) H5Tclose(type);
  H5Aclose(attr);
  if (!text) return err_set(e, ERR_CKPT, "the attribute config is not one string");
  return golden_config_parse(text, &g->config, a, e);
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
  if (H5Fis_hdf5(g->path) <= 0) return err_set(e, ERR_CKPT, "not an HDF5 file");
  g->file = H5Fopen(g->path, H5F_ACC_RDONLY, H5P_DEFAULT);
  if (g->file < 0) return err_set(e, ERR_CKPT, "HDF5 can't open it: truncated or damaged");
  if (config_load(g, a, e) && numerics_load(g, a, e) && weights_list(g, a, e)) return true;
  H5Fclose(g->file);
  return false;
}

typedef struct Trial {
  Golden *g;
  Arena *a;
  void *room; /* [g->bytes] */
} Trial;

static herr_t trial_read(hid_t group, const char *name, const H5L_info_t *info, void *ctx) {
  (void)group, (void)info;
  Trial *t = ctx;
  Err e = {0};
  int n_dim;
  int64_t dims[GOLDEN_MAX_DIM], n = 1;
  hid_t set = dataset_open(t->g, name, &e);
  if (set < 0) return 0;
  if (dataset_dims(t->g, set, name, &n_dim, dims, &e)) {
    for (int i = 0; i < n_dim; i++) n *= dims[i];
    if (!dataset_read(t->g, set, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, t->room, n, &e))
      dataset_read(t->g, set, name, H5T_STD_I64LE, H5T_NATIVE_INT64, t->room, n, &e);
    probe_progress();
  }
  H5Dclose(set);
  return 0;
}

/* Every call that this file may be asked for later; errors are found again, and reported, by who asks. */
static void trial(void *ctx) {
  Trial *t = ctx;
  Err e = {0};
  t->room = mmap(NULL, (size_t)t->g->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (t->room == MAP_FAILED || !open_file(t->g, t->a, &e)) return;
  H5Lvisit(t->g->file, H5_INDEX_NAME, H5_ITER_INC, trial_read, t);
  H5Fclose(t->g->file);
}

static bool try_and_open(Golden *g, Arena *a, Err *e) {
  struct stat st;
  if (stat(g->path, &st) != 0 || !S_ISREG(st.st_mode)) return err_set(e, ERR_CKPT, "no such file, or not a regular one");
  g->bytes = st.st_size;
  Trial t = {.g = g, .a = a};
  TRY(probe_survives(trial, &t, e));
  return open_file(g, a, e);
}

bool golden_open(Golden **g, Arena *a, const char *path, Err *e) {
  Quiet q = quiet_begin();
  *g = ARENA_NEW(a, Golden, 1);
  (*g)->path = arena_printf(a, "%s", path);
  bool ok = try_and_open(*g, a, e);
  quiet_end(q);
  return ok || err_wrap(e, "%s", path);
}

void golden_close(Golden *g) { H5Fclose(g->file); }
const GoldenConfig *golden_config(const Golden *g) { return &g->config; }
const char *golden_numerics(const Golden *g) { return g->numerics; }
const GoldenTensor *golden_weights(const Golden *g, int *n) { return *n = g->n_weights, g->weights; }
