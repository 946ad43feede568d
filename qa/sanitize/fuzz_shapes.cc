// libFuzzer's target for the arithmetic on shapes and strides: the alignment of any shapes, the plans for the CPU, and
// their layouts on a GPU. The sanitizers detect overflows and accesses out of bounds; this file compares with the
// reference.

#include <cstdint>
#include <limits>
#include <string>

#include "cc/lib/alignment.h"
#include "cc/lib/contraction_plan.h"
#include "cc/lib/operand_names.h"
#include "cuda/indexing.h"
#include "cuda/schedule.h"
#include "qa/sanitize/reference.h"
#include "qa/sanitize/request.h"

namespace tf_cg_ops {
namespace {

// The most products that are compared one by one.
constexpr int64_t kFew = 512;

// The last offset in the loops.
Wide LastOffset(const ContractionPlan& plan, int64_t Loop::*step) {
  Wide last = 0;
  for (const auto* loops : {&plan.output_loops, &plan.reduction_loops}) {
    for (const Loop& loop : *loops) last += (Wide{loop.size} - 1) * (loop.*step);
  }
  return last;
}

void CheckPlan(const ContractionPlan& plan, const Reversed& reversed, Role wrt) {
  const Dims& out = reversed.operands[wrt];
  TF_CG_OPS_CHECK(!plan.output_loops.empty());
  TF_CG_OPS_CHECK(plan.output_size == CountElements(out));
  const Wide total = CountElements(reversed.iteration_space);
  if (total == 0) {
    TF_CG_OPS_CHECK(plan.reduction_size == 0);
    return;
  }
  TF_CG_OPS_CHECK(Wide{plan.output_size} * plan.reduction_size == total);
  TF_CG_OPS_CHECK(LastOffset(plan, &Loop::lhs) == CountElements(reversed.operands[LhsRole(wrt)]) - 1);
  TF_CG_OPS_CHECK(LastOffset(plan, &Loop::rhs) == CountElements(reversed.operands[RhsRole(wrt)]) - 1);
  TF_CG_OPS_CHECK(LastOffset(plan, &Loop::out) == CountElements(out) - 1);
  if (total > kFew) return;

  std::vector<Product> products = {{0, 0, 0}};
  for (const auto* loops : {&plan.output_loops, &plan.reduction_loops}) {
    for (const Loop& loop : *loops) {
      std::vector<Product> outer;
      outer.swap(products);
      for (const auto& [o, l, r] : outer) {
        for (int64_t i = 0; i < loop.size; ++i) {
          products.emplace_back(o + i * loop.out, l + i * loop.lhs, r + i * loop.rhs);
        }
      }
    }
  }
  // The loops go through out in memory order.
  for (size_t i = 0; i < products.size(); ++i) {
    TF_CG_OPS_CHECK(std::get<0>(products[i]) == static_cast<int64_t>(i) / plan.reduction_size);
  }
  for (const auto& [o, l, r] : products) {
    TF_CG_OPS_CHECK(!plan.LhsIsElementwise() || o == l);
    TF_CG_OPS_CHECK(!plan.RhsIsElementwise() || o == r);
  }
  std::sort(products.begin(), products.end());
  TF_CG_OPS_CHECK(products == AllProducts(reversed, wrt));
}

// Addresses of the operands, which are never dereferenced.
struct Addresses {
  uintptr_t lhs, rhs, out;
};

bool Sums(const cuda::Schedule& schedule) {
  return schedule.kernel == cuda::Kernel::kSumRows || schedule.kernel == cuda::Kernel::kSumColumns;
}

// Enumerates the products as the kernels do, vector by vector. Checks that 32-bit indices give the same offsets.
std::vector<Product> WalkLayout(const cuda::Schedule& schedule, int64_t vector_size, int bytes,
                                const Addresses& addresses) {
  const cuda::Layout<int64_t>& layout = schedule.layout;
  const cuda::Layout<uint32_t> narrowed =
      schedule.has_narrow_indices ? cuda::Narrowed(layout) : cuda::Layout<uint32_t>();
  const bool rows = schedule.kernel == cuda::Kernel::kSumRows;
  const bool is_flat = schedule.kernel == cuda::Kernel::kMultiplyFlat;
  const bool swaps = schedule.swaps_operands;
  const uintptr_t lhs = swaps ? addresses.rhs : addresses.lhs, rhs = swaps ? addresses.lhs : addresses.rhs;
  const auto begins_vector = [&](uintptr_t data, int64_t offset) {
    return (data + offset * bytes) % (vector_size * bytes) == 0;
  };
  std::vector<Product> products;
  for (int64_t output = 0; output < layout.output_items; ++output) {
    for (int64_t reduction = 0; reduction < layout.reduction_items; ++reduction) {
      const auto a = cuda::OffsetsOf(output, layout.steps, layout.output_loops);
      const auto b = cuda::OffsetsOf(reduction, layout.steps + layout.output_loops, layout.reduction_loops);
      if (schedule.has_narrow_indices) {
        const auto c = cuda::OffsetsOf(static_cast<uint32_t>(output), narrowed.steps, narrowed.output_loops);
        const auto d = cuda::OffsetsOf(static_cast<uint32_t>(reduction), narrowed.steps + narrowed.output_loops,
                                       narrowed.reduction_loops);
        TF_CG_OPS_CHECK(a.lhs == c.lhs && a.rhs == c.rhs && a.out == c.out && a.innermost == c.innermost);
        TF_CG_OPS_CHECK(b.lhs == d.lhs && b.rhs == d.rhs && b.out == d.out && b.innermost == d.innermost);
      }
      const int64_t l = a.lhs + b.lhs, r = a.rhs + b.rhs, o = a.out + b.out;
      if (schedule.is_vectorized && !is_flat) {
        TF_CG_OPS_CHECK((layout.lhs_step == 1 || vector_size == 1) && begins_vector(lhs, l));
        TF_CG_OPS_CHECK(!schedule.rhs_moves || begins_vector(rhs, r));
        TF_CG_OPS_CHECK(Sums(schedule) || begins_vector(addresses.out, o));
      }
      const int64_t first = (rows ? b : a).innermost * vector_size;
      TF_CG_OPS_CHECK(first < layout.innermost_size);
      for (int64_t i = 0; i < vector_size && first + i < layout.innermost_size; ++i) {
        const int64_t of_lhs = l + i * layout.lhs_step, of_rhs = r + i * layout.rhs_step;
        products.emplace_back(o + i * !rows, swaps ? of_rhs : of_lhs, swaps ? of_lhs : of_rhs);
      }
    }
  }
  return products;
}

// Checks that the parts cover all work, and that the blocks cover all parts and each have work.
void CheckDistribution(const cuda::Schedule& schedule) {
  const cuda::Layout<int64_t>& layout = schedule.layout;
  const bool rows = schedule.kernel == cuda::Kernel::kSumRows;
  if (!Sums(schedule)) {
    TF_CG_OPS_CHECK(layout.parts == 1 && layout.reduction_items == 1);
    const bool is_cut = schedule.kernel == cuda::Kernel::kMultiplySegments;
    const int64_t items = is_cut ? cuda::kThreads / cuda::kWarp : cuda::kThreads * cuda::kUnroll;
    TF_CG_OPS_CHECK(Wide{schedule.blocks} * items >= layout.output_items);
    TF_CG_OPS_CHECK((Wide{schedule.blocks} - 1) * items < layout.output_items);
    return;
  }
  TF_CG_OPS_CHECK(layout.parts >= 1 && layout.part_items >= 1);
  TF_CG_OPS_CHECK(Wide{layout.parts} * layout.part_items >= layout.reduction_items);
  TF_CG_OPS_CHECK((Wide{layout.parts} - 1) * layout.part_items < layout.reduction_items);
  TF_CG_OPS_CHECK(layout.lanes >= 1 && layout.lanes <= cuda::kThreads && layout.lanes == 1 << layout.lane_bits);
  // Partial sums take up to 16 bytes each.
  const Wide scratch = layout.parts > 1 ? Wide{layout.outputs} * layout.parts * 16 : 0;
  TF_CG_OPS_CHECK(scratch <= std::numeric_limits<int64_t>::max());
  if (rows) {
    const int64_t groups = cuda::kThreads / layout.lanes;
    TF_CG_OPS_CHECK(Wide{schedule.blocks} * groups >= Wide{layout.outputs} * layout.parts);
    TF_CG_OPS_CHECK((Wide{schedule.blocks} - 1) * groups < Wide{layout.outputs} * layout.parts);
  } else {
    const int64_t tiles = schedule.blocks / layout.parts;
    TF_CG_OPS_CHECK(schedule.blocks % layout.parts == 0);
    TF_CG_OPS_CHECK(Wide{tiles} * layout.lanes >= layout.output_items);
    TF_CG_OPS_CHECK((Wide{tiles} - 1) * layout.lanes < layout.output_items);
  }
}

void CheckSchedule(const ContractionPlan& plan, const Reversed& reversed, Role wrt, int bytes, uint64_t offsets) {
  using cuda::Kernel;
  const auto address = [&](int i) { return uintptr_t{4096} + ((offsets >> (4 * i)) & 15) * bytes; };
  const Addresses addresses = {address(0), address(1), address(2)};
  const auto pointer = [](uintptr_t at) { return reinterpret_cast<const void*>(at); };
  const cuda::Schedule schedule = cuda::MakeSchedule(plan, bytes, /*conjugate=*/false, pointer(addresses.lhs),
                                                     pointer(addresses.rhs), pointer(addresses.out));
  TF_CG_OPS_CHECK((schedule.kernel == Kernel::kNone) == (plan.output_size == 0));
  if (plan.output_size == 0) return;
  TF_CG_OPS_CHECK((schedule.kernel == Kernel::kZero) == (plan.reduction_size == 0));
  if (plan.reduction_size == 0) return;
  // No shape has too many loops, since each loop has at least two trips.
  TF_CG_OPS_CHECK(schedule.kernel != Kernel::kTooManyLoops);
  TF_CG_OPS_CHECK(Sums(schedule) == !plan.reduction_loops.empty());
  TF_CG_OPS_CHECK(schedule.layout.outputs == plan.output_size);
  CheckDistribution(schedule);

  if (CountElements(reversed.iteration_space) > kFew) return;
  int64_t vector_size = cuda::kVectorBytes / bytes;
  if (schedule.kernel == Kernel::kMultiplyScalar) vector_size = 1;
  if (schedule.kernel == Kernel::kMultiplySegments) vector_size = cuda::SegmentSize(bytes);
  std::vector<Product> products = WalkLayout(schedule, vector_size, bytes, addresses);
  std::sort(products.begin(), products.end());
  TF_CG_OPS_CHECK(products == AllProducts(reversed, wrt));
}

// The alignment, from its last dimension to its first.
Reversed Reverse(const Alignment& alignment) {
  Reversed reversed;
  reversed.iteration_space.assign(alignment.iteration_space.rbegin(), alignment.iteration_space.rend());
  for (int role = 0; role < kNumRoles; ++role) {
    const Dims& dims = alignment.operands[role];
    reversed.operands[role].assign(dims.rbegin(), dims.rend());
  }
  return reversed;
}

void Run(Bytes* bytes) {
  const int64_t max_rank = bytes->OneIn(8) ? 70 : 12;
  const bool small = bytes->OneIn(2);
  Request request = MakeValidRequest(bytes, max_rank, [small](Bytes* from) {
    return small ? from->Below(4) + (from->OneIn(16) ? 15 : 0) : AnySize(from);
  });
  if (bytes->OneIn(2)) Corrupt(bytes, &request);

  const std::string unfilled = Align(request.shapes, request.axis, EmbedGradNames(), /*alignment=*/nullptr);
  Alignment alignment;
  const std::string error = Align(request.shapes, request.axis, EmbedGradNames(), &alignment);
  TF_CG_OPS_CHECK(error == unfilled);
  TF_CG_OPS_CHECK(error.empty() || error.find(" must ") < error.find(", got "));
  for (const auto& shape : request.shapes) {
    if (!shape) return;
  }
  Reversed reversed;
  TF_CG_OPS_CHECK(error.empty() == Fits(request, &reversed));
  if (!error.empty()) return;
  const Reversed found = Reverse(alignment);
  TF_CG_OPS_CHECK(found.iteration_space == reversed.iteration_space && found.operands == reversed.operands);
  for (const auto& shape : request.shapes) {
    if (!IsTensorShape(*shape)) return;
  }
  const uint64_t offsets = bytes->OneIn(2) ? bytes->Next(2) : 0;
  const int element_bytes = 2 << bytes->Below(4);
  for (const Role wrt : {kFx, kGx, kX}) {
    const ContractionPlan plan = PlanContraction(alignment, wrt);
    CheckPlan(plan, reversed, wrt);
    CheckSchedule(plan, reversed, wrt, element_bytes, offsets);
  }
}

}  // namespace
}  // namespace tf_cg_ops

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_cg_ops::Bytes bytes(data, size);
  tf_cg_ops::Run(&bytes);
  return 0;
}
