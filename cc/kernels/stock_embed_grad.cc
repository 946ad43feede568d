#include "cc/kernels/stock_embed_grad.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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
using ::tensorflow::FunctionDefHelper;
using ::tensorflow::FunctionDefLibrary;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::FunctionLibraryRuntime;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// What is done with the product of the operands, which come with as many dimensions each.
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

// The operations of a function, each after those that it reads.
class Body {
 public:
  // Adds an operation and returns the reference to its output.
  std::string Add(const std::string& op, const std::vector<std::string>& inputs, const std::string& output,
                  const std::vector<std::pair<std::string, FunctionDefHelper::AttrValueWrapper>>& attributes) {
    FunctionDefHelper::Node& node = nodes_.emplace_back();
    const std::string name = "node_" + std::to_string(nodes_.size());
    node.ret = {name};
    node.op = op;
    node.arg = inputs;
    node.attr = attributes;
    return name + ":" + output + ":0";
  }

  std::string Cast(const std::string& value, DataType from, DataType to) {
    return from == to ? value : Add("Cast", {value}, "y", {{"SrcT", from}, {"DstT", to}});
  }

  FunctionDef Function(const std::string& name, const std::vector<std::string>& arguments, const std::string& result,
                       DataType type) const {
    return FunctionDefHelper::Create(name, arguments, {"out: " + DataTypeString(type)}, /*attr_def=*/{}, nodes_,
                                     {{"out", result}});
  }

 private:
  std::vector<FunctionDefHelper::Node> nodes_;
};

// A function of lhs, rhs, the dimensions to sum up and the shape to broadcast to, the last two where there are such
// steps. Its integers are of 32 bits: those are in the memory of the host on every device, where the operations that
// read them want them.
FunctionDef Contraction(const StockTypes& types, const Steps& steps) {
  Body body;
  const std::string type = DataTypeString(types.operand);
  std::vector<std::string> arguments = {"lhs: " + type, "rhs: " + type};
  std::string lhs = "lhs", rhs = "rhs";
  if (steps.conjugate) rhs = body.Add("Conj", {rhs}, "output", {{"T", types.operand}});
  // The products of a sum are taken in its type, as by the kernel of the CPU; others are rounded once in their own.
  const DataType product = steps.sum ? types.sum : types.operand;
  lhs = body.Cast(lhs, types.operand, product);
  rhs = body.Cast(rhs, types.operand, product);
  std::string value = body.Add("Mul", {lhs, rhs}, "z", {{"T", product}});
  if (steps.sum) {
    arguments.push_back("summed: int32");
    value = body.Add("Sum", {value, "summed"}, "output",
                     {{"T", types.sum}, {"Tidx", tensorflow::DT_INT32}, {"keep_dims", true}});
    value = body.Cast(value, types.sum, types.operand);
  }
  if (steps.broadcast) {
    arguments.push_back("shape: int32");
    value = body.Add("BroadcastTo", {value, "shape"}, "output", {{"T", types.operand}, {"Tidx", tensorflow::DT_INT32}});
  }
  return body.Function(ContractionName(types.operand, steps), arguments, value, types.operand);
}

// A function of the shape.
FunctionDef Zeros(DataType type) {
  Body body;
  Tensor zero(type, TensorShape());
  std::memset(zero.data(), 0, zero.TotalBytes());
  const std::string constant = body.Add("Const", {}, "output", {{"dtype", type}, {"value", zero}});
  const std::string value =
      body.Add("Fill", {"shape", constant}, "output", {{"T", type}, {"index_type", tensorflow::DT_INT32}});
  return body.Function(ZerosName(type), {"shape: int32"}, value, type);
}

FunctionDefLibrary AllFunctions() {
  FunctionDefLibrary library;
#define ADD_FUNCTIONS(T)                                                                       \
  for (const bool conjugate : {false, true}) {                                                 \
    for (const bool sum : {false, true}) {                                                     \
      for (const bool broadcast : {false, true}) {                                             \
        *library.add_function() = Contraction(StockTypesOf<T>(), {conjugate, sum, broadcast}); \
      }                                                                                        \
    }                                                                                          \
  }                                                                                            \
  *library.add_function() = Zeros(StockTypesOf<T>().operand);
  TF_CG_OPS_CALL_FOR_EACH_TYPE(ADD_FUNCTIONS)
#undef ADD_FUNCTIONS
  return library;
}

// The runtime keeps what it made of a function by the address of the library that has it, and looks there again: so
// there is one library, and it is never deleted.
const FunctionLibraryDefinition& Library() {
  static const auto* library = new FunctionLibraryDefinition(tensorflow::OpRegistry::Global(), AllFunctions());
  return *library;
}

// Runs one of the functions as the context's device and step, and sets the output to its result in another shape.
absl::Status Run(OpKernelContext* context, const std::string& function, const std::vector<Tensor>& arguments,
                 const TensorShape& shape) {
  FunctionLibraryRuntime* const runtime = context->function_library();
  if (runtime == nullptr) return absl::FailedPreconditionError(NoFunctionsHere(EmbedGradNames().api));
  FunctionLibraryRuntime::InstantiateOptions how;
  how.lib_def = &Library();
  FunctionLibraryRuntime::Handle handle;
  // Only the first time is expensive; the runtime remembers it for every kernel.
  TF_RETURN_IF_ERROR(runtime->Instantiate(function, AttrSlice(), how, &handle));
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
    return absl::InternalError(function + " returned no tensor of the shape " + shape.DebugString());
  }
  context->set_output(0, out);
  return absl::OkStatus();
}

// The numbers as a vector of int32, which the caller knows to hold them.
Tensor VectorOf(const Dims& numbers) {
  Tensor vector(tensorflow::DT_INT32, TensorShape({static_cast<int64_t>(numbers.size())}));
  std::copy(numbers.begin(), numbers.end(), vector.flat<int32_t>().data());
  return vector;
}

// The tensor in another shape, without a copy.
absl::Status Reshape(const Tensor& tensor, const Dims& dims, Tensor* reshaped) {
  TensorShape shape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(dims, &shape));
  return reshaped->CopyFrom(tensor, shape) ? absl::OkStatus() : absl::InternalError("an aligned shape has other sizes");
}

}  // namespace

absl::Status ContractByStockOps(OpKernelContext* context, const StockTypes& types, const GradAttributes& attributes,
                                const EmbedGradShapes& shapes) {
  if (shapes.out.num_elements() == 0) {
    Tensor* out = nullptr;
    return context->allocate_output(0, shapes.out, &out);
  }
  const Role wrt = attributes.wrt;
  Steps steps = {wrt != kFx && tensorflow::DataTypeIsComplex(types.operand), false, false};
  if (shapes.are_alike && !attributes.zero_x) {
    return Run(context, ContractionName(types.operand, steps), {context->input(0), context->input(1)}, shapes.out);
  }
  const Dims out = shapes.are_alike ? ToDims(shapes.out) : shapes.alignment.operands[wrt];
  const bool fits =
      std::all_of(out.begin(), out.end(), [](int64_t dim) { return dim <= std::numeric_limits<int32_t>::max(); });
  if (attributes.zero_x) {
    if (!fits) return absl::InvalidArgumentError(TooLargeForStockOps(EmbedGradNames().api, out));
    return Run(context, ZerosName(types.operand), {VectorOf(out)}, shapes.out);
  }
  const Dims& lhs = shapes.alignment.operands[wrt == kFx ? kGx : kFx];
  const Dims& rhs = shapes.alignment.operands[wrt == kX ? kGx : kX];
  std::vector<Tensor> arguments(2);
  TF_RETURN_IF_ERROR(Reshape(context->input(0), lhs, &arguments[0]));
  TF_RETURN_IF_ERROR(Reshape(context->input(1), rhs, &arguments[1]));
  // Of no products TensorFlow's sum is zero, too.
  const Dims& joint = shapes.alignment.joint;
  Dims summed;
  for (size_t i = 0; i < joint.size(); ++i) {
    if (out[i] != joint[i]) summed.push_back(static_cast<int64_t>(i));
    if (lhs[i] == 1 && rhs[i] == 1 && out[i] != 1) steps.broadcast = true;
  }
  steps.sum = !summed.empty();
  if (steps.sum) arguments.push_back(VectorOf(summed));
  if (steps.broadcast) {
    if (!fits) return absl::InvalidArgumentError(TooLargeForStockOps(EmbedGradNames().api, out));
    arguments.push_back(VectorOf(out));
  }
  return Run(context, ContractionName(types.operand, steps), arguments, shapes.out);
}

}  // namespace tf_cg_ops
