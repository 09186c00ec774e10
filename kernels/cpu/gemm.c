/* Front of the GEMM providers: which one does a shape is settled once, when the shape is announced; a call looks it up and jumps. */
#include "gemm.h"
#include "gemm_provider.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { N_SLOT = 1 << 14, MAX_SHAPES = N_SLOT / 2 };
#define POOL_BYTES ((size_t)1 << 28) /* reserved, touched as used */

/* In order of preference; the last does every shape. */
static const GemmProvider *const provider_table[] = {
#ifdef ETALON_HAVE_ONEDNN
    &gemm_onednn,
#endif
    &gemm_plain,
};
#define N_PROVIDER ((int)(sizeof provider_table / sizeof *provider_table))

typedef struct Slot {
  GemmShape key;
  GemmPlan plan;
  const GemmProvider *by;
  bool filled; /* set last, so that calls on other threads see a whole slot or none */
} Slot;

struct Gemm {
  GemmPool pool;
  pthread_mutex_t lock; /* of announcements; calls take none */
  int threads, first, n_shape;
  void *self[N_PROVIDER];
  GemmInfo info;
  Slot slot[N_SLOT];
};

__attribute__((noreturn, format(printf, 1, 2))) static void bug(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fputs("gemm: ", stderr);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
  __builtin_trap();
}

void *gemm_pool_alloc(GemmPool *p, size_t n, size_t size) {
  size_t bytes = (n * size + 63) / 64 * 64;
  if (bytes > p->cap - p->used) bug("the pool of %zu bytes is full", p->cap);
  void *r = p->base + p->used;
  p->used += bytes;
  return r;
}

static void *map_bytes(size_t n) {
  void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static int find_provider(const char *name) {
  if (strcmp(name, "auto") == 0) return 0;
  for (int i = 0; i < N_PROVIDER; i++)
    if (strcmp(name, provider_table[i]->name) == 0) return i;
  return -1;
}

static bool open_providers(Gemm *g) {
  for (int i = N_PROVIDER - 1; i >= g->first; i--) {
    const char *version = "";
    g->self[i] = provider_table[i]->open(&g->pool, g->threads, &version);
    if (!g->self[i]) return false;
    g->info = (GemmInfo){.name = provider_table[i]->name, .version = version};
  }
  return true;
}

Gemm *gemm_open(const char *provider, int threads, char *why, size_t why_size) {
  int first = find_provider(provider);
  if (first < 0) {
    int n = snprintf(why, why_size, "GEMM provider \"%s\" is not built in; there are: auto", provider);
    for (int i = 0; i < N_PROVIDER && n > 0 && (size_t)n < why_size; i++)
      n += snprintf(why + n, why_size - (size_t)n, ", %s", provider_table[i]->name);
    return NULL;
  }
  char *base = map_bytes(POOL_BYTES);
  if (!base) {
    snprintf(why, why_size, "no %zu bytes of address space for the GEMM provider", POOL_BYTES);
    return NULL;
  }
  GemmPool pool = {.base = base, .cap = POOL_BYTES};
  Gemm *g = gemm_pool_alloc(&pool, 1, sizeof *g);
  g->pool = pool;
  g->threads = threads;
  g->first = first;
  pthread_mutex_init(&g->lock, NULL);
  if (!open_providers(g)) {
    snprintf(why, why_size, "GEMM provider \"%s\" does not start on this machine", provider_table[first]->name);
    gemm_close(g);
    return NULL;
  }
  return g;
}

void gemm_close(Gemm *g) {
  if (!g) return;
  for (int i = g->first; i < N_PROVIDER; i++)
    if (g->self[i]) provider_table[i]->close(g->self[i]);
  pthread_mutex_destroy(&g->lock);
  munmap(g->pool.base, g->pool.cap);
}

GemmInfo gemm_info(const Gemm *g) { return g->info; }

static bool same_shape(const GemmShape *a, const GemmShape *b) {
  return a->M == b->M && a->N == b->N && a->K == b->K && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
         a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->accumulate == b->accumulate && a->type == b->type;
}

static uint32_t hash_shape(const GemmShape *s) {
  const int word[] = {s->M, s->N, s->K, s->lda, s->ldb, s->ldc, s->trans_a | s->trans_b << 1 | s->accumulate << 2 | (int)s->type << 3};
  uint64_t h = 0;
  for (size_t i = 0; i < sizeof word / sizeof *word; i++) h = (h ^ (uint32_t)word[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
  return (uint32_t)(h >> 32);
}

/* The slot of the shape, or the empty one where it belongs. */
static Slot *find_slot(Gemm *g, const GemmShape *s) {
  uint32_t i = hash_shape(s) % N_SLOT;
  while (__atomic_load_n(&g->slot[i].filled, __ATOMIC_ACQUIRE) && !same_shape(&g->slot[i].key, s)) i = (i + 1) % N_SLOT;
  return &g->slot[i];
}

static bool valid_shape(const GemmShape *s) {
  return s->M > 0 && s->N > 0 && s->K > 0 && s->lda >= (s->trans_a ? s->M : s->K) && s->ldb >= (s->trans_b ? s->K : s->N) && s->ldc >= s->N;
}

static void fill_slot(Gemm *g, Slot *slot, const GemmShape *s) {
  if (!valid_shape(s)) bug("no such product: M %d N %d K %d, strides %d %d %d", s->M, s->N, s->K, s->lda, s->ldb, s->ldc);
  if (++g->n_shape > MAX_SHAPES) bug("more than %d shapes", MAX_SHAPES);
  slot->key = *s;
  for (int i = g->first; !slot->by; i++)
    if (provider_table[i]->prepare(g->self[i], &g->pool, s, &slot->plan)) slot->by = provider_table[i];
  slot->plan.scratch = (slot->plan.scratch + 63) / 64 * 64;
  __atomic_store_n(&slot->filled, true, __ATOMIC_RELEASE);
}

static const Slot *prepared_slot(Gemm *g, const GemmShape *s) {
  Slot *slot = find_slot(g, s);
  if (__atomic_load_n(&slot->filled, __ATOMIC_ACQUIRE)) return slot;
  pthread_mutex_lock(&g->lock);
  slot = find_slot(g, s);
  if (!slot->filled) fill_slot(g, slot, s);
  pthread_mutex_unlock(&g->lock);
  return slot;
}

void gemm_prepare(Gemm *g, const GemmShape *s) { prepared_slot(g, s); }

size_t gemm_scratch(Gemm *g, const GemmShape *s) { return prepared_slot(g, s)->plan.scratch; }

static const Slot *known_slot(Gemm *g, const GemmShape *s) {
  const Slot *slot = find_slot(g, s);
  if (!__atomic_load_n(&slot->filled, __ATOMIC_ACQUIRE)) bug("the shape M %d N %d K %d was not announced", s->M, s->N, s->K);
  return slot;
}

size_t gemm_scratch_known(Gemm *g, const GemmShape *s) { return known_slot(g, s)->plan.scratch; }

void gemm_run(Gemm *g, const GemmShape *s, int thread, const void *A, const void *B, void *C, void *scratch) {
  const Slot *slot = known_slot(g, s);
  if (thread < 0 || thread >= g->threads) bug("thread %d of %d", thread, g->threads);
  slot->by->run(slot->plan.state, s, thread, A, B, C, scratch);
}
