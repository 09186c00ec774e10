#include "base/path.h"

#include <sys/stat.h>

bool path_same(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool path_replaceable(const char *path, Err *e) {
  struct stat st;
  if (stat(path, &st) != 0 || S_ISREG(st.st_mode)) return true;
  return err_set(e, ERR_CONFIG, "%s: is there and is no regular file; name another", path);
}

bool path_apart(const char *writer, const char *out, const char *reader, const char *in, Err *e) {
  if (!out || !*out || !in || !*in || !path_same(out, in)) return true;
  return err_set(e, ERR_CONFIG, "%s: \"%s\" is what %s reads, and would be overwritten; name another file", writer, out, reader);
}
