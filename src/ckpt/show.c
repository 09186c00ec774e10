/* What a person asks of checkpoints: which are there, what is in one, is it whole. One process. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/h5util.h"

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Whole checkpoints and remains of saves that did not end, in order. */
static bool directory_read(Arena *a, const char *dir, char ***name, int *n, Err *e) {
  DIR *d = opendir(dir);
  if (!d) return err_set(e, ERR_CKPT, "%s: %s", dir, strerror(errno));
  int n_file = 0;
  while (readdir(d)) n_file++;
  rewinddir(d);
  *name = ARENA_NEW(a, char *, n_file);
  *n = 0;
  for (struct dirent *f; *n < n_file && (f = readdir(d));)
    if (strncmp(f->d_name, "step_", 5) == 0 || strcmp(f->d_name, "latest.part") == 0) (*name)[(*n)++] = arena_printf(a, "%s", f->d_name);
  closedir(d);
  qsort(*name, (size_t)*n, sizeof **name, by_name);
  return true;
}

static void list_line(Arena *a, const char *dir, const char *name, const char *latest, FILE *out) {
  char *path = arena_printf(a, "%s/%s", dir, name), *file;
  const char *mark = strcmp(path, latest) == 0 ? "  latest" : "";
  struct stat st = {0};
  int64_t step;
  stat(path, &st);
  if (!ckpt_parse_name(name, &step)) {
    fprintf(out, "%-24s %10s %14lld bytes  UNFINISHED: a save that did not end; the next one deletes it\n", name, "-",
            (long long)st.st_size);
    return;
  }
  CkptMeta m;
  Err broken = {0};
  if (ckpt_trial(path, &broken) && ckpt_read_meta(a, path, &m, &file, &broken))
    fprintf(out, "%-24s %10" PRId64 " %14lld bytes  %5d ranks  %s%s\n", name, m.step, (long long)st.st_size, m.world, m.numerics, mark);
  else
    fprintf(out, "%-24s %10" PRId64 " %14lld bytes  BROKEN: %s%s\n", name, step, (long long)st.st_size, broken.text, mark);
}

bool ckpt_list(Arena *a, const char *dir, FILE *out, Err *e) {
  ArenaMark mark = arena_mark(a);
  char **name = NULL;
  int n = 0;
  TRY(directory_read(a, dir, &name, &n, e));
  Err none = {0};
  char *latest = ckpt_resolve(a, dir, &none);
  for (int i = 0; i < n; i++) list_line(a, dir, name[i], latest ? latest : "", out);
  if (n == 0) fprintf(out, "%s: no checkpoints\n", dir);
  if (n > 0 && !latest) fprintf(out, "no latest: %s\n", none.text);
  arena_release(a, mark);
  return true;
}

/* An open checkpoint and what is done with each tensor in it. */
typedef struct Walk Walk;
struct Walk {
  Arena *a;
  const char *path;
  FILE *out;
  Err *e;
  void (*each)(Walk *k, hid_t d, const char *link, const CkptTensor *t);
  void *buf;
  int64_t n_tensor, n_link /* of those: of data that is counted elsewhere */, n_bad, n_byte;
  bool broken;
};

static herr_t walk_stop(Walk *k, const char *link) {
  h5_fail(k->e, k->path, "/%s cannot be read", link);
  k->broken = true;
  return 1;
}

/* Masters that are the weights themselves are links to them. */
static bool is_second(hid_t object, const char *link) {
  static const char first[] = "weights/";
  H5O_info_t info;
  return strncmp(link, first, strlen(first)) != 0 && H5Oget_info(object, &info) >= 0 && info.rc > 1;
}

static herr_t walk_link(hid_t file, const char *link, const H5L_info_t *info, void *ctx) {
  Walk *k = ctx;
  hid_t object = info->type == H5L_TYPE_HARD ? H5Oopen(file, link, H5P_DEFAULT) : -1;
  if (object < 0) return walk_stop(k, link);
  const char *slash = strrchr(link, '/');
  CkptTensor t = {.name = slash ? slash + 1 : link};
  herr_t r = 0;
  if (H5Iget_type(object) == H5I_DATASET) {
    if (tensor_describe(object, &t)) {
      bool again = is_second(object, link);
      k->n_tensor++, k->n_link += again;
      k->n_byte += again ? 0 : t.rows * (int64_t)tensor_row_bytes(&t);
      k->each(k, object, link, &t);
    } else {
      r = walk_stop(k, link);
    }
  }
  H5Oclose(object);
  return r;
}

/* Visits all tensors. False: the file's structure is broken, or the number of tensors is not the stored one. */
static bool walk_tensors(Walk *k, hid_t file, int64_t n_stored) {
  herr_t r = H5Lvisit(file, H5_INDEX_NAME, H5_ITER_INC, walk_link, k);
  if (r < 0) return h5_fail(k->e, k->path, "the list of tensors cannot be read");
  if (k->broken) return false;
  if (k->n_tensor != n_stored)
    return err_set(k->e, ERR_CKPT, "%s: %" PRId64 " tensors are there, %" PRId64 " were saved", k->path, k->n_tensor, n_stored);
  return true;
}

static char *size_text(const Walk *k) {
  const char *links = k->n_link ? arena_printf(k->a, " (%" PRId64 " of them links to weights)", k->n_link) : "";
  return arena_printf(k->a, "%" PRId64 " tensors%s, %" PRId64 " bytes", k->n_tensor, links, k->n_byte);
}

static void each_print(Walk *k, hid_t d, const char *link, const CkptTensor *t) {
  (void)d;
  char shape[48];
  if (t->n_dim == 1)
    snprintf(shape, sizeof shape, "[%" PRId64 "]", t->cols);
  else
    snprintf(shape, sizeof shape, "[%" PRId64 ", %" PRId64 "]", t->rows, t->cols);
  fprintf(k->out, "%-72s %-5s %-20s %016" PRIx64 "\n", link, dtype_name(t->dtype), shape, t->hash);
}

static void meta_print(const CkptMeta *m, const char *path, FILE *out) {
  fprintf(out, "%s\n", path);
  fprintf(out, "  step %" PRId64 ", consumed samples %" PRId64 ", seed %" PRIu64 ", saved by %d ranks\n", m->step, m->consumed_samples,
          m->seed, m->world);
  fprintf(out, "  numerics: %s\n  code: %s, isa %s, gemm %s\n", m->numerics, m->code_version, m->isa, m->gemm);
}

static bool find_and_read(Arena *a, const char *path, CkptMeta *m, char **file, Err *e) {
  char *found = ckpt_resolve(a, path, e);
  return found && ckpt_trial(found, e) && ckpt_read_meta(a, found, m, file, e);
}

bool ckpt_show(Arena *a, const char *path, FILE *out, Err *e) {
  ArenaMark mark = arena_mark(a);
  CkptMeta m;
  char *file;
  int64_t n_stored;
  TRY(find_and_read(a, path, &m, &file, e));
  meta_print(&m, file, out);
  hid_t h = h5_open_read(file, e);
  if (h < 0) return false;
  Walk k = {.a = a, .path = file, .out = out, .e = e, .each = each_print};
  bool ok = meta_read(h, file, a, &m, &n_stored, e) && walk_tensors(&k, h, n_stored);
  if (ok) fprintf(out, "%s\n--- config\n%s", size_text(&k), m.config);
  H5Fclose(h);
  arena_release(a, mark);
  return ok;
}

static void each_verify(Walk *k, hid_t d, const char *link, const CkptTensor *t) {
  uint64_t sum = 0;
  bool read = tensor_hash_rows(d, t, 0, t->rows, k->buf, CKPT_CHUNK_BYTES, &sum);
  if (read && sum == t->hash) return;
  if (read)
    fprintf(k->out, "/%s: damaged: hash %016" PRIx64 ", stored %016" PRIx64 "\n", link, sum, t->hash);
  else
    fprintf(k->out, "/%s: damaged: cannot be read\n", link);
  H5Eclear2(H5E_DEFAULT);
  if (k->n_bad++ == 0)
    err_set(k->e, ERR_CKPT, "%s: /%s is damaged: its content does not have the hash that was stored with it", k->path, link);
}

bool ckpt_verify(Arena *a, const char *path, FILE *out, Err *e) {
  ArenaMark mark = arena_mark(a);
  CkptMeta m;
  char *file;
  int64_t n_stored;
  TRY(find_and_read(a, path, &m, &file, e));
  hid_t h = h5_open_read(file, e);
  if (h < 0) return false;
  Walk k = {.a = a, .path = file, .out = out, .e = e, .each = each_verify, .buf = arena_alloc(a, CKPT_CHUNK_BYTES, 1)};
  bool ok = meta_read(h, file, a, &m, &n_stored, e) && walk_tensors(&k, h, n_stored) && k.n_bad == 0;
  if (ok) fprintf(out, "%s: %s: all hashes right\n", file, size_text(&k));
  H5Fclose(h);
  arena_release(a, mark);
  return ok;
}
