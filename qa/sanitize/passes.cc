// Runs the graph passes on several threads at once, as TensorFlow does when it optimizes several graphs:
// passes SECONDS THREADS GRAPH... The graphs are GraphDefs in files. As in TensorFlow, each graph has a function
// library of its own. The results must be the same each time.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "qa/sanitize/check.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/session_options.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::Graph;
using ::tensorflow::GraphDef;
using ::tensorflow::GraphOptimizationPass;
using ::tensorflow::OpRegistry;
using ::tensorflow::OptimizationPassRegistry;

// The passes of this library, in the order in which TensorFlow runs them.
std::vector<GraphOptimizationPass*> OurPasses() {
  const std::vector<std::string> names = {"RefuseLostGradients", "PruneGradients"};
  std::vector<GraphOptimizationPass*> found;
  for (const auto& [grouping, phases] : OptimizationPassRegistry::Global()->groups()) {
    for (const auto& [phase, passes] : phases) {
      for (const auto& pass : passes) {
        if (std::count(names.begin(), names.end(), pass->name()) > 0) found.push_back(pass.get());
      }
    }
  }
  TF_CG_OPS_CHECK(found.size() == names.size());
  return found;
}

void RunPasses(std::unique_ptr<Graph>* graph, FunctionLibraryDefinition* library) {
  const tensorflow::SessionOptions session_options;
  tensorflow::GraphOptimizationPassOptions options;
  options.session_options = &session_options;
  options.graph = graph;
  options.flib_def = library;
  options.is_function_graph = true;
  for (GraphOptimizationPass* pass : OurPasses()) {
    const absl::Status status = pass->Run(options);
    if (!status.ok()) std::fprintf(stderr, "%s: %s\n", pass->name().c_str(), std::string(status.message()).c_str());
    TF_CG_OPS_CHECK(status.ok());
  }
}

std::unique_ptr<Graph> MakeGraph(const GraphDef& definition) {
  auto graph = std::make_unique<Graph>(OpRegistry::Global());
  tensorflow::GraphConstructorOptions options;
  options.allow_internal_ops = true;
  TF_CG_OPS_CHECK(tensorflow::ConvertGraphDefToGraph(options, definition, graph.get()).ok());
  return graph;
}

// The optimized graph: its nodes, and the functions that it may run.
std::string Optimized(const GraphDef& definition) {
  std::unique_ptr<Graph> graph = MakeGraph(definition);
  FunctionLibraryDefinition library(OpRegistry::Global(), definition.library());
  RunPasses(&graph, &library);
  GraphDef result;
  graph->ToGraphDef(&result);
  result.clear_library();
  std::map<std::string, FunctionDef> functions;
  for (const std::string& name : library.ListFunctionNames()) functions[name] = library.FindRecord(name)->fdef();
  for (const auto& [name, function] : functions) *result.mutable_library()->add_function() = function;
  std::string text;
  TF_CG_OPS_CHECK(tensorflow::SerializeToStringDeterministic(result, &text));
  return text;
}

struct Example {
  GraphDef definition;
  std::string result;
};

Example MakeExample(const std::string& path) {
  Example example;
  TF_CG_OPS_CHECK(tensorflow::ReadBinaryProto(tensorflow::Env::Default(), path, &example.definition).ok());
  example.result = Optimized(example.definition);
  std::string before;
  TF_CG_OPS_CHECK(tensorflow::SerializeToStringDeterministic(example.definition, &before));
  TF_CG_OPS_CHECK(example.result != before);  // The passes changed something.
  return example;
}

// Runs all threads at once and returns the number of graphs that they optimized.
int64_t Run(const std::vector<Example>& examples, int num_threads) {
  std::atomic<int64_t> runs = 0;
  const auto work = [&](int first) {
    for (size_t i = 0; i < examples.size(); ++i) {
      const size_t at = (first + i) % examples.size();
      TF_CG_OPS_CHECK(Optimized(examples[at].definition) == examples[at].result);
      ++runs;
    }
  };
  std::vector<std::thread> threads;
  // Pairs of threads begin with the same graph.
  for (int i = 0; i < num_threads; ++i) threads.emplace_back(work, i / 2);
  for (std::thread& thread : threads) thread.join();
  return runs;
}

}  // namespace
}  // namespace tf_cg_ops

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: passes SECONDS THREADS GRAPH...\n");
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(std::atof(argv[1]));
  std::vector<tf_cg_ops::Example> examples;
  for (int i = 3; i < argc; ++i) examples.push_back(tf_cg_ops::MakeExample(argv[i]));
  int64_t runs = 0;
  while (std::chrono::steady_clock::now() - start < limit) runs += tf_cg_ops::Run(examples, std::atoi(argv[2]));
  std::printf("%lld runs, %zu graphs\n", static_cast<long long>(runs), examples.size());
  return 0;
}
