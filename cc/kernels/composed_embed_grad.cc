#include "cc/kernels/composed_embed_grad.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cc/functions/function_builder.h"
#include "cc/lib/contraction_plan.h"
#include "cc/lib/messages.h"
#include "cc/lib/operand_names.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::AttrSlice;
using ::tensorflow::DataType;
using ::tensorflow::DataTypeString;
using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionDefLibrary;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::FunctionLibraryRuntime;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// The steps of a contraction of operands with equal ranks.
struct Steps {
  bool conjugate;
  bool sum;
  bool broadcast;
};

std::string ContractionName(DataType type, const Steps& steps) {
  return "tf_cg_ops_contract_" + DataTypeString(type) + (steps.conjugate ? "_conjugate" : "") +
         (steps.sum ? "_sum" : "") + (steps.broadcast ? "_broadcast" : "");
}

std::string ZerosName(DataType type) { return "tf_cg_ops_zeros_" + DataTypeString(type); }

// A function of lhs, rhs and, if needed, the reduction dimensions and the shape to broadcast to. These are int32:
// TensorFlow keeps int32 in host memory on every device, and the ops read them there.
FunctionDef Contraction(const ComposedTypes& types, const Steps& steps) {
  FunctionBuilder function;
  std::string lhs = function.Argument(types.operand), rhs = function.Argument(types.operand);
  if (steps.conjugate) rhs = function.Value("Conj", {rhs}, "output", {{"T", types.operand}});
  // As in the CPU kernel, products have the type of the sum, or their own type if there is no sum.
  const DataType product = steps.sum ? types.sum : types.operand;
  lhs = function.Cast(lhs, types.operand, product);
  rhs = function.Cast(rhs, types.operand, product);
  std::string value = function.Value("Mul", {lhs, rhs}, "z", {{"T", product}});
  if (steps.sum) {
    const std::string dimensions = function.Argument(tensorflow::DT_INT32);
    value = function.Value("Sum", {value, dimensions}, "output",
                           {{"T", types.sum}, {"Tidx", tensorflow::DT_INT32}, {"keep_dims", true}});
    value = function.Cast(value, types.sum, types.operand);
  }
  if (steps.broadcast) {
    const std::string shape = function.Argument(tensorflow::DT_INT32);
    value =
        function.Value("BroadcastTo", {value, shape}, "output", {{"T", types.operand}, {"Tidx", tensorflow::DT_INT32}});
  }
  function.Return(value, types.operand);
  return function.Build(ContractionName(types.operand, steps));
}

// A function of the shape.
FunctionDef Zeros(DataType type) {
  FunctionBuilder function;
  const std::string shape = function.Argument(tensorflow::DT_INT32);
  Tensor zero(type, TensorShape());
  std::memset(zero.data(), 0, zero.TotalBytes());
  const std::string constant = function.Value("Const", {}, "output", {{"dtype", type}, {"value", zero}});
  function.Return(
      function.Value("Fill", {shape, constant}, "output", {{"T", type}, {"index_type", tensorflow::DT_INT32}}), type);
  return function.Build(ZerosName(type));
}

FunctionDefLibrary AllFunctions() {
  FunctionDefLibrary library;
#define ADD_FUNCTIONS(T)                                                                          \
  for (const bool conjugate : {false, true}) {                                                    \
    for (const bool sum : {false, true}) {                                                        \
      for (const bool broadcast : {false, true}) {                                                \
        *library.add_function() = Contraction(ComposedTypesOf<T>(), {conjugate, sum, broadcast}); \
      }                                                                                           \
    }                                                                                             \
  }                                                                                               \
  *library.add_function() = Zeros(ComposedTypesOf<T>().operand);
  TF_CG_OPS_CALL_FOR_EACH_TYPE(ADD_FUNCTIONS)
#undef ADD_FUNCTIONS
  return library;
}

// The runtime caches functions by the address of their library, and reads the library again. So there is a single
// library, which is never deleted.
const FunctionLibraryDefinition& Library() {
  static const auto* library = new FunctionLibraryDefinition(tensorflow::OpRegistry::Global(), AllFunctions());
  return *library;
}

// Runs one of the functions on the context's device, in its step, and sets the output to the reshaped result.
absl::Status Run(OpKernelContext* context, const std::string& function, const std::vector<Tensor>& arguments,
                 const TensorShape& shape) {
  FunctionLibraryRuntime* const runtime = context->function_library();
  if (runtime == nullptr) return absl::FailedPreconditionError(NoFunctionRuntime(EmbedGradNames().api));
  FunctionLibraryRuntime::InstantiateOptions instantiate_options;
  instantiate_options.lib_def = &Library();
  FunctionLibraryRuntime::Handle handle;
  // The runtime caches the handle for all kernels.
  TF_RETURN_IF_ERROR(runtime->Instantiate(function, AttrSlice(), instantiate_options, &handle));
  std::function<void(std::function<void()>)> on_this_thread = [](std::function<void()> work) { work(); };
  FunctionLibraryRuntime::Options options(context->step_id());
  options.cancellation_manager = context->cancellation_manager();
  options.step_container = context->step_container();
  options.stats_collector = context->stats_collector();
  options.runner = &on_this_thread;
  options.run_all_kernels_inline = true;
  std::vector<Tensor> results;
  TF_RETURN_IF_ERROR(runtime->RunSync(options, handle, arguments, &results));
  Tensor out;
  if (results.size() != 1 || !out.CopyFrom(results[0], shape)) {
    return absl::InternalError(function + " must return a tensor of shape " + shape.DebugString());
  }
  context->set_output(0, out);
  return absl::OkStatus();
}

// The numbers as a vector; they must fit into int32.
Tensor Int32Vector(const Dims& numbers) {
  Tensor vector(tensorflow::DT_INT32, TensorShape({static_cast<int64_t>(numbers.size())}));
  std::copy(numbers.begin(), numbers.end(), vector.flat<int32_t>().data());
  return vector;
}

// Reshapes without a copy.
absl::Status Reshape(const Tensor& tensor, const Dims& dims, Tensor* reshaped) {
  TensorShape shape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(dims, &shape));
  return reshaped->CopyFrom(tensor, shape)
             ? absl::OkStatus()
             : absl::InternalError("an aligned shape must have the same number of elements");
}

}  // namespace

absl::Status ContractByBuiltInOps(OpKernelContext* context, const ComposedTypes& types,
                                  const GradAttributes& attributes, const EmbedGradShapes& shapes) {
  if (shapes.out.num_elements() == 0) {
    Tensor* out = nullptr;
    return context->allocate_output(0, shapes.out, &out);
  }
  const Role wrt = attributes.wrt;
  Steps steps = {wrt != kFx && tensorflow::DataTypeIsComplex(types.operand), false, false};
  if (shapes.all_equal && !attributes.zero_x) {
    return Run(context, ContractionName(types.operand, steps), {context->input(0), context->input(1)}, shapes.out);
  }
  const Dims out = shapes.all_equal ? ToDims(shapes.out) : shapes.alignment.operands[wrt];
  const bool fits =
      std::all_of(out.begin(), out.end(), [](int64_t dim) { return dim <= std::numeric_limits<int32_t>::max(); });
  if (attributes.zero_x) {
    if (!fits) return absl::InvalidArgumentError(TooLargeForBuiltInOps(EmbedGradNames().api, out));
    return Run(context, ZerosName(types.operand), {Int32Vector(out)}, shapes.out);
  }
  const Dims& lhs = shapes.alignment.operands[LhsRole(wrt)];
  const Dims& rhs = shapes.alignment.operands[RhsRole(wrt)];
  std::vector<Tensor> arguments(2);
  TF_RETURN_IF_ERROR(Reshape(context->input(0), lhs, &arguments[0]));
  TF_RETURN_IF_ERROR(Reshape(context->input(1), rhs, &arguments[1]));
  // An empty iteration space needs no special case, because TensorFlow's sum of nothing is zero too.
  const Dims& iteration_space = shapes.alignment.iteration_space;
  Dims reduction_dims;
  for (size_t i = 0; i < iteration_space.size(); ++i) {
    if (out[i] != iteration_space[i]) reduction_dims.push_back(static_cast<int64_t>(i));
    if (lhs[i] == 1 && rhs[i] == 1 && out[i] != 1) steps.broadcast = true;
  }
  steps.sum = !reduction_dims.empty();
  if (steps.sum) arguments.push_back(Int32Vector(reduction_dims));
  if (steps.broadcast) {
    if (!fits) return absl::InvalidArgumentError(TooLargeForBuiltInOps(EmbedGradNames().api, out));
    arguments.push_back(Int32Vector(out));
  }
  return Run(context, ContractionName(types.operand, steps), arguments, shapes.out);
}

}  // namespace tf_cg_ops
