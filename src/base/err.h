/* Errors. Two kinds only: what the user can mend (a function returns bool, last argument Err *), and what nobody can
 * (CHECK: prints where, then stops every rank). Used by every layer. Not a logger.                                    */
#ifndef ETALON_ERR_H
#define ETALON_ERR_H
#include <stdbool.h>

/* The values are the process's exit codes (README, "Exit codes"). */
typedef enum {
  ERR_NONE = 0, ERR_CONFIG = 2, ERR_DATA = 3, ERR_CKPT = 4, ERR_MEMORY = 5, ERR_NONFINITE = 6, ERR_MISMATCH = 7,
  ERR_HANG = 8, ERR_BUG = 70, ERR_RESUME = 75
} ErrCode;

enum { ERR_TEXT = 2048 };
typedef struct Err { ErrCode code; char text[ERR_TEXT]; } Err;

/* Records the first error (later ones are ignored). Always returns false: `return err_set(e, ERR_DATA, ...)`. */
bool err_set(Err *e, ErrCode code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "context: " in front of the text that is there. Always returns false. */
bool err_wrap(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define TRY(call) do { if (!(call)) return false; } while (0)

/* A bug or dead hardware: prints file:line, the message and what `die_set_hook` was told to add, then ends all ranks. */
void die(const char *file, int line, const char *fmt, ...) __attribute__((noreturn, format(printf, 3, 4)));
#define CHECK(cond, ...) do { if (!(cond)) die(__FILE__, __LINE__, __VA_ARGS__); } while (0)

/* How `die` ends the process: `stop(ctx, code)` must not return (comm installs MPI_Abort); without a hook: _exit(70).
 * This pointer and its context are the program's only mutable globals: a bug can strike where no context is at hand. */
void die_set_hook(void (*stop)(void *ctx, int code), void *ctx);
#endif
