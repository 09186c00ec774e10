/* Which checkpoint counts: the one that `latest` names, or, when that one is damaged, the newest before it that is whole. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/h5util.h"
#include "ckpt/probe.h"

/* ---- trial ------------------------------------------------------------------------------------------------------------------------ */

/* Not more bytes than what is stored can hold: damage may claim rows without end. */
static bool plausible(hid_t set, const CkptTensor *t) {
  enum { DEFLATE_MOST = 1032 }; /* bytes that a compressed one can stand for */
  return (double)t->rows * (double)tensor_row_bytes(t) <= (double)H5Dget_storage_size(set) * DEFLATE_MOST;
}

/* Everything that HDF5 keeps about the file and its data sets; of compressed ones the chunks too. In a child process. */
static herr_t touch_link(hid_t file, const char *link, const H5L_info_t *info, void *ctx) {
  (void)ctx;
  hid_t object = info->type == H5L_TYPE_HARD ? H5Oopen(file, link, H5P_DEFAULT) : -1;
  if (object < 0) return 0;
  CkptTensor t;
  if (H5Iget_type(object) == H5I_DATASET && tensor_describe(object, &t)) {
    hid_t create = H5Dget_create_plist(object);
    char element[16];
    CkptPiece last = {.row = t.rows - 1, .n_row = 1, .col = t.cols - 1, .n_col = 1, .data = element};
    int64_t step = H5Pget_layout(create) == H5D_CHUNKED ? tensor_chunk_rows(&t) : t.rows;
    for (bool ok = plausible(object, &t); ok && step > 0 && last.row >= 0; last.row -= step) {
      ok = tensor_read(object, &t, &last);
      probe_progress();
    }
    H5Pclose(create);
  }
  H5Oclose(object);
  return 0;
}

static void touch_file(void *path) {
  Err e = {0};
  Arena a;
  CkptMeta m;
  int64_t n;
  arena_open(&a, "trial", (size_t)1 << 30);
  hid_t file = h5_open_read(path, &e);
  if (file < 0) return;
  meta_read(file, path, &a, &m, &n, &e);
  H5Lvisit(file, H5_INDEX_NAME, H5_ITER_INC, touch_link, NULL);
  H5Fclose(file);
}

bool ckpt_trial(const char *file, Err *e) {
  h5_silence();
  if (probe_survives(touch_file, (void *)(uintptr_t)file, e)) return true;
  return err_wrap(e, "%s", file);
}

/* ---- candidates ------------------------------------------------------------------------------------------------------------------- */

typedef struct Candidates {
  char **file; /* best first */
  int n;
  bool directory; /* the user left the choice to us */
  char *note;     /* rank 0's: why `latest` does not make it */
} Candidates;

static int step_descending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

/* Steps up to `most` in a directory, latest first. */
static int list_steps(Arena *a, const char *dir, int64_t most, int64_t **step, Err *e) {
  DIR *d = opendir(dir);
  if (!d) return err_set(e, ERR_CKPT, "%s: %s", dir, strerror(errno));
  int n = 0, n_file = 0;
  while (readdir(d)) n_file++;
  rewinddir(d);
  *step = ARENA_NEW(a, int64_t, n_file);
  for (struct dirent *f; n < n_file && (f = readdir(d));)
    if (ckpt_parse_name(f->d_name, &(*step)[n]) && (*step)[n] <= most) n++;
  closedir(d);
  qsort(*step, (size_t)n, sizeof **step, step_descending);
  return n;
}

/* What `latest` names comes first even if it is not there, so that it is said. */
static bool list_candidates(Arena *a, const char *path, Candidates *c, Err *e) {
  struct stat st;
  if (stat(path, &st) != 0) return err_set(e, ERR_CKPT, "%s: %s", path, strerror(errno));
  c->directory = S_ISDIR(st.st_mode);
  int64_t latest = INT64_MAX, *step = NULL;
  Err no_latest = {0};
  char *first = c->directory ? ckpt_latest(a, path, &latest, &no_latest) : arena_printf(a, "%s", path);
  int n = c->directory ? list_steps(a, path, latest, &step, e) : 0;
  if (e->code != ERR_NONE) return false;
  if (n == 0 && !first) return err_set(e, ERR_CKPT, "%s", no_latest.text);
  c->file = ARENA_NEW(a, char *, n + 1);
  if (first) c->file[c->n++] = first;
  if (c->directory && !first) c->note = arena_printf(a, "%s", no_latest.text);
  for (int i = 0; i < n; i++)
    if (!first || step[i] < latest) c->file[c->n++] = ckpt_path(a, path, step[i]);
  return true;
}

/* Rank 0 looks; the others hear. */
static bool agree_candidates(World *w, Arena *a, const char *path, Candidates *c, Err *e) {
  if (world_rank(w) == 0) list_candidates(a, path, c, e);
  if (!world_agree(w, e)) return false;
  comm_bcast(w, &c->n, sizeof c->n, 0);
  comm_bcast(w, &c->directory, sizeof c->directory, 0);
  if (world_rank(w) != 0) c->file = ARENA_NEW(a, char *, c->n);
  for (int i = 0; i < c->n; i++) {
    size_t length = world_rank(w) == 0 ? strlen(c->file[i]) + 1 : 0;
    comm_bcast(w, &length, sizeof length, 0);
    if (world_rank(w) != 0) c->file[i] = arena_alloc(a, length, 1);
    comm_bcast(w, c->file[i], length, 0);
  }
  return true;
}

static bool try_file(World *w, Arena *a, const char *file, CkptMeta *m, CkptReader *read, void *ctx, Err *e) {
  char *same = NULL;
  if (world_rank(w) == 0) ckpt_trial(file, e);
  TRY(world_agree(w, e));
  ckpt_read_meta(a, file, m, &same, e);
  TRY(world_agree(w, e));
  return read(ctx, w, a, file, m, e);
}

/* A whole file that does not fit (another model, another type) is the user's to mend: an older one would not fit either. */
static bool is_damaged(World *w, Arena *a, const char *file) {
  bool damaged = false;
  if (world_rank(w) == 0) {
    Err e = {0};
    ArenaMark mark = arena_mark(a);
    FILE *nowhere = fopen("/dev/null", "w");
    damaged = !nowhere || !ckpt_verify(a, file, nowhere, &e);
    if (nowhere) fclose(nowhere);
    arena_release(a, mark);
  }
  comm_bcast(w, &damaged, sizeof damaged, 0);
  return damaged;
}

bool ckpt_read_newest(World *w, Arena *a, const char *path, CkptMeta *m, CkptReader *read, void *ctx, char **file, char **note, Err *e) {
  Candidates c = {0};
  *note = NULL;
  TRY(agree_candidates(w, a, path, &c, e));
  char *said = c.note;
  for (int i = 0; i < c.n; i++) {
    Err why = {0};
    *file = c.file[i];
    if (try_file(w, a, *file, m, read, ctx, &why)) {
      if (said) *note = arena_printf(a, "%s; resuming from %s, the newest that is whole", said, *file);
      return true;
    }
    if (!c.directory || !is_damaged(w, a, *file)) return err_set(e, why.code, "%s", why.text);
    said = said ? arena_printf(a, "%s; %s", said, why.text) : arena_printf(a, "%s", why.text);
  }
  return err_set(e, ERR_CKPT, "%s: no checkpoint in it is whole: %s", path, said);
}

typedef struct Sets {
  CkptSet *set;
  int n;
} Sets;
static bool read_sets(void *ctx, World *w, Arena *a, const char *file, const CkptMeta *m, Err *e) {
  (void)m;
  const Sets *s = ctx;
  return ckpt_load(w, a, file, s->set, s->n, e);
}
bool ckpt_load_newest(World *w, Arena *a, const char *path, CkptMeta *m, CkptSet *set, int n_set, char **file, char **note, Err *e) {
  return ckpt_read_newest(w, a, path, m, read_sets, &(Sets){set, n_set}, file, note, e);
}
