#ifndef TF_CG_OPS_CC_GRADIENTS_FLAT_FUNCTION_H_
#define TF_CG_OPS_CC_GRADIENTS_FLAT_FUNCTION_H_

#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/framework/function.h"

namespace tf_cg_ops {

// A function with all that it calls put in the places of the calls, without control dependencies. References to what
// nodes compute are as in a FunctionDef: node:output:0, or the name of an argument.
class FlatFunction {
 public:
  explicit FlatFunction(const tensorflow::FunctionLibraryDefinition& library) : library_(library) {}

  // Whether that went well: it does not if the function has attributes of its own, or lists among its arguments.
  bool Flatten(const tensorflow::FunctionDef& function);

  static std::string ArgumentName(int i) { return "argument_" + std::to_string(i); }

  // The node that computes what the reference names; nullptr for an argument.
  const tensorflow::NodeDef* Find(const std::string& reference) const;

  absl::Status TypeOf(const std::string& reference, tensorflow::DataType* type) const;

  const std::map<std::string, tensorflow::NodeDef>& nodes() const { return nodes_; }
  const tensorflow::DataTypeVector& argument_types() const { return argument_types_; }
  const std::vector<std::string>& results() const { return results_; }

 private:
  bool Add(const tensorflow::FunctionDef& function, const std::string& prefix,
           const std::vector<std::string>& arguments, std::vector<std::string>* results);
  std::string Resolve(std::string reference) const;

  const tensorflow::FunctionLibraryDefinition& library_;
  std::map<std::string, tensorflow::NodeDef> nodes_;
  tensorflow::DataTypeVector argument_types_;
  std::vector<std::string> results_;
  std::map<std::string, std::string> replaced_;  // The outputs of calls by what computes them.
};

}  // namespace tf_cg_ops

#endif  // TF_CG_OPS_CC_GRADIENTS_FLAT_FUNCTION_H_
