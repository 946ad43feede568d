#ifndef TF_CG_OPS_QA_SANITIZE_CHECK_H_
#define TF_CG_OPS_QA_SANITIZE_CHECK_H_

#include <cstdio>
#include <cstdlib>

// Ends the process with a message that names the line, as the sanitizers do.
#define TF_CG_OPS_CHECK(condition)                                                         \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: WRONG: expected %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

#endif  // TF_CG_OPS_QA_SANITIZE_CHECK_H_
