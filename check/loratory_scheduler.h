/* A scheduler under test, as a shared library: `loratory check --scheduler ./libmine.so`.
 *
 * The library exports one function, loratory_scheduler(). The harness plays the engine: it creates
 * a state, passes it one message after the other, and reads the replies. A message is one JSON
 * object without a line feed, and so is a reply. docs/check_scheduler.md has every message, field
 * and unit; they are the same as for a child process that reads lines and writes lines.
 *
 * C11, no dependency.
 */
#ifndef LORATORY_SCHEDULER_H
#define LORATORY_SCHEDULER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a message, a field or this struct changes in a way that old libraries do not know. */
#define LORATORY_SCHEDULER_VERSION 1

/* Calls come from one thread at a time. No function may throw, exit or keep a pointer that it was
 * given beyond the call. Several states may exist side by side and share nothing. */
struct LoratoryScheduler {
  uint32_t version; /* LORATORY_SCHEDULER_VERSION */

  /* A new state; NULL if there can be none. The first message to it is `hello`. */
  void* (*create)(void);

  /* Answers one message. `request_json` is UTF-8 and ends with a zero byte; it lives until the
   * call returns. `*reply_json` is set to the answer, of the same form, which belongs to the state
   * and lives until the next call with it. Returns 0; anything else is an error, and `*reply_json`
   * is then NULL or a text that says what happened. After an error only `destroy` follows. */
  int (*exchange)(void* state, const char* request_json, const char** reply_json);

  void (*destroy)(void* state);
};

/* What the library exports. The struct lives as long as the library is loaded. */
#if defined(_WIN32)
__declspec(dllexport)
#elif defined(__GNUC__)
__attribute__((visibility("default")))
#endif
    const struct LoratoryScheduler* loratory_scheduler(void);

#ifdef __cplusplus
}
#endif

#endif
