// The numbers of the tokens that are alive. As long as a graph or a tape holds a token, which is a tensor, the program
// keeps something for it outside the graph, such as the residuals of a Python function.
//
// Nothing here calls Python or waits for it, because a token can die in any thread, even in one that holds a lock of
// TensorFlow.

#ifndef TF_CG_OPS_CC_LIB_LIVE_TOKENS_H_
#define TF_CG_OPS_CC_LIB_LIVE_TOKENS_H_

#include <cstdint>

namespace tf_cg_ops {

// Has consecutive numbers, and lives as long as the tensors that share it.
class Token {
 public:
  explicit Token(int64_t count);
  ~Token();
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;

  int64_t first_id() const { return first_id_; }

 private:
  const int64_t count_;
  const int64_t first_id_;
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_LIB_LIVE_TOKENS_H_
