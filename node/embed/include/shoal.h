/* Shoal in other programs: load a model, let it answer, stop it. Link with -lshoal. */

#ifndef SHOAL_H
#define SHOAL_H

/* Made of node/embed/src/c.rs by cbindgen: change that file. */

#include <stddef.h>
#include <stdint.h>

/*
 The number of this interface. It changes when a program that was compiled with an older header could not go on: compare
 it with shoal_abi() where the library is loaded at run time.
 */
#define SHOAL_ABI 1

/*
 shoal_generate: the model ended its answer.
 */
#define SHOAL_STOP 0

/*
 shoal_generate: max_tokens, or what the model can hold, is used up.
 */
#define SHOAL_LENGTH 1

/*
 shoal_generate: shoal_cancel was called, or the callback returned another number than 0.
 */
#define SHOAL_CANCELLED 2

/*
 shoal_generate: shoal_last_error() says what went wrong.
 */
#define SHOAL_FAILED -1

/*
 A loaded model. Several threads may use one at once; its answers take turns.
 */
typedef struct shoal_model shoal_model;

/*
 How an answer is made.
 */
typedef struct shoal_options {
  /*
   The same seed and prompt give the same answer on every machine.
   */
  uint64_t seed;
  /*
   Most tokens to generate.
   */
  uint32_t max_tokens;
  /*
   0 always takes the likeliest token; higher is more varied.
   */
  float temperature;
  /*
   Other than 0: the prompt is continued as it stands, instead of being put into the model's chat template.
   */
  uint32_t raw;
} shoal_options;

/*
 Gets an answer's text piece by piece, on the thread that called shoal_generate: UTF-8, whole characters, `bytes` of them
 and then a NUL, valid until it returns. 0 goes on, another number ends the answer. It must return: no longjmp, no exception.
 */
typedef int (*shoal_on_piece)(const char *piece, size_t bytes, void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The number of the interface that this library has.
 */
uint32_t shoal_abi(void);

/*
 The version of this library, as "0.1.0"; valid as long as the program runs.
 */
const char *shoal_version(void);

/*
 What went wrong in this thread's last call of shoal_load or shoal_generate, as a sentence; NULL when nothing did. Valid
 until this thread calls one of them again.
 */
const char *shoal_last_error(void);

/*
 What holds where shoal_generate is given no options: seed 0, 512 tokens, temperature 0, chat template.
 */
struct shoal_options shoal_defaults(void);

/*
 Loads a .gguf file by its path, a model by its name in `shoal model list`, or "minnow", which is inside the library.
 `threads` compute, 0 for as many as there are physical cores. NULL when it fails; shoal_last_error() says why.
 */
struct shoal_model *shoal_load(const char *name,
                               uint16_t threads);

/*
 Answers `prompt` and returns when the answer has ended: SHOAL_STOP, SHOAL_LENGTH, SHOAL_CANCELLED or SHOAL_FAILED. Each piece
 of text goes to `on_piece` with `user` as soon as it is certain. `options` may be NULL for shoal_defaults(). From within
 `on_piece` the same model answers nothing else.
 */
int shoal_generate(const struct shoal_model *model,
                   const char *prompt,
                   const struct shoal_options *options,
                   shoal_on_piece on_piece,
                   void *user);

/*
 Ends the answers that `model` computes now or that wait for their turn; from any thread, also from within a callback. What is
 asked afterwards is answered. NULL is allowed.
 */
void shoal_cancel(const struct shoal_model *model);

/*
 Frees `model`, which no thread may use any more. NULL is allowed.
 */
void shoal_free(struct shoal_model *model);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SHOAL_H */
