#include "base/hash.h"

#include <string.h>
#include <xxhash.h>

uint64_t hash_bytes(const void *p, size_t n) { return XXH64(p, n, 0); }

uint64_t hash_name(const char *s) { return XXH64(s, strlen(s), 0); }
