#define _GNU_SOURCE /* strverscmp */
#include "ckpt/diff.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/golden.h"
#include "ckpt/h5util.h"
#include "config/config.h"

enum { MAX_DIMS = 4, MAX_SETS = 1 << 20, MAX_LINES = 24, CHUNK = 1 << 18 /* elements */ };

typedef struct Set {
  const char *name;
  int n_dim;
  hsize_t dims[MAX_DIMS];
  int64_t n;
  bool real, bf16;
} Set;
typedef struct File {
  const char *path;
  const char *config;         /* of a checkpoint */
  const GoldenConfig *golden; /* of a golden file */
  hid_t file;
  Set *set;
  int n;
} File;
typedef struct Difference {
  int64_t n_differ;
  double largest, diff2, ref2;
} Difference;
typedef struct Diff {
  Arena *a;
  FileKind kind;
  double tolerance;
  FILE *out;
  File f[2];
  int n_compared, n_differ;
  char first[ERR_TEXT / 2]; /* what is wrong with the first one */
} Diff;

/* ---- kinds ----------------------------------------------------------------------------------------------------------------------- */
bool diff_file_kind(const char *path, FileKind *kind, Err *e) {
  struct stat st;
  if (stat(path, &st) != 0) return err_set(e, ERR_CKPT, "%s: %s", path, strerror(errno));
  h5_silence();
  *kind = FILE_OTHER;
  if (S_ISDIR(st.st_mode)) return *kind = FILE_CHECKPOINT, true;
  if (H5Fis_hdf5(path) <= 0) return true;
  hid_t f = h5_open_read(path, e);
  if (f < 0) return false;
  *kind = H5Aexists(f, "etalon") > 0 ? FILE_CHECKPOINT : H5Aexists(f, "config") > 0 ? FILE_GOLDEN : FILE_OTHER;
  H5Fclose(f);
  return *kind != FILE_OTHER || err_set(e, ERR_CKPT, "%s: an HDF5 file, but neither a checkpoint nor a golden file", path);
}

/* ---- order ----------------------------------------------------------------------------------------------------------------------- */
/* Place in a run. reversed: names from the last to the first, as a backward pass goes. */
static const struct {
  const char *head;
  bool reversed;
} phase[] = {{"weights/", false},      {"masters/", false},     {"moments/", false},     {"steps/1/", false},
             {"step1/layers/", false}, {"step1/logits", false}, {"step1/loss/", false},  {"step1/grads/", true},
             {"train/", false},        {"steps/", false},       {"after_step1/", false}, {"after_last/", false}};
enum { N_PHASE = sizeof phase / sizeof *phase };
static const char *const in_layer[] = {"attn_out", "router_logits", "topk_idx", "topk_weight", "counts", "moe_out", "hidden"};
enum { N_IN_LAYER = sizeof in_layer / sizeof *in_layer };

static int phase_of(const char *name) {
  for (int i = 0; i < N_PHASE; i++)
    if (!strncmp(name, phase[i].head, strlen(phase[i].head))) return i;
  return N_PHASE;
}

/* "step1/layers/12/moe_out": 12 x N_IN_LAYER + 5. */
static int64_t place_in_layers(const char *name) {
  char *end;
  int64_t layer = strtoll(name + strlen("step1/layers/"), &end, 10);
  int k = 0;
  while (k < N_IN_LAYER && strcmp(*end ? end + 1 : end, in_layer[k])) k++;
  return layer * (N_IN_LAYER + 1) + k;
}

static int by_place(const void *a, const void *b) {
  const char *x = ((const Set *)a)->name, *y = ((const Set *)b)->name;
  int p = phase_of(x), q = phase_of(y);
  if (p != q) return p - q;
  if (p < N_PHASE && !strcmp(phase[p].head, "step1/layers/")) {
    int64_t i = place_in_layers(x), k = place_in_layers(y);
    if (i != k) return i < k ? -1 : 1;
  }
  int order = strverscmp(x, y);
  return p < N_PHASE && phase[p].reversed ? -order : order;
}

/* ---- listing --------------------------------------------------------------------------------------------------------------------- */
static bool describe(hid_t d, Arena *a, Set *s) {
  hid_t space = H5Dget_space(d), type = H5Dget_type(d);
  s->n_dim = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
  bool ok = s->n_dim >= 0 && s->n_dim <= MAX_DIMS && H5Sget_simple_extent_dims(space, s->dims, NULL) >= 0 && type >= 0;
  H5T_class_t class = ok ? H5Tget_class(type) : H5T_NO_CLASS;
  ok = ok && (class == H5T_FLOAT || class == H5T_INTEGER) && H5Tget_size(type) <= 8;
  s->n = 1;
  for (int i = 0; i < s->n_dim; i++) s->n *= (int64_t)s->dims[i];
  ArenaMark mark = arena_mark(a);
  const char *dtype = ok && H5Aexists(d, "dtype") > 0 ? h5_get_text(d, "dtype", a) : NULL;
  s->bf16 = dtype && !strcmp(dtype, "bf16");
  s->real = class == H5T_FLOAT || s->bf16;
  arena_release(a, mark);
  if (type >= 0) H5Tclose(type);
  if (space >= 0) H5Sclose(space);
  return ok;
}

typedef struct Listing {
  Diff *d;
  File *f;
  int room;
  Err *e;
} Listing;

static herr_t count_link(hid_t at, const char *name, const H5L_info_t *info, void *ctx) {
  (void)at, (void)name, (void)info;
  return ++*(int *)ctx > MAX_SETS;
}

static herr_t list_link(hid_t at, const char *name, const H5L_info_t *info, void *ctx) {
  Listing *l = ctx;
  hid_t object = info->type == H5L_TYPE_HARD ? H5Oopen(at, name, H5P_DEFAULT) : -1;
  if (object < 0) return h5_fail(l->e, l->f->path, "/%s cannot be opened", name), 1;
  herr_t r = 0;
  if (H5Iget_type(object) == H5I_DATASET) {
    Set *s = &l->f->set[l->f->n++];
    s->name = arena_printf(l->d->a, "%s", name);
    if (!describe(object, l->d->a, s)) r = 1, err_set(l->e, ERR_CKPT, "%s: /%s holds something else than numbers", l->f->path, name);
  }
  H5Oclose(object);
  return r;
}

static bool list_sets(Diff *d, File *f, Err *e) {
  Listing l = {.d = d, .f = f, .e = e};
  int n = 0;
  f->file = h5_open_read(f->path, e);
  if (f->file < 0) return false;
  if (H5Lvisit(f->file, H5_INDEX_NAME, H5_ITER_INC, count_link, &n) != 0) return h5_fail(e, f->path, "its list of contents cannot be read");
  f->set = ARENA_NEW(d->a, Set, n + 1);
  if (H5Lvisit(f->file, H5_INDEX_NAME, H5_ITER_INC, list_link, &l) < 0) h5_fail(e, f->path, "its list of contents cannot be read");
  qsort(f->set, (size_t)f->n, sizeof *f->set, by_place);
  return e->code == ERR_NONE;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------------------- */
typedef union Word {
  double real;
  int64_t integer;
  uint64_t bits;
} Word;

/* Rows [row, row + n_row) of the first dimension. */
static bool read_rows(hid_t d, const Set *s, hsize_t row, hsize_t n_row, Word *out) {
  hsize_t start[MAX_DIMS] = {row}, count[MAX_DIMS] = {n_row};
  for (int i = 1; i < s->n_dim; i++) count[i] = s->dims[i];
  hid_t in_file = H5Dget_space(d), in_memory = s->n_dim ? H5Screate_simple(s->n_dim, count, NULL) : H5Screate(H5S_SCALAR);
  hid_t type = s->real && !s->bf16 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_INT64;
  bool ok = in_file >= 0 && in_memory >= 0 && (!s->n_dim || H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start, NULL, count, NULL) >= 0) &&
            H5Dread(d, type, in_memory, in_file, H5P_DEFAULT, out) >= 0;
  if (in_file >= 0) H5Sclose(in_file);
  if (in_memory >= 0) H5Sclose(in_memory);
  return ok;
}

static double as_real(const Set *s, Word w) {
  if (!s->bf16) return s->real ? w.real : (double)w.integer;
  uint32_t bits = (uint32_t)w.integer << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return (double)f;
}

static void compare_words(const Set *s, const Word *x, const Word *y, int64_t n, Difference *r) {
  for (int64_t i = 0; i < n; i++) {
    double a = as_real(s, x[i]), b = as_real(s, y[i]);
    r->ref2 += b * b;
    if (x[i].bits == y[i].bits) continue;
    double diff = isnan(a - b) ? INFINITY : fabs(a - b); /* +0 and -0: another element, by nothing */
    r->n_differ++;
    r->diff2 += diff * diff;
    if (diff > r->largest) r->largest = diff;
  }
}

static bool compare_sets(Diff *d, const Set *s, Difference *r, Err *e) {
  hid_t h[2];
  for (int i = 0; i < 2; i++) h[i] = H5Dopen2(d->f[i].file, s->name, H5P_DEFAULT);
  hsize_t rows = s->n_dim ? s->dims[0] : 1, per_row = rows ? (hsize_t)s->n / rows : 0, step = per_row ? CHUNK / per_row : rows;
  if (step < 1) step = 1;
  ArenaMark mark = arena_mark(d->a);
  Word *x = ARENA_NEW(d->a, Word, step * per_row + 1), *y = ARENA_NEW(d->a, Word, step * per_row + 1);
  bool ok = h[0] >= 0 && h[1] >= 0;
  for (hsize_t row = 0; row < rows && ok; row += step) {
    hsize_t n = rows - row < step ? rows - row : step;
    ok = read_rows(h[0], s, row, n, x) && read_rows(h[1], s, row, n, y);
    if (ok) compare_words(s, x, y, (int64_t)(n * per_row), r);
  }
  arena_release(d->a, mark);
  for (int i = 0; i < 2; i++)
    if (h[i] >= 0) H5Dclose(h[i]);
  return ok || h5_fail(e, d->f[0].path, "/%s cannot be read, or that of %s", s->name, d->f[1].path);
}

static double relative(const Difference *r) {
  if (r->diff2 == 0) return 0;
  return r->ref2 > 0 ? sqrt(r->diff2 / r->ref2) : INFINITY;
}

/* ---- reporting ------------------------------------------------------------------------------------------------------------------- */
__attribute__((format(printf, 3, 4))) static void differs(Diff *d, const char *name, const char *fmt, ...) {
  char text[ERR_TEXT / 4];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (d->n_differ++ == 0) snprintf(d->first, sizeof d->first, "%.300s %s", name, text);
  if (d->n_differ <= MAX_LINES) fprintf(d->out, "%-64s %s\n", name, text);
}

static bool same_shape(const Set *x, const Set *y) {
  return x->n_dim == y->n_dim && x->real == y->real && x->bf16 == y->bf16 && !memcmp(x->dims, y->dims, sizeof x->dims);
}

static bool compare_pair(Diff *d, const Set *x, const Set *y, Err *e) {
  Difference r = {0};
  if (!same_shape(x, y)) return differs(d, x->name, "another shape or type"), true;
  TRY(compare_sets(d, x, &r, e));
  bool within = x->real && d->tolerance > 0 && relative(&r) <= d->tolerance;
  if (r.n_differ && !within)
    differs(d, x->name, "%" PRId64 " of %" PRId64 " elements differ, by at most %.3g; relative L2 %.3g", r.n_differ, x->n, r.largest,
            relative(&r));
  return true;
}

static bool compare_all(Diff *d, Err *e) {
  const File *f = d->f;
  for (int i = 0, k = 0; i < f[0].n || k < f[1].n;) {
    int order = i == f[0].n ? 1 : k == f[1].n ? -1 : by_place(&f[0].set[i], &f[1].set[k]);
    d->n_compared++;
    if (order < 0) {
      differs(d, f[0].set[i++].name, "is only in %.200s", f[0].path);
    } else if (order > 0) {
      differs(d, f[1].set[k++].name, "is only in %.200s", f[1].path);
    } else {
      TRY(compare_pair(d, &f[0].set[i++], &f[1].set[k++], e));
    }
  }
  if (d->n_differ > MAX_LINES) fprintf(d->out, "... and %d more\n", d->n_differ - MAX_LINES);
  if (!d->n_differ) {
    fprintf(d->out, "%d data sets, %s\n", d->n_compared, d->tolerance > 0 ? "all within the tolerance" : "all bits equal");
    return true;
  }
  return err_set(e, ERR_MISMATCH, "%.300s and %.300s differ in %d of %d data sets; first in %s", f[0].path, f[1].path, d->n_differ,
                 d->n_compared, d->first);
}

/* A damaged file ends here, not in the middle of a comparison. Says which steps are compared. */
static bool open_kind(Diff *d, File *f, const char *path, Err *e) {
  if (d->kind == FILE_GOLDEN) {
    Golden *g;
    f->path = path;
    TRY(golden_open(&g, d->a, path, e));
    f->golden = golden_config(g);
    golden_close(g);
    return true;
  }
  CkptMeta m;
  char *file = ckpt_resolve(d->a, path, e);
  TRY(file && ckpt_trial(file, e) && ckpt_read_meta(d->a, file, &m, &file, e));
  f->path = file;
  f->config = m.config;
  fprintf(d->out, "%s: step %" PRId64 ", %s\n", file, m.step, m.numerics);
  return true;
}

/* Numbers of runs that were told otherwise differ: that comes first. */
static void say_configs(const Diff *d) {
  const File *f = d->f;
  if (d->kind == FILE_GOLDEN) {
    const char *changes = golden_config_changes(f[0].golden, f[1].golden, d->a);
    if (*changes) fprintf(d->out, "configurations differ: %s\n", changes);
    return;
  }
  const char *changes = config_changes(d->a, f[0].config, f[1].config, CONFIG_SCOPE_TRAINING);
  if (changes && *changes) fprintf(d->out, "configurations differ; in the second file %s\n", changes);
}

bool diff_run(Arena *a, FileKind kind, const char *path_a, const char *path_b, double tolerance, FILE *out, Err *e) {
  Diff *d = ARENA_NEW(a, Diff, 1);
  *d = (Diff){.a = a, .kind = kind, .tolerance = tolerance, .out = out, .f = {{.file = -1}, {.file = -1}}};
  h5_silence();
  bool ok = open_kind(d, &d->f[0], path_a, e) && open_kind(d, &d->f[1], path_b, e);
  if (ok) say_configs(d);
  ok = ok && list_sets(d, &d->f[0], e) && list_sets(d, &d->f[1], e) && compare_all(d, e);
  for (int i = 0; i < 2; i++)
    if (d->f[i].file >= 0) H5Fclose(d->f[i].file);
  return ok;
}
