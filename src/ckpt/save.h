/* Private to ckpt: a save, cut into parts. Inside a part ranks do not talk, so that a thread can do it; between two parts they do (save_border). A part that fails
 * on any rank ends the save on all of them, with one message and no trace. */
#ifndef ETALON_CKPT_SAVE_H
#define ETALON_CKPT_SAVE_H
#include "ckpt/ckpt.h"

typedef enum {
  SAVE_HASH,        /* every rank adds up the hashes of its pieces; afterwards they are known for whole tensors */
  SAVE_STRUCTURE,   /* rank 0 takes the space and writes everything but the data; afterwards all know where the data goes */
  SAVE_DATA,        /* every rank writes its pieces (compressed: see gather.c) */
  SAVE_FINISH,      /* rank 0 gives the file its name, moves `latest`, deletes what is no longer kept */
  N_SAVE_PART
} SavePart;

typedef struct Save {
  World *w;
  Fault *fault;
  Arena *scratch;
  const char *dir;
  CkptMeta meta;
  CkptSet *set; int n_set, n_tensor /* of all sets */;
  CkptPolicy policy;
  char *name, *path, *part;
  uint64_t *hash, *offset;         /* [n_tensor] */
} Save;

/* Collective. Copies the lists of tensors into s->scratch, not the pieces. CHECK: the pieces cover every tensor once. */
void save_open(Save *s, World *w, Arena *scratch, const char *dir, const CkptMeta *m, const CkptSet *set, int n_set, const CkptPolicy *p);
bool save_part(Save *s, SavePart part, Err *e);
/* Collective, after save_part on all ranks. False: some rank failed; the save is over and nothing of it is left. */
bool save_border(Save *s, SavePart part, Err *e);

/* directory.c. ERR_CKPT. */
bool save_make_directory(Arena *a, const char *dir, Err *e);
/* save_file.c: what rank 0 does. */
bool save_prepare_file(const Save *s, Err *e);
bool save_finish_file(const Save *s, Err *e);
/* gather.c. Collective. Pieces travel to rank 0, which deflates and writes them, some rows at a time. */
bool save_write_compressed(const Save *s, Err *e);
#endif
