/* A fuzz target without a fuzzer: every file of the folders named runs through it once, then cut short and with bytes changed, the same way every time.
 * So the seeds, and whatever once crashed, stay tests of every build. usage: replay CHANGES PATH... */
#include <dirent.h>
#include <sys/stat.h>

#include "base/rng.h"
#include "fuzz/target.h"

enum { MAX_BYTES = 1 << 20 };
static uint8_t bytes[MAX_BYTES], changed[MAX_BYTES];

static uint64_t draw(uint64_t file, uint64_t *at, uint64_t n) {
  return rng_below((RngKey){.seed = 9, .stream = file, .purpose = RNG_TEST}, (*at)++, n);
}

static void change(size_t n, uint64_t file, int round) {
  uint64_t at = (uint64_t)round << 20;
  size_t size = draw(file, &at, 4) ? n : (size_t)draw(file, &at, n + 1);
  memcpy(changed, bytes, n);
  for (uint64_t k = 1 + draw(file, &at, 8); k > 0 && size > 0; k--) changed[draw(file, &at, size)] = (uint8_t)draw(file, &at, 256);
  LLVMFuzzerTestOneInput(changed, size);
}

static void replay_file(const char *path, int changes, uint64_t number) {
  FILE *f = fopen(path, "rb");
  CHECK(f, "%s", path);
  size_t n = fread(bytes, 1, sizeof bytes, f);
  fclose(f);
  LLVMFuzzerTestOneInput(bytes, n);
  for (int i = 0; i < changes; i++) change(n, number, i);
}

int main(int argc, char **argv) {
  int n = 0, changes = argc > 1 ? atoi(argv[1]) : 0;
  for (int i = 2; i < argc; i++) {
    struct stat st;
    if (stat(argv[i], &st) != 0) return fprintf(stderr, "%s is not there\n", argv[i]), 1;
    if (!S_ISDIR(st.st_mode)) {
      replay_file(argv[i], changes, (uint64_t)n++);
      continue;
    }
    struct dirent **list;
    int m = scandir(argv[i], &list, NULL, alphasort);
    for (int k = 0; k < m; k++) {
      char path[512];
      snprintf(path, sizeof path, "%s/%s", argv[i], list[k]->d_name);
      if (list[k]->d_name[0] != '.') replay_file(path, changes, (uint64_t)n++);
      free(list[k]);
    }
    free(list);
  }
  printf("%d files, each changed %d times\n", n, changes);
  return n == 0;
}
