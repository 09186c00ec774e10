/* Golden files: small models computed in float64 by tests/oracle/moe_oracle.py, stored as HDF5. This reads them; it never writes one and
 * knows nothing of the trainer. Called by `etalon check` and the golden tests. A file is input from outside: whatever its bytes say, the
 * worst that comes back is ERR_CKPT. Every rank may open the file by itself (no collective calls). Content: tests/oracle/README.md. */
#ifndef ETALON_GOLDEN_H
#define ETALON_GOLDEN_H
#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"

/* Every key of the oracle's DEFAULTS, under the oracle's names. null is 0. Keys that only other families read are kept for completeness. */
typedef struct GoldenConfig {
  const char *family;                       /* "llama" or "mixtral" */
  int64_t vocab, hidden, layers, heads, kv_heads, head_dim, experts, top_k, ffn, dense_ffn, first_dense, shared_experts, shared_ffn;
  double  rope_theta, norm_eps;
  bool    tied;
  int64_t sliding_window;                   /* 0: none */
  int64_t q_lora, kv_lora, rope_dim, nope_dim, v_dim, n_group, topk_group;
  double  routed_scale;
  bool    norm_topk;
  double  swiglu_limit, swiglu_alpha, aux_coeff;
  const char *aux_form;
  double  z_coeff;
  int64_t batch, seq, seed, steps;
  int64_t n_ignore; const int64_t *ignore;  /* [n_ignore, 2]: (b, s) whose label is -100 in every step */
  double  init_std, bias_std, lr, beta1, beta2, eps, weight_decay, clip /* 0: none */;
} GoldenConfig;

enum { GOLDEN_MAX_DIM = 4 };
typedef struct GoldenTensor { const char *name; int n_dim; int64_t dims[GOLDEN_MAX_DIM]; } GoldenTensor;
typedef struct Golden Golden;

/* Opens `path`, reads its config and the names and shapes of its weights into `a`, which must outlive the Golden. ERR_CKPT: missing,
 * damaged or foreign file; ERR_CONFIG: a model family that is not in this version. After success golden_close is owed. All of the file
 * is read once in a short-lived child process before (probe.h), since the HDF5 library itself does not survive every damage. */
bool golden_open(Golden **g, Arena *a, const char *path, Err *e);
void golden_close(Golden *g);
const GoldenConfig *golden_config(const Golden *g);
/* "key=value key=value ...": mode, dtype, window and shards that a file of `etalon golden` was computed with, so that bits can be compared; NULL in the oracle's files. */
const char *golden_numerics(const Golden *g);
const GoldenTensor *golden_weights(const Golden *g, int *n);   /* [n], by Hugging Face name, linears [out, in] */

/* `name` is a path in the file: "weights/NAME", "step1/grads/NAME", "steps/3/tokens", "train/ce" ... */
bool golden_has(Golden *g, const char *name);                                                    /* is there a data set of that name? */
bool golden_dims(Golden *g, const char *name, int *n_dim, int64_t dims[GOLDEN_MAX_DIM], Err *e); /* a scalar has n_dim 0 */
/* Reads all n elements in row-major order. ERR_CKPT: not there, another type, another number of elements than n, or unreadable. */
bool golden_read_f64(Golden *g, const char *name, double *out, int64_t n, Err *e);
bool golden_read_i64(Golden *g, const char *name, int64_t *out, int64_t n, Err *e);

/* The attribute `config` from its text: JSON with exactly the keys of GoldenConfig. Errors as golden_open's. */
bool golden_config_parse(const char *text, GoldenConfig *c, Arena *a, Err *e);
/* The other way: JSON text with every key. */
char *golden_config_text(const GoldenConfig *c, Arena *a);
/* What differs between two: "\"lr\": 0.01 and 0.02, ..."; empty: nothing. */
char *golden_config_changes(const GoldenConfig *x, const GoldenConfig *y, Arena *a);
/* The config as "key=value" strings for config_read's `sets`: model, optimizer, batch, sequence, steps; the auxiliary loss over the
 * whole batch, as the oracle has it, and therefore the schedule all_forward. Data, layout and numerics are left to the caller. Returns
 * [*n], in `a`. */
const char *const *golden_config_sets(const GoldenConfig *c, Arena *a, int *n);
#endif
