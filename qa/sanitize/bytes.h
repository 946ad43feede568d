// Numbers from the bytes of a fuzzer or a random generator.

#ifndef TF_CG_OPS_QA_SANITIZE_BYTES_H_
#define TF_CG_OPS_QA_SANITIZE_BYTES_H_

#include <cstddef>
#include <cstdint>

namespace tf_cg_ops {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  // The next bytes as one number; zeros when there are no more.
  uint64_t Next(int count) {
    uint64_t number = 0;
    for (; count > 0; --count) {
      number <<= 8;
      if (left_ == 0) continue;
      number |= *data_++;
      --left_;
    }
    return number;
  }

  // A number in [0, limit), for limits up to 256.
  int64_t Below(int64_t limit) { return static_cast<int64_t>(Next(1)) % limit; }

  // True in one of `cases` cases.
  bool OneIn(int64_t cases) { return Below(cases) == cases - 1; }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_QA_SANITIZE_BYTES_H_
