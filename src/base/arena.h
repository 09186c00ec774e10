/* Host memory. An arena is one mapping, reserved at its cap and touched as it is used; everything in it dies at once.
 * The only other source of memory is the device's slab (device.h). No malloc elsewhere.                               */
#ifndef ETALON_ARENA_H
#define ETALON_ARENA_H
#include <stddef.h>

typedef struct Arena { char *base; size_t used, cap; const char *name; } Arena;
typedef size_t ArenaMark;

void      arena_open(Arena *a, const char *name, size_t cap);  /* cap in bytes; dies when the system refuses */
void      arena_close(Arena *a);
void     *arena_alloc(Arena *a, size_t n, size_t size);        /* n * size bytes, zeroed, 64-byte aligned; dies, naming the arena, when full */
char     *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
ArenaMark arena_mark(const Arena *a);
void      arena_release(Arena *a, ArenaMark m);                /* gives back everything allocated since the mark */
#define ARENA_NEW(a, T, n) ((T *)arena_alloc((a), (size_t)(n), sizeof(T)))
#endif
