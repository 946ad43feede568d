#include "cc/gradients/split_function.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "cc/gradients/flat_function.h"
#include "cc/gradients/gradient_inputs.h"
#include "cc/lib/messages.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeVector;
using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::NodeDef;
using ::tensorflow::OpDef;

// Stateful ops that give the same value once more. What a gradient needs of the forward pass is computed again.
const std::set<std::string>& Repeatable() {
  static const auto* ops = new std::set<std::string>{"ReadVariableOp", "ResourceGather", "ResourceGatherNd",
                                                     "VarHandleOp",    "HashTableV2",    "LookupTableFindV2"};
  return *ops;
}

class Splitter {
 public:
  Splitter(const FlatFunction& flat, const DataTypeVector& gradient_types, FunctionLibraryDefinition* library)
      : flat_(flat), gradient_types_(gradient_types), library_(library) {}

  absl::Status Split(const std::string& function, std::string* split, bool* is_stateful) {
    std::vector<std::string> returned = flat_.results();
    for (std::string& result : returned) TF_RETURN_IF_ERROR(MakeLive(/*flows=*/true, &result));
    if (!has_custom_gradient_) return absl::OkStatus();
    for (const auto& [reference, name] : given_) TF_RETURN_IF_ERROR(Compute(reference));
    TF_RETURN_IF_ERROR(RefuseWhatCannotBeRepeated(function, is_stateful));
    const std::string live = library_->UniqueFunctionName("tf_cg_ops_differentiated");
    TF_RETURN_IF_ERROR(AddLive(live, returned));
    *split = library_->UniqueFunctionName("tf_cg_ops_gradient");
    return AddGradient(*split, live);
  }

 private:
  bool IsArgument(const std::string& reference) const { return flat_.Find(reference) == nullptr; }

  // The position of the argument whose variable the reference reads; -1 if it does not.
  int VariableReadBy(const std::string& reference) const {
    const NodeDef* node = flat_.Find(reference);
    if (node == nullptr || node->op() != "ReadVariableOp") return -1;
    for (size_t i = 0; i < gradient_types_.size(); ++i) {
      if (node->input(0) == FlatFunction::ArgumentName(i)) return i;
    }
    return -1;
  }

  // Whether a gradient of it is asked for: it is computed from the function's arguments by what is live.
  bool DependsOnInput(const std::string& reference) const {
    const NodeDef* node = flat_.Find(reference);
    if (node == nullptr) return true;
    if (const int variable = VariableReadBy(reference); variable >= 0) return values_of_.count(variable) > 0;
    return dependent_.count(node->name()) > 0;
  }

  // Puts what computes the reference into the differentiated function, up to where no gradient flows: the values there
  // are given to it, by another reference. So are the values of variables, since TensorFlow can neither differentiate
  // two reads of one nor those that are not float32.
  absl::Status MakeLive(bool flows, std::string* reference) {
    if (IsArgument(*reference)) {
      live_arguments_.insert(*reference);
      return absl::OkStatus();
    }
    const int variable = VariableReadBy(*reference);
    if (!flows || variable >= 0) {
      const auto [at, is_new] = given_.emplace(*reference, "given_" + std::to_string(given_.size()));
      if (is_new) TF_RETURN_IF_ERROR(flat_.TypeOf(*reference, &given_types_[at->second]));
      if (flows) values_of_[variable].insert(at->second);
      *reference = at->second;
      return absl::OkStatus();
    }
    const NodeDef& node = *flat_.Find(*reference);
    if (!live_.emplace(node.name(), node).second) return absl::OkStatus();
    std::vector<bool> has_gradient;
    TF_RETURN_IF_ERROR(InputsWithGradients(node.op(), node, node.input_size(), &has_gradient));
    has_custom_gradient_ |= node.op().rfind("CustomGradient", 0) == 0;
    for (int i = 0; i < node.input_size(); ++i) {
      std::string input = node.input(i);
      TF_RETURN_IF_ERROR(MakeLive(has_gradient[i], &input));
      live_[node.name()].set_input(i, input);
      if (has_gradient[i] && DependsOnInput(node.input(i))) dependent_.insert(node.name());
    }
    // TensorFlow says the same while it differentiates, but not always: it may try again without end.
    tensorflow::gradient::Creator creator;
    if (dependent_.count(node.name()) > 0) return tensorflow::gradient::GetOpGradientCreator(node.op(), &creator);
    return absl::OkStatus();
  }

  // Puts what computes the reference into the function that is called.
  absl::Status Compute(const std::string& reference) {
    const NodeDef* node = flat_.Find(reference);
    if (node == nullptr || !computed_.insert(node->name()).second) return absl::OkStatus();
    for (const std::string& input : node->input()) TF_RETURN_IF_ERROR(Compute(input));
    return absl::OkStatus();
  }

  absl::Status RefuseWhatCannotBeRepeated(const std::string& function, bool* is_stateful) const {
    std::set<std::string> visited;
    *is_stateful = false;
    for (const auto& [name, node] : flat_.nodes()) {
      const bool is_used = live_.count(name) > 0 || computed_.count(name) > 0;
      if (!CanBeRepeated(node, is_used, &visited)) {
        return absl::UnimplementedError(CannotBeRepeated(function, "'" + name + "' (" + node.op() + ")"));
      }
      *is_stateful |= is_used && IsStateful(node);
    }
    return absl::OkStatus();
  }

  bool IsStateful(const NodeDef& node) const {
    const OpDef* op;
    return library_->LookUpOpDef(node.op(), &op).ok() && op->is_stateful();
  }

  // Whether the node gives the same value again, with all that its functions hold, or is not needed.
  bool CanBeRepeated(const NodeDef& node, bool is_used, std::set<std::string>* visited) const {
    if (!IsStateful(node) || Repeatable().count(node.op()) > 0) return true;
    // What is assigned may be read before or after that.
    if (node.op().find("Assign") != std::string::npos || node.op().rfind("ResourceApply", 0) == 0 ||
        node.op().rfind("ResourceScatter", 0) == 0) {
      return false;
    }
    bool has_functions = false;
    for (const auto& [name, value] : node.attr()) {
      std::vector<std::string> called;
      if (value.has_func()) called.push_back(value.func().name());
      for (const auto& one : value.list().func()) called.push_back(one.name());
      for (const std::string& function : called) {
        has_functions = true;
        const auto record = library_->FindRecord(function);
        if (record == nullptr || !visited->insert(function).second) continue;
        for (const NodeDef& inner : record->fdef().node_def()) {
          if (!CanBeRepeated(inner, is_used, visited)) return false;
        }
      }
    }
    return has_functions || !is_used;
  }

  // The function that is differentiated: from the live arguments and the given values to the results.
  absl::Status AddLive(const std::string& name, const std::vector<std::string>& returned) {
    FunctionDef function;
    function.mutable_signature()->set_name(name);
    for (size_t i = 0; i < flat_.argument_types().size(); ++i) {
      if (live_arguments_.count(FlatFunction::ArgumentName(i)) > 0)
        AddArgument(FlatFunction::ArgumentName(i), flat_.argument_types()[i], &function);
    }
    for (const auto& [given, type] : given_types_) AddArgument(given, type, &function);
    for (const auto& [node_name, node] : live_) *function.add_node_def() = node;
    for (size_t i = 0; i < returned.size(); ++i) {
      TF_RETURN_IF_ERROR(flat_.TypeOf(flat_.results()[i], &result_types_.emplace_back()));
      AddResult(returned[i], result_types_.back(), &function);
    }
    return library_->AddFunctionDef(std::move(function));
  }

  // The function that is called: computes the given values and differentiates.
  absl::Status AddGradient(const std::string& name, const std::string& live) {
    FunctionDef function;
    function.mutable_signature()->set_name(name);
    const DataTypeVector& types = flat_.argument_types();
    for (size_t i = 0; i < types.size(); ++i) AddArgument(FlatFunction::ArgumentName(i), types[i], &function);
    for (size_t i = 0; i < result_types_.size(); ++i) {
      AddArgument("upstream_" + std::to_string(i), result_types_[i], &function);
    }
    for (const std::string& computed : computed_) *function.add_node_def() = flat_.nodes().at(computed);

    NodeDef gradient;
    gradient.set_name("tf_cg_ops_gradient");
    gradient.set_op("SymbolicGradient");
    DataTypeVector in_types, out_types;
    std::vector<std::string> found(types.size());
    for (size_t i = 0; i < types.size(); ++i) {
      if (live_arguments_.count(FlatFunction::ArgumentName(i)) == 0) continue;
      found[i] = gradient.name() + ":output:" + std::to_string(out_types.size());
      gradient.add_input(FlatFunction::ArgumentName(i));
      in_types.push_back(types[i]);
      out_types.push_back(FloatIfResource(gradient_types_[i]));
    }
    std::map<std::string, std::string> gradient_of_given;
    for (const auto& [given, type] : given_types_) {
      for (const auto& [reference, given_name] : given_) {
        if (given_name == given) gradient.add_input(reference);
      }
      gradient_of_given[given] = gradient.name() + ":output:" + std::to_string(out_types.size());
      in_types.push_back(type);
      out_types.push_back(FloatIfResource(type));
    }
    for (size_t i = 0; i < result_types_.size(); ++i) {
      gradient.add_input("upstream_" + std::to_string(i));
      in_types.push_back(result_types_[i]);
    }
    tensorflow::AddNodeAttr("Tin", in_types, &gradient);
    tensorflow::AddNodeAttr("Tout", out_types, &gradient);
    tensorflow::NameAttrList differentiated;
    differentiated.set_name(live);
    tensorflow::AddNodeAttr("f", differentiated, &gradient);
    if (!live_arguments_.empty() || !values_of_.empty()) *function.add_node_def() = gradient;

    for (size_t i = 0; i < types.size(); ++i) {
      if (gradient_types_[i] == tensorflow::DT_RESOURCE) {
        AddResult(AddNothing(&function) + ":output:0", tensorflow::DT_STRING, &function);
        continue;
      }
      std::string reference = found[i];
      if (const auto values = values_of_.find(i); reference.empty() && values != values_of_.end()) {
        std::vector<std::string> terms;
        for (const std::string& given : values->second) terms.push_back(gradient_of_given.at(given));
        reference = AddNode("AddN", "T", gradient_types_[i], terms, &function) + ":sum:0";
      }
      if (reference.empty()) {
        reference = FlatFunction::ArgumentName(i);
        if (types[i] == tensorflow::DT_RESOURCE) {
          reference = AddNode("ReadVariableOp", "dtype", gradient_types_[i], {reference}, &function) + ":value:0";
        }
        reference = AddNode("ZerosLike", "T", gradient_types_[i], {reference}, &function) + ":y:0";
      }
      AddResult(reference, gradient_types_[i], &function);
    }
    return library_->AddFunctionDef(std::move(function));
  }

  static void AddArgument(const std::string& name, DataType type, FunctionDef* function) {
    OpDef::ArgDef* argument = function->mutable_signature()->add_input_arg();
    argument->set_name(name);
    argument->set_type(type);
  }

  static void AddResult(const std::string& reference, DataType type, FunctionDef* function) {
    OpDef::ArgDef* result = function->mutable_signature()->add_output_arg();
    result->set_name("result_" + std::to_string(function->signature().output_arg_size() - 1));
    result->set_type(type);
    (*function->mutable_ret())[result->name()] = reference;
  }

  // As TensorFlow has it in its own gradients of functions.
  static DataType FloatIfResource(DataType type) {
    return type == tensorflow::DT_RESOURCE ? tensorflow::DT_FLOAT : type;
  }

  // Adds a constant that is no number, in the place of a gradient that nobody can read.
  static std::string AddNothing(FunctionDef* function) {
    NodeDef* node = function->add_node_def();
    node->set_name("tf_cg_ops_nothing_" + std::to_string(function->node_def_size()));
    node->set_op("Const");
    tensorflow::Tensor nothing(tensorflow::DT_STRING, {});
    tensorflow::AddNodeAttr("dtype", tensorflow::DT_STRING, node);
    tensorflow::AddNodeAttr("value", nothing, node);
    return node->name();
  }

  static std::string AddNode(const std::string& op, const std::string& type_attribute, DataType type,
                             const std::vector<std::string>& inputs, FunctionDef* function) {
    NodeDef* node = function->add_node_def();
    node->set_name("tf_cg_ops_" + op + "_" + std::to_string(function->node_def_size()));
    node->set_op(op);
    for (const std::string& input : inputs) node->add_input(input);
    if (op == "AddN") tensorflow::AddNodeAttr("N", static_cast<int64_t>(inputs.size()), node);
    tensorflow::AddNodeAttr(type_attribute, type, node);
    return node->name();
  }

  const FlatFunction& flat_;
  const DataTypeVector& gradient_types_;
  FunctionLibraryDefinition* library_;
  bool has_custom_gradient_ = false;
  std::map<std::string, NodeDef> live_;             // What is differentiated, by name.
  std::set<std::string> dependent_;                 // Those of them that depend on an argument.
  std::set<std::string> live_arguments_;            // Of the function, that it reads.
  std::map<std::string, std::string> given_;        // The values that it is given, by reference: their names there.
  std::map<int, std::set<std::string>> values_of_;  // Those that are read from the variable of an argument.
  std::map<std::string, DataType> given_types_;     // By name.
  std::set<std::string> computed_;                  // What computes them.
  DataTypeVector result_types_;
};

}  // namespace

absl::Status SplitGradient(const std::string& function, const DataTypeVector& gradient_types,
                           FunctionLibraryDefinition* library, std::string* split, bool* is_stateful) {
  const auto record = library->FindRecord(function);
  if (record == nullptr) return absl::OkStatus();
  FlatFunction flat(*library);
  if (!flat.Flatten(record->fdef()) || flat.argument_types().size() != gradient_types.size()) return absl::OkStatus();
  return Splitter(flat, gradient_types, library).Split(function, split, is_stateful);
}

}  // namespace tf_cg_ops
