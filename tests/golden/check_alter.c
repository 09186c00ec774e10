/* Changes a golden file in place, for tests of what `etalon check` finds.
 *   check_alter FILE add NAME DELTA [I]   adds DELTA to element I (0) of data set NAME (float64 or int64)
 *   check_alter FILE family WORD          puts WORD for the model family in the attribute config
 * Exit code 0, or 1 with a line on stderr.                                                          */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what) { return fprintf(stderr, "check_alter: %s\n", what), 1; }

static int add(hid_t file, const char *name, double delta, int i) {
  enum { MAX = 1 << 16 };
  static union {
    double real[MAX];
    long long integer[MAX];
  } x;
  hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
  if (set < 0) return fail("no such data set");
  hid_t type = H5Dget_type(set), space = H5Dget_space(set);
  hssize_t n = H5Sget_simple_extent_npoints(space);
  if (n > MAX || i < 0 || i >= n) return fail("no such element, or more elements than there is room for");
  bool integer = H5Tget_class(type) == H5T_INTEGER;
  hid_t memory = integer ? H5T_NATIVE_LLONG : H5T_NATIVE_DOUBLE;
  if (H5Dread(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, &x) < 0) return fail("it can't be read");
  if (integer)
    x.integer[i] += (long long)delta;
  else
    x.real[i] += delta;
  if (H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, &x) < 0) return fail("it can't be written");
  H5Sclose(space), H5Tclose(type), H5Dclose(set);
  return 0;
}

static int family(hid_t file, const char *word) {
  hid_t attr = H5Aopen(file, "config", H5P_DEFAULT);
  if (attr < 0) return fail("no attribute config");
  hid_t type = H5Aget_type(attr);
  char *text = NULL, changed[4096];
  if (H5Tis_variable_str(type) <= 0 || H5Aread(attr, type, &text) < 0 || !text) return fail("the attribute config can't be read");
  const char *value = strstr(text, "\"family\": \""), *end;
  if (!value) return fail("no family in the config");
  value += strlen("\"family\": \"");
  end = strchr(value, '"');
  int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(value - text), text, word, end);
  const char *written = changed;
  if (n < 0 || n >= (int)sizeof changed || H5Awrite(attr, type, &written) < 0) return fail("the attribute config can't be written");
  H5free_memory(text);
  H5Tclose(type), H5Aclose(attr);
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 4) return fail("usage: check_alter FILE add NAME DELTA [I] | FILE family WORD");
  hid_t file = H5Fopen(argv[1], H5F_ACC_RDWR, H5P_DEFAULT);
  if (file < 0) return fail("the file can't be opened");
  int rc = !strcmp(argv[2], "add") && argc > 4 ? add(file, argv[3], atof(argv[4]), argc > 5 ? atoi(argv[5]) : 0)
           : !strcmp(argv[2], "family")        ? family(file, argv[3])
                                               : fail("what?");
  return H5Fclose(file) < 0 ? fail("the file can't be closed") : rc;
}
