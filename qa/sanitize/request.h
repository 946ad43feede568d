// Requests to the library, shapes and an axis, made from the bytes of a fuzzer or a random generator.

#ifndef TF_CG_OPS_QA_SANITIZE_REQUEST_H_
#define TF_CG_OPS_QA_SANITIZE_REQUEST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cc/lib/alignment.h"

namespace tf_cg_ops {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  // The next bytes as one number; zeros after the end.
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

struct Request {
  OperandShapes shapes;
  Axis axis;
};

// Whether a tensor can have this shape, by the rule of TensorFlow's TensorShape, which holds for the operands of every
// kernel.
inline bool IsTensorShape(const Dims& dims) {
  __extension__ __int128 elements = 1;
  for (const int64_t dim : dims) {
    elements *= dim;
    if (dim < 0 || elements > std::numeric_limits<int64_t>::max()) return false;
  }
  return true;
}

// Any size from 0 up; most are small or near the limits of integers.
inline int64_t AnySize(Bytes* bytes) {
  switch (bytes->Below(8)) {
    case 0:
      return int64_t{1} << bytes->Below(63);
    case 1:
      return std::numeric_limits<int64_t>::max() >> bytes->Below(63);
    case 2:
      return static_cast<int64_t>(bytes->Next(8) >> 1);
    case 3:
      return bytes->Below(40);
    default:
      return bytes->Below(5);
  }
}

// Makes valid shapes: an iteration space, of which each operand has some dimensions. `size` makes their sizes.
template <typename Size>
Request MakeValidRequest(Bytes* bytes, int64_t max_rank, const Size& size) {
  Request request;
  const int64_t rank = bytes->Below(max_rank + 1);
  const int64_t extra = bytes->OneIn(3) ? bytes->Below(4) : 0;
  Dims iteration_space, fx, gx, x;
  for (int64_t i = 0; i < extra + rank; ++i) iteration_space.push_back(size(bytes));
  request.axis.all = bytes->OneIn(5);
  std::vector<bool> is_event(extra + rank, false);
  for (int64_t i = extra; i < extra + rank; ++i) {
    is_event[i] = request.axis.all || bytes->OneIn(3);
    if (is_event[i] && !request.axis.all) {
      request.axis.dims.push_back(bytes->OneIn(2) ? i - extra : i - extra - rank);
    }
  }
  const bool gx_is_along_x = extra > 0 || bytes->OneIn(2);
  for (int64_t i = 0; i < extra + rank; ++i) {
    if (!is_event[i]) fx.push_back(iteration_space[i]);
    if (i >= extra) x.push_back(bytes->OneIn(4) ? 1 : iteration_space[i]);
    if (gx_is_along_x || !is_event[i]) gx.push_back(bytes->OneIn(4) ? 1 : iteration_space[i]);
  }
  if (bytes->OneIn(6)) fx.clear();
  request.shapes = {fx, gx, x};
  return request;
}

// Introduces errors into a request, as in user mistakes and in malformed models.
inline void Corrupt(Bytes* bytes, Request* request) {
  for (int64_t faults = bytes->Below(4); faults > 0; --faults) {
    auto& shape = request->shapes[bytes->Below(kNumRoles)];
    const int64_t fault = bytes->Below(6);
    if (fault == 0) {
      request->axis.dims.push_back(bytes->OneIn(2) ? static_cast<int64_t>(bytes->Next(8)) : bytes->Below(9) - 4);
    } else if (fault == 1) {
      request->axis.all = !request->axis.all;
    } else if (!shape) {
      shape = Dims();
    } else if (fault == 2) {
      shape->insert(shape->begin() + bytes->Below(256) % (shape->size() + 1), AnySize(bytes));
    } else if (shape->empty() || fault == 3) {
      shape.reset();
    } else if (fault == 4) {
      shape->erase(shape->begin() + bytes->Below(256) % shape->size());
    } else {
      // Shape functions see unknown sizes.
      (*shape)[bytes->Below(256) % shape->size()] = bytes->OneIn(2) ? kUnknownDim : AnySize(bytes);
    }
  }
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_QA_SANITIZE_REQUEST_H_
