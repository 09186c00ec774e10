/* The directory that a run is going to save to: what is there already, and whether it can be written. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/path.h"
#include "ckpt/h5util.h"
#include "ckpt/save.h"

char *ckpt_path(Arena *a, const char *dir, int64_t step) { return arena_printf(a, "%s/step_%08" PRId64 ".h5", dir, step); }

/* Is `from` a file of this directory, or the directory itself? Where nothing is, loading says so. */
static bool is_of(Arena *a, const char *dir, const char *from) {
  struct stat st;
  if (stat(from, &st) != 0) return true;
  if (S_ISDIR(st.st_mode)) return path_same(from, dir);
  const char *slash = strrchr(from, '/');
  return path_same(!slash ? "." : slash == from ? "/" : arena_printf(a, "%.*s", (int)(slash - from), from), dir);
}

/* A directory that is not there, or that nobody can read, has none. */
static CkptDir look(Arena *a, const char *dir, const char *from) {
  CkptDir d = {.last = -1};
  DIR *list = opendir(dir);
  if (!list) return d;
  int64_t step;
  for (struct dirent *f; (f = readdir(list));)
    if (ckpt_parse_name(f->d_name, &step)) d.n++, d.last = step > d.last ? step : d.last;
  closedir(list);
  d.own = from && is_of(a, dir, from);
  return d;
}

CkptDir ckpt_look(World *w, Arena *a, const char *dir, const char *from) {
  CkptDir d = {0};
  ArenaMark mark = arena_mark(a);
  if (world_rank(w) == 0) d = look(a, dir, from);
  comm_bcast(w, &d, sizeof d, 0);
  arena_release(a, mark);
  return d;
}

bool save_make_directory(Arena *a, const char *dir, Err *e) {
  char *path = arena_printf(a, "%s", dir);
  for (char *p = path + 1;; p++) {
    if (*p && *p != '/') continue;
    char was = *p;
    *p = 0;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
      return err_set(e, ERR_CKPT, "%s: the directory cannot be made: %s", path, strerror(errno));
    if (!was) break;
    *p = was;
  }
  struct stat st;
  if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)) return err_set(e, ERR_CKPT, "%s: not a directory", dir);
  return true;
}

static bool try_file(World *w, const char *path, int flags, Err *e) {
  int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0666);
  if (fd >= 0) return close(fd), true;
  return err_set(e, ERR_CKPT, "%s: cannot be %s by rank %d: %s", path, flags ? "written" : "found", world_rank(w), strerror(errno));
}

/* Rank 0 makes a file, the others must see it: a directory of one host only would be noticed half-way through a save. */
bool ckpt_try_directory(World *w, Arena *a, const char *dir, Err *e) {
  ArenaMark mark = arena_mark(a);
  bool first = world_rank(w) == 0;
  const char *path = arena_printf(a, "%s/try.part", dir);
  if (first && save_make_directory(a, dir, e)) try_file(w, path, O_CREAT, e);
  if (world_agree(w, e) && !first) try_file(w, path, 0, e);
  bool ok = world_agree(w, e);
  if (first) unlink(path);
  arena_release(a, mark);
  return ok;
}
