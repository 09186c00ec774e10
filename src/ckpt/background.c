/* A save in the background: its parts (save.h) run in a thread, its borders between training steps. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/align.h"
#include "ckpt/h5util.h"
#include "ckpt/save.h"

enum { LIST_BYTES = 512 /* per tensor and piece: names, lists, hashes, offsets */, ROOM_BYTES = 1 << 20 };

struct CkptTask {
  Save save;
  SavePart part; /* that the thread works on */
  pthread_t thread;
  Err e; /* of the part; the thread's until done */
  atomic_bool done;
};

enum { LINE = 64 };
static size_t place_bytes(size_t data, int64_t n_piece) { return align_up(data, LINE) + LINE * (size_t)n_piece; }

size_t ckpt_room_bytes(size_t data, int64_t n_piece, int64_t n_tensor) {
  return place_bytes(data, n_piece) + LIST_BYTES * (size_t)(n_piece + n_tensor) + ROOM_BYTES;
}

/* The data's place comes first and stays, so that its pages are there when a save needs them. */
void ckpt_room_open(CkptRoom *r, size_t data, int64_t n_piece, int64_t n_tensor) {
  *r = (CkptRoom){.data = place_bytes(data, n_piece)};
  arena_open(&r->arena, "copy for a checkpoint", ckpt_room_bytes(data, n_piece, n_tensor));
  memset(arena_alloc(&r->arena, r->data, 1), 0, r->data); /* the first save should not wait for its pages */
}

void ckpt_room_close(CkptRoom *r) { arena_close(&r->arena); }

static void copy_pieces(Save *s, const CkptSet *set, CkptRoom *room) {
  size_t at = 0;
  for (int i = 0; i < s->n_set; i++) {
    CkptPiece *piece = ARENA_NEW(s->scratch, CkptPiece, set[i].n_piece);
    for (int k = 0; k < set[i].n_piece; k++) {
      const CkptPiece *p = &set[i].piece[k];
      size_t bytes = (size_t)(p->n_row * p->n_col) * dtype_size(set[i].tensor[p->tensor].dtype), n = align_up(bytes, LINE);
      CHECK(at + n <= room->data, "a checkpoint's copy has room for %zu bytes", room->data);
      piece[k] = *p;
      piece[k].data = room->arena.base + at;
      memcpy(piece[k].data, p->data, bytes);
      at += n;
    }
    s->set[i].piece = piece;
  }
}

static void *part_run(void *task) {
  CkptTask *t = task;
  save_part(&t->save, t->part, &t->e);
  atomic_store(&t->done, true);
  return NULL;
}

static void part_start(CkptTask *t, SavePart part) {
  t->part = part;
  atomic_store(&t->done, false);
  int code = pthread_create(&t->thread, NULL, part_run, t);
  CHECK(code == 0, "no thread for a save in the background: %s", strerror(code));
}

CkptTask *ckpt_task_begin(World *w, CkptRoom *room, const char *dir, const CkptMeta *m, const CkptSet *set, int n_set,
                          const CkptPolicy *p) {
  CHECK(p->compress == 0, "compressed checkpoints are not written in the background");
  arena_release(&room->arena, align_up(room->data, LINE));
  CkptTask *t = ARENA_NEW(&room->arena, CkptTask, 1);
  fault_at(world_fault(w), FAULT_CKPT_COPY, NULL);
  save_open(&t->save, w, &room->arena, dir, m, set, n_set, p);
  copy_pieces(&t->save, set, room);
  part_start(t, SAVE_HASH);
  return t;
}

/* Is every rank's thread through with its part? */
static bool all_done(CkptTask *t) {
  uint64_t busy = !atomic_load(&t->done);
  comm_allreduce_max_u64(t->save.w, AXES_WORLD, &busy, 1);
  return !busy;
}

bool ckpt_task_poll(CkptTask *t, bool wait, Err *e) {
  while (wait || all_done(t)) {
    pthread_join(t->thread, NULL);
    bool ok = save_border(&t->save, t->part, &t->e);
    if (!ok || t->part + 1 == N_SAVE_PART) {
      if (!ok) err_set(e, t->e.code, "%s", t->e.text);
      return true;
    }
    part_start(t, t->part + 1);
    if (!wait) return false;
  }
  return false;
}
