// Runs the arithmetic of cc/lib under a sanitizer, on heap memory of exactly the operands' sizes, and compares with a
// sum in double: contract SECONDS SEED THREADS. The requests are random, with every element type, instruction set and
// operand to differentiate with respect to. With THREADS above 1, three calls run at once on the same operands, and
// each is cut into up to so many pieces, each in a thread of its own.

#include <chrono>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cc/lib/contraction.h"
#include "cc/lib/operand_names.h"
#include "qa/sanitize/reference.h"
#include "qa/sanitize/request.h"

namespace tf_cg_ops {
namespace {

// Large enough for some requests to cut their work into blocks.
constexpr int64_t kMaxProducts = 1 << 18;

// Does the work in pieces: one after the other, or each in a thread of its own.
ParallelFor InPieces(bool in_threads, int64_t pieces) {
  return [in_threads, pieces](int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& work) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t begin = total * i / pieces, end = total * (i + 1) / pieces;
      if (begin == end) continue;
      in_threads ? void(threads.emplace_back(work, begin, end)) : work(begin, end);
    }
    for (std::thread& thread : threads) thread.join();
  };
}

// Small integers: all their products and sums are exact until they are rounded to the element type.
template <typename T>
void Set(int number, T* element) {
  *element = static_cast<T>(number);
}
void Set(int number, BFloat16* element) {
  const auto as_float = static_cast<float>(number);
  uint32_t bits;
  std::memcpy(&bits, &as_float, sizeof(bits));
  element->bits = static_cast<uint16_t>(bits >> 16);
}
void Set(int number, Half* element) {
  constexpr uint16_t kZeroToFour[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400};
  element->bits = static_cast<uint16_t>(kZeroToFour[std::abs(number)] | (number < 0 ? 0x8000 : 0));
}
template <typename R>
void Set(int number, std::complex<R>* element) {
  // The imaginary part differs from the real one.
  *element = {static_cast<R>(number), static_cast<R>((number * 3 + 7) % 5 - 2)};
}

template <typename T>
std::complex<double> Value(const T& element) {
  return element;
}
std::complex<double> Value(BFloat16 element) {
  const uint32_t bits = uint32_t{element.bits} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
std::complex<double> Value(Half element) {
  const int exponent = element.bits >> 10 & 31, fraction = element.bits & 1023;
  const double size =
      exponent == 31 ? INFINITY : std::ldexp(exponent == 0 ? fraction : 1024 + fraction, std::max(exponent, 1) - 25);
  return element.bits & 0x8000 ? -size : size;
}

// Half a unit in the last place.
template <typename T>
constexpr double kRounding = 0;
template <>
constexpr double kRounding<Half> = 1.0 / 2048;
template <>
constexpr double kRounding<BFloat16> = 1.0 / 256;

struct Work {
  const ContractionPlan& plan;
  const std::vector<Product>& products;
  bool conjugate;
  int64_t lhs_size, rhs_size;
};

template <typename T>
void Compute(const Work& work, InstructionSet instruction_set, int calls, int64_t pieces, std::mt19937_64* random) {
  // Exactly the operands' sizes, so that the sanitizer detects accesses out of bounds.
  const std::unique_ptr<T[]> lhs(new T[work.lhs_size]), rhs(new T[work.rhs_size]);
  for (int64_t i = 0; i < work.lhs_size; ++i) Set(static_cast<int>((*random)() % 5) - 2, &lhs[i]);
  for (int64_t i = 0; i < work.rhs_size; ++i) Set(static_cast<int>((*random)() % 5) - 2, &rhs[i]);
  const int64_t size = work.plan.output_size;
  std::vector<std::complex<double>> expected(size);
  for (const auto& [o, l, r] : work.products) {
    expected[o] += Value(lhs[l]) * (work.conjugate ? std::conj(Value(rhs[r])) : Value(rhs[r]));
  }
  const auto call = [&] {
    const std::unique_ptr<T[]> out(new T[size]);
    Contract(work.plan, work.conjugate, lhs.get(), rhs.get(), out.get(), instruction_set, InPieces(calls > 1, pieces));
    for (int64_t i = 0; i < size; ++i) {
      TF_CG_OPS_CHECK(std::abs(Value(out[i]) - expected[i]) <= kRounding<T> * std::abs(expected[i]));
    }
  };
  std::vector<std::thread> callers;
  for (int i = 1; i < calls; ++i) callers.emplace_back(call);
  call();
  for (std::thread& caller : callers) caller.join();
}

// Runs one request, made from the bytes, and returns the number of its products.
int64_t Run(Bytes* bytes, std::mt19937_64* random, int threads) {
  const int64_t largest = bytes->OneIn(4) ? 256 : 24;
  const Request request =
      MakeValidRequest(bytes, 5, [largest](Bytes* from) { return from->Below(from->OneIn(3) ? largest : 5); });
  Alignment alignment;
  Reversed reversed;
  const std::string error = Align(request.shapes, request.axis, EmbedGradNames(), &alignment);
  TF_CG_OPS_CHECK(error.empty() == Fits(request, &reversed));
  if (!error.empty() || CountElements(reversed.iteration_space) > kMaxProducts) return 0;
  const auto role = static_cast<Role>(bytes->Below(kNumRoles));
  const Dims& lhs = reversed.operands[LhsRole(role)];
  const Dims& rhs = reversed.operands[RhsRole(role)];
  // An operand of an empty iteration space may still have many elements.
  if (std::max({CountElements(lhs), CountElements(rhs), CountElements(reversed.operands[role])}) > kMaxProducts) {
    return 0;
  }
  const ContractionPlan plan = PlanContraction(alignment, role);
  const std::vector<Product> products = AllProducts(reversed, role);
  const Work work = {plan, products, role != kFx, static_cast<int64_t>(CountElements(lhs)),
                     static_cast<int64_t>(CountElements(rhs))};
  const auto instruction_set = static_cast<InstructionSet>(bytes->Below(static_cast<int>(BestInstructionSet()) + 1));
  const int64_t pieces = 1 + bytes->Below(threads > 1 ? threads : 4);
  const int calls = threads > 1 ? 3 : 1;
  using Computation = void (*)(const Work&, InstructionSet, int, int64_t, std::mt19937_64*);
  constexpr Computation kComputations[] = {Compute<Half>,
                                           Compute<BFloat16>,
                                           Compute<float>,
                                           Compute<double>,
                                           Compute<std::complex<float>>,
                                           Compute<std::complex<double>>};
  kComputations[bytes->Below(6)](work, instruction_set, calls, pieces, random);
  return calls * static_cast<int64_t>(products.size());
}

}  // namespace
}  // namespace tf_cg_ops

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: contract SECONDS SEED THREADS\n");
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(std::atof(argv[1]));
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  const int threads = std::atoi(argv[3]);
  int64_t runs = 0, products = 0;
  for (; std::chrono::steady_clock::now() - start < limit; ++runs) {
    std::vector<uint8_t> data(64);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    tf_cg_ops::Bytes bytes(data.data(), data.size());
    products += tf_cg_ops::Run(&bytes, &random, threads);
  }
  std::printf("%lld runs, %lld products\n", static_cast<long long>(runs), static_cast<long long>(products));
  return 0;
}
