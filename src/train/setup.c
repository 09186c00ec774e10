#include "train/setup.h"

#include <string.h>

#include "gemm.h"

bool setup_tokens(TokenFile *f, Arena *a, const Config *c, const char *path, Err *e) {
  if (!*path)
    return err_set(e, ERR_CONFIG, "%s is empty: name a text, a token file, or the prefix of a .bin and .idx pair",
                   path == c->data.valid ? "data.valid" : "data.train");
  static const TokenFormat format[] = {
      [DATA_AUTO] = TOK_AUTO, [DATA_MEGATRON] = TOK_MEGATRON, [DATA_U16] = TOK_U16, [DATA_U32] = TOK_U32, [DATA_TEXT] = TOK_TEXT};
  ROW_FOR_EACH(format, N_DATA);
  return token_file_open(f, a, path, format[c->data.format], c->model.vocab_size, e);
}

static bool open_device(Setup *s, Err *e) {
  const Config *c = s->c;
  return device_open(&s->device, c->device.name, config_word(c, "device.gemm"), (int)c->device.threads,
                     (uint64_t)c->train.seed + (uint64_t)world_rank(s->world), e);
}

/* Canonical mode rests on products of 64 rows being row independent: tried on the model's widths before anything is trained. */
static bool self_test_type(const Setup *s, GemmType type, Err *e) {
  const ModelConfig *m = &s->c->model;
  const int64_t width[][2] = {{m->hidden_size, m->hidden_size},
                              {config_ffn_expert(m), m->hidden_size},
                              {m->hidden_size, config_ffn_expert(m)},
                              {m->vocab_size, m->hidden_size}};
  for (size_t i = 0; i < sizeof width / sizeof *width; i++)
    for (int trans = 0; trans < 2; trans++) {
      char why[512];
      int N = (int)width[i][0], K = (int)width[i][1];
      GemmShape g = {.M = ROW_BLOCK, .N = N, .K = K, .trans_b = trans, .lda = K, .ldb = trans ? K : N, .ldc = N, .type = type};
      if (!gemm_self_test(s->device.gemm, &g, why, sizeof why))
        return err_set(e, ERR_CONFIG,
                       "numerics.mode: canonical needs products whose rows do not depend on each other; the GEMM provider \"%s\" fails its "
                       "self-test (%s): set device.gemm: plain or numerics.mode: native",
                       s->device.gemm_name, why);
    }
  return true;
}

static bool self_test(const Setup *s, Err *e) {
  GemmType type = job_gemm(s->c);
  if (s->c->numerics.mode != NUM_CANONICAL) return true;
  if (type == GEMM_BF16) TRY(self_test_type(s, GEMM_F32, e)); /* routers' */
  return self_test_type(s, type, e);
}

/* Ranks of other processors or libraries would break the promise silently. */
static bool same_machine(Setup *s, Err *e) {
  char mine[256] = {0}, first[256];
  snprintf(mine, sizeof mine, "%.127s|%.32s|%.32s", s->device.isa, s->device.gemm_name, s->device.gemm_version);
  memcpy(first, mine, sizeof first);
  comm_bcast(s->world, first, sizeof first, 0);
  if (s->c->numerics.mode == NUM_CANONICAL && strcmp(mine, first))
    err_set(e, ERR_CONFIG,
            "numerics.mode: canonical needs one instruction set and one GEMM library on all ranks; rank 0 has %s, rank %d has %s; use "
            "equal machines or numerics.mode: native",
            first, world_rank(s->world), mine);
  return world_agree(s->world, e);
}

bool setup_open(Setup *s, World *w, Arena *a, const Config *c, int64_t n_valid_seq, Err *e) {
  *s = (Setup){.world = w, .arena = a, .c = c};
  if (open_device(s, e)) self_test(s, e);
  TRY(world_agree(w, e));
  TRY(same_machine(s, e));
  job_plan(&s->job, a, c, world_size(w), world_rank(w), &s->device, n_valid_seq, e);
  TRY(world_agree(w, e));
  TRY(job_check_limits(&s->job, w, e));
  TRY(world_set_mesh(w, a, &s->job.mesh, e));
  job_open_exec(&s->job, w, &s->x, e);
  return world_agree(w, e);
}

void setup_close(Setup *s) {
  exec_close(s->x);
  if (s->device.ops) device_close(&s->device);
  s->x = NULL, s->device.ops = NULL;
}
