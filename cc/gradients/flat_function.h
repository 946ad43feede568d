#ifndef TF_CG_OPS_CC_GRADIENTS_FLAT_FUNCTION_H_
#define TF_CG_OPS_CC_GRADIENTS_FLAT_FUNCTION_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

// The functions that the node's attributes name.
std::vector<std::string> FunctionsOf(const tensorflow::NodeDef& node);

// A function with all that it calls put in the places of the calls, without control dependencies. References to what
// nodes compute are as in a FunctionDef: node:output:0, or the name of an argument.
class FlatFunction {
 public:
  // No node has a name that starts so: for what is added to a flat function.
  static constexpr char kReserved[] = "tf_cg_ops_reserved_";

  explicit FlatFunction(const tensorflow::FunctionLibraryDefinition& library) : library_(library) {}

  // Whether that went well. Then each node is valid for its op, and all that is read is there and of the right type.
  // It does not if the function is not of the form that TensorFlow 2 traces (it has attributes of its own, lists among
  // its arguments, or functions as ops), is not valid, or is too large. All of that may come from a file.
  bool Flatten(const tensorflow::FunctionDef& function);

  // Whether it did not since a function calls itself, which TensorFlow would do without end.
  bool calls_itself() const { return calls_itself_; }

  static std::string ArgumentName(int i) { return kReserved + ("argument_" + std::to_string(i)); }

  // The position of the argument of this name; -1 for what a node computes.
  int ArgumentAt(const std::string& reference) const;

  // The node that computes what the reference names; nullptr for an argument.
  const tensorflow::NodeDef* Find(const std::string& reference) const;

  absl::Status TypeOf(const std::string& reference, tensorflow::DataType* type) const;

  // Each node comes after those whose values it reads.
  const std::vector<const tensorflow::NodeDef*>& nodes() const { return sorted_; }
  const tensorflow::DataTypeVector& argument_types() const { return argument_types_; }
  const std::vector<std::string>& results() const { return results_; }

 private:
  struct Value {
    tensorflow::DataType type;
    const tensorflow::NodeDef* node;  // nullptr for an argument.
    int argument;                     // -1 for what a node computes.
  };
  class Names;

  bool Add(const tensorflow::FunctionDef& function, const std::string& prefix,
           const std::vector<std::string>& arguments, std::vector<std::string>* results);
  bool AddNode(tensorflow::NodeDef node);
  bool AddCalled(const tensorflow::NodeDef& call);
  bool Resolve(std::string* reference);
  bool HasRightInputs(const tensorflow::NodeDef& node) const;
  bool Sort();
  bool Spend(int64_t size);

  const tensorflow::FunctionLibraryDefinition& library_;
  std::map<std::string, tensorflow::NodeDef> nodes_;
  std::vector<const tensorflow::NodeDef*> sorted_;
  std::unordered_map<std::string, Value> values_;  // By reference.
  tensorflow::DataTypeVector argument_types_;
  std::vector<std::string> results_;
  std::unordered_map<std::string, std::string> replaced_;  // The outputs of calls by what computes them.
  std::set<std::string> on_the_way_;                       // The functions around the one that is added.
  bool calls_itself_ = false;
  int64_t spent_ = 0;
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_GRADIENTS_FLAT_FUNCTION_H_
