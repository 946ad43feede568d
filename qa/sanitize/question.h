// Questions to the library: shapes and an axis, from bytes.

#ifndef TF_CG_OPS_QA_SANITIZE_QUESTION_H_
#define TF_CG_OPS_QA_SANITIZE_QUESTION_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cc/lib/alignment.h"
#include "qa/sanitize/bytes.h"

namespace tf_cg_ops {

struct Question {
  OperandShapes shapes;
  Axis axis;
};

// Whether a tensor can have this shape: the rule of TensorFlow's TensorShape, which every kernel's operands have
// passed.
inline bool IsTensorShape(const Dims& dims) {
  __extension__ __int128 elements = 1;
  for (const int64_t dim : dims) {
    elements *= dim;
    if (dim < 0 || elements > std::numeric_limits<int64_t>::max()) return false;
  }
  return true;
}

// Any size from 0 on; most are small, or at the edges of what numbers hold.
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

// Makes the shapes that the op is for: a joint shape, of which each operand has a part. `size` gives its sizes.
template <typename Size>
Question MakeFittingQuestion(Bytes* bytes, int64_t max_rank, const Size& size) {
  Question question;
  const int64_t rank = bytes->Below(max_rank + 1);
  const int64_t extra = bytes->OneIn(3) ? bytes->Below(4) : 0;
  Dims joint, fx, gx, x;
  for (int64_t i = 0; i < extra + rank; ++i) joint.push_back(size(bytes));
  question.axis.all = bytes->OneIn(5);
  std::vector<bool> in_domain(extra + rank, false);
  for (int64_t i = extra; i < extra + rank; ++i) {
    in_domain[i] = question.axis.all || bytes->OneIn(3);
    if (in_domain[i] && !question.axis.all) {
      question.axis.dims.push_back(bytes->OneIn(2) ? i - extra : i - extra - rank);
    }
  }
  const bool gx_is_along_x = extra > 0 || bytes->OneIn(2);
  for (int64_t i = 0; i < extra + rank; ++i) {
    if (!in_domain[i]) fx.push_back(joint[i]);
    if (i >= extra) x.push_back(bytes->OneIn(4) ? 1 : joint[i]);
    if (gx_is_along_x || !in_domain[i]) gx.push_back(bytes->OneIn(4) ? 1 : joint[i]);
  }
  if (bytes->OneIn(6)) fx.clear();
  question.shapes = {fx, gx, x};
  return question;
}

// Spoils a question, as users do, and as an altered model may.
inline void Spoil(Bytes* bytes, Question* question) {
  for (int64_t faults = bytes->Below(4); faults > 0; --faults) {
    auto& shape = question->shapes[bytes->Below(kNumRoles)];
    const int64_t fault = bytes->Below(6);
    if (fault == 0) {
      question->axis.dims.push_back(bytes->OneIn(2) ? static_cast<int64_t>(bytes->Next(8)) : bytes->Below(9) - 4);
    } else if (fault == 1) {
      question->axis.all = !question->axis.all;
    } else if (!shape) {
      shape = Dims();
    } else if (fault == 2) {
      shape->insert(shape->begin() + bytes->Below(256) % (shape->size() + 1), AnySize(bytes));
    } else if (shape->empty() || fault == 3) {
      shape.reset();
    } else if (fault == 4) {
      shape->erase(shape->begin() + bytes->Below(256) % shape->size());
    } else {
      // Shape functions know some sizes only.
      (*shape)[bytes->Below(256) % shape->size()] = bytes->OneIn(2) ? kUnknownDim : AnySize(bytes);
    }
  }
}

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_QA_SANITIZE_QUESTION_H_
