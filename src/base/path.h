/* Names of files that are about to be written: nothing that is read may be lost to them. Used by every verb that writes; opens nothing. */
#ifndef ETALON_PATH_H
#define ETALON_PATH_H
#include <stdbool.h>

#include "base/err.h"

/* Both are there and are one file, whatever they are called. */
bool path_same(const char *a, const char *b);
/* A file that is made beside `path` may be renamed to it: nothing has the name, or a regular file. ERR_CONFIG. */
bool path_replaceable(const char *path, Err *e);
/* `out` is not `in`, which `reader` reads. ERR_CONFIG. in NULL or empty: nothing is read. */
bool path_apart(const char *writer, const char *out, const char *reader, const char *in, Err *e);
#endif
