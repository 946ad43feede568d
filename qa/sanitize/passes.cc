// Runs the graph passes on several threads at once, as TensorFlow does when it optimizes several graphs:
// passes SECONDS THREADS GRAPH... The graphs are GraphDefs in files. As in TensorFlow, each graph has a function
// library of its own. The results must be the same each time.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/session_options.h"

namespace tf_cg_ops {
namespace {

using ::tensorflow::FunctionDef;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::Graph;
using ::tensorflow::GraphDef;
using ::tensorflow::OpRegistry;
using ::tensorflow::OptimizationPassRegistry;

// The passes of this library have their phase to themselves.
void RunPasses(std::unique_ptr<Graph>* graph, FunctionLibraryDefinition* library) {
  const tensorflow::SessionOptions session_options;
  tensorflow::GraphOptimizationPassOptions options;
  options.session_options = &session_options;
  options.graph = graph;
  options.flib_def = library;
  options.is_function_graph = true;
  const auto& groups = OptimizationPassRegistry::Global()->groups();
  for (const auto& pass : groups.at(OptimizationPassRegistry::PRE_PLACEMENT).at(9)) {
    const absl::Status status = pass->Run(options);
    CHECK(status.ok()) << pass->name() << ": " << status;
  }
}

std::unique_ptr<Graph> MakeGraph(const GraphDef& definition) {
  auto graph = std::make_unique<Graph>(OpRegistry::Global());
  tensorflow::GraphConstructorOptions options;
  options.allow_internal_ops = true;
  CHECK(tensorflow::ConvertGraphDefToGraph(options, definition, graph.get()).ok());
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
  CHECK(tensorflow::SerializeToStringDeterministic(result, &text));
  return text;
}

struct Example {
  GraphDef definition;
  std::string result;
};

Example MakeExample(const std::string& path) {
  Example example;
  CHECK(tensorflow::ReadBinaryProto(tensorflow::Env::Default(), path, &example.definition).ok());
  example.result = Optimized(example.definition);
  std::string before;
  CHECK(tensorflow::SerializeToStringDeterministic(example.definition, &before));
  CHECK(example.result != before);  // The passes changed something.
  return example;
}

// Runs all threads at once.
void Run(const std::vector<Example>& examples, int num_threads) {
  const auto work = [&](int first) {
    for (size_t i = 0; i < examples.size(); ++i) {
      const Example& example = examples[(first + i) % examples.size()];
      CHECK(Optimized(example.definition) == example.result);
    }
  };
  std::vector<std::thread> threads;
  // Pairs of threads begin with the same graph.
  for (int i = 0; i < num_threads; ++i) threads.emplace_back(work, i / 2);
  for (std::thread& thread : threads) thread.join();
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
  const int num_threads = std::atoi(argv[2]);
  int64_t runs = 0;
  for (; std::chrono::steady_clock::now() - start < limit; runs += num_threads * examples.size()) {
    tf_cg_ops::Run(examples, num_threads);
  }
  std::printf("%lld runs, %zu graphs\n", static_cast<long long>(runs), examples.size());
  return 0;
}
