#include "base/arena.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"

/* With AddressSanitizer every allocation has a forbidden zone behind it. Small arenas are not guarded: they may lie on the stack. */
#if defined(__SANITIZE_ADDRESS__)
#define ARENA_GUARDED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_GUARDED 1
#endif
#endif
#ifdef ARENA_GUARDED
#include <sanitizer/asan_interface.h>
enum { RED_ZONE = 64 };
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
enum { RED_ZONE = 0 };
#endif

enum { ARENA_ALIGN = 64, ARENA_GIVE_BACK = 1 << 20, ARENA_LEAST_GUARDED = 1 << 16 };

void arena_open(Arena *a, const char *name, size_t cap) {
  CHECK(cap > 0, "arena %s: capacity 0", name);
  void *p = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(p != MAP_FAILED, "arena %s: the system refuses to reserve %zu bytes: %s", name, cap, strerror(errno));
  *a = (Arena){.base = p, .used = 0, .cap = cap, .name = name};
}

void arena_close(Arena *a) {
  ASAN_UNPOISON_MEMORY_REGION(a->base, a->used);
  if (a->base) CHECK(munmap(a->base, a->cap) == 0, "arena %s: munmap: %s", a->name, strerror(errno));
  *a = (Arena){0};
}

/* Bytes above `used` are always zero: fresh pages are, and arena_release clears what it takes back. */
void *arena_alloc(Arena *a, size_t n, size_t size) {
  size_t bytes;
  bool fits = !__builtin_mul_overflow(n, size, &bytes) && bytes <= a->cap - a->used;
  CHECK(fits, "arena %s is full: %zu elements of %zu bytes wanted, %zu of %zu bytes free", a->name, n, size, a->cap - a->used, a->cap);
  void *p = a->base + a->used;
  size_t end = a->used + bytes, pad = (ARENA_ALIGN - end % ARENA_ALIGN) % ARENA_ALIGN;
  if (a->cap >= ARENA_LEAST_GUARDED) pad += RED_ZONE;
  a->used = pad <= a->cap - end ? end + pad : a->cap;
  if (a->cap >= ARENA_LEAST_GUARDED) ASAN_POISON_MEMORY_REGION(a->base + end, a->used - end);
  return p;
}

char *arena_printf(Arena *a, const char *fmt, ...) {
  CHECK(fmt, "arena %s: no format", a->name);
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  CHECK(n >= 0, "arena %s: bad format", a->name);
  char *s = arena_alloc(a, (size_t)n + 1, 1);
  va_start(ap, fmt);
  vsnprintf(s, (size_t)n + 1, fmt, ap);
  va_end(ap);
  return s;
}

ArenaMark arena_mark(const Arena *a) { return a->used; }

void arena_release(Arena *a, ArenaMark m) {
  CHECK(m <= a->used, "arena %s: mark %zu lies beyond %zu", a->name, m, a->used);
  size_t page = (size_t)sysconf(_SC_PAGESIZE), from = m, n = a->used - m;
  ASAN_UNPOISON_MEMORY_REGION(a->base + m, n);
  if (n >= ARENA_GIVE_BACK) { /* whole pages go back to the system and come again as zeros */
    size_t first = (from + page - 1) / page * page, last = a->used / page * page;
    memset(a->base + from, 0, first - from);
    CHECK(madvise(a->base + first, last - first, MADV_DONTNEED) == 0, "arena %s: madvise: %s", a->name, strerror(errno));
    from = last;
  }
  memset(a->base + from, 0, a->used - from);
  a->used = m;
}
