/* Writes the checkpoints that the fuzzing of checkpoints begins with: DIR/plain.h5 and DIR/deflated.h5. usage: make_seeds DIR */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ckpt.h"

enum { ROWS = 300, COLS = 67 };

static bool write_seed(World *w, Arena *a, const char *dir, const char *name, int compress, Err *e) {
  float *data = ARENA_NEW(a, float, ROWS *COLS);
  int64_t *small = ARENA_NEW(a, int64_t, 3);
  for (int i = 0; i < ROWS * COLS; i++) data[i] = (float)(i % 5);
  int64_t rows = compress ? ROWS : 4;
  CkptTensor t[2] = {{.name = "lm_head.weight", .dtype = DT_F32, .n_dim = 2, .rows = rows, .cols = COLS},
                     {.name = "model.norm.weight", .dtype = DT_I64, .n_dim = 1, .rows = 1, .cols = 3}};
  CkptPiece p[2] = {{.tensor = 0, .n_row = rows, .n_col = COLS, .data = data}, {.tensor = 1, .n_row = 1, .n_col = 3, .data = small}};
  CkptSet set[2] = {{.group = "weights", .tensor = t, .n_tensor = 2, .piece = p, .n_piece = 2},
                    {.group = "masters", .tensor = t, .n_tensor = 2, .same_as = "weights"}};
  CkptMeta m = {
      .step = 1, .world = 1, .config = "model: {}\n", .numerics = "canonical", .code_version = "0", .isa = "isa", .gemm = "plain"};
  TRY(ckpt_save(w, a, dir, &m, set, 2, &(CkptPolicy){.compress = compress}, e));
  const char *from = arena_printf(a, "%s/step_00000001.h5", dir), *to = arena_printf(a, "%s/%s", dir, name);
  unlink(arena_printf(a, "%s/latest", dir));
  return rename(from, to) == 0 || err_set(e, ERR_CKPT, "%s: %m", to);
}

int main(int argc, char **argv) {
  Arena a;
  World *w;
  Err e = {0};
  arena_open(&a, "seeds", (size_t)256 << 20);
  if (argc != 2) return fprintf(stderr, "usage: make_seeds DIR\n"), 2;
  const char *dir = argv[1];
  if (world_open(&w, &a, &argc, &argv, &e) && write_seed(w, &a, dir, "plain.h5", 0, &e)) write_seed(w, &a, dir, "deflated.h5", 6, &e);
  return world_close(w, &e);
}
