/* Runs a model and computes its gradient, without Python.
 *
 *     gradient run MODEL INPUT=NUMBERS... OUTPUT...
 *     gradient LIBRARIES MODEL INPUT OUTPUT NUMBERS UPSTREAM [UPSTREAM_OF_THE_GRADIENT]
 *
 * "run" feeds the inputs and prints the outputs of any SavedModel that TensorFlow can load by itself. The gradient is
 * one of the outputs if the model has a signature that computes it. Numbers, such as 0.5,1.0, fill the shape that the
 * input has in the graph, where one dimension may be unknown.
 *
 * The second form differentiates a model with TensorFlow's C++ code, so it needs the op library of tf_cg_ops.
 * LIBRARIES is the op library of tf_cg_ops. If ops with custom gradients are in the graph itself and not in functions,
 * append a comma and the library with libtensorflow_cc. MODEL is the folder of a SavedModel, or the file of a GraphDef.
 * INPUT and OUTPUT are tensors of its graph, such as serving_default_x:0; save_model.py prints them. NUMBERS, such as
 * 0.5,1.0, is the vector to feed, and UPSTREAM the gradient with respect to the output. With UPSTREAM_OF_THE_GRADIENT,
 * the program differentiates the gradient again. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tensorflow/c/c_api.h"

enum { MAX_DIMS = 8, MAX_TENSORS = 128 };

/* The objects to free at the end. */
typedef struct {
  TF_Status* status;
  TF_Graph* graph;
  TF_Session* session;
} Program;

/* Returns whether the last call of TensorFlow succeeded; prints the error if not. */
static bool ok(const Program* program, const char* what) {
  if (TF_GetCode(program->status) == TF_OK) return true;
  fprintf(stderr, "gradient: %s: %s\n", what, TF_Message(program->status));
  return false;
}

/* Prints an error that is not TensorFlow's, and returns false. */
static bool fail(const char* what, const char* got) {
  fprintf(stderr, "gradient: %s, got '%s'\n", what, got);
  return false;
}

static void free_data(void* data, size_t length, void* unused) {
  (void)length;
  (void)unused;
  free(data);
}

static void free_buffer(void* data, size_t length) { free_data(data, length, NULL); }

/* Opens the libraries in a comma-separated list. They stay open without their handles. */
static bool load_libraries(Program* program, char* names) {
  for (char* name = strtok(names, ","); name != NULL; name = strtok(NULL, ",")) {
    TF_Library* library = TF_LoadLibrary(name, program->status);
    if (!ok(program, name)) return false;
    TF_DeleteLibraryHandle(library);
  }
  return true;
}

static bool load_saved_model(Program* program, const char* folder) {
  const char* tags[] = {"serve"};
  TF_SessionOptions* options = TF_NewSessionOptions();
  program->session =
      TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, program->graph, NULL, program->status);
  TF_DeleteSessionOptions(options);
  return ok(program, folder);
}

static bool load_graph(Program* program, const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return fail("MODEL cannot be opened; expected a folder or a file", path);
  TF_Buffer* buffer = TF_NewBuffer();
  fseek(file, 0, SEEK_END);
  const long length = ftell(file);
  rewind(file);
  void* data = malloc(length > 0 ? (size_t)length : 1);
  buffer->data = data;
  buffer->length = data == NULL || length <= 0 ? 0 : fread(data, 1, (size_t)length, file);
  buffer->data_deallocator = free_buffer;
  fclose(file);

  TF_ImportGraphDefOptions* import = TF_NewImportGraphDefOptions();
  TF_GraphImportGraphDef(program->graph, buffer, import, program->status);
  TF_DeleteImportGraphDefOptions(import);
  TF_DeleteBuffer(buffer);
  if (!ok(program, path)) return false;

  TF_SessionOptions* options = TF_NewSessionOptions();
  program->session = TF_NewSession(program->graph, options, program->status);
  TF_DeleteSessionOptions(options);
  return ok(program, path);
}

static bool load_model(Program* program, const char* path) {
  struct stat information;
  const bool is_folder = stat(path, &information) == 0 && S_ISDIR(information.st_mode);
  return is_folder ? load_saved_model(program, path) : load_graph(program, path);
}

/* Finds a tensor by a name such as serving_default_x:0; the number is optional. */
static bool find(const Program* program, const char* name, TF_Output* tensor) {
  char operation[256];
  const size_t length = strcspn(name, ":");
  if (length >= sizeof operation) return fail("expected a shorter name of a tensor", name);
  memcpy(operation, name, length);
  operation[length] = '\0';
  tensor->oper = TF_GraphOperationByName(program->graph, operation);
  tensor->index = name[length] == ':' ? atoi(name + length + 1) : 0;
  if (tensor->oper == NULL || tensor->index < 0 || tensor->index >= TF_OperationNumOutputs(tensor->oper)) {
    return fail("expected the name of a tensor in the model's graph", name);
  }
  const TF_DataType type = TF_OperationOutputType(*tensor);
  if (type != TF_FLOAT && type != TF_DOUBLE) return fail("expected a tensor of float or double", name);
  return true;
}

/* Finds the shape of a tensor with this number of elements; at most one dimension is unknown in the graph. Returns the
 * number of dimensions, or -1. A tensor of unknown rank is a vector. */
static int shape_of(const Program* program, TF_Output tensor, int64_t count, int64_t shape[MAX_DIMS]) {
  const int rank = TF_GraphGetTensorNumDims(program->graph, tensor, program->status);
  if (!ok(program, "TF_GraphGetTensorNumDims") || rank > MAX_DIMS) return -1;
  if (rank < 0) {
    shape[0] = count;
    return 1;
  }
  TF_GraphGetTensorShape(program->graph, tensor, shape, rank, program->status);
  if (!ok(program, "TF_GraphGetTensorShape")) return -1;
  int64_t known = 1, *unknown = NULL;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] >= 0) {
      known *= shape[i];
    } else if (unknown == NULL) {
      unknown = &shape[i];
    } else {
      return -1;
    }
  }
  if (unknown != NULL) *unknown = known > 0 ? count / known : 0;
  return known * (unknown == NULL ? 1 : *unknown) == count ? rank : -1;
}

/* Makes a tensor of float or double from comma-separated numbers, with the shape of the tensor that it is fed to. */
static TF_Tensor* parse(const Program* program, const char* text, TF_Output to) {
  const TF_DataType type = TF_OperationOutputType(to);
  int64_t count = 1;
  for (const char* c = text; *c != '\0'; ++c) count += *c == ',';
  int64_t shape[MAX_DIMS];
  const int rank = shape_of(program, to, count, shape);
  if (rank < 0) {
    fail("expected as many numbers as the input has elements", text);
    return NULL;
  }
  TF_Tensor* tensor = TF_AllocateTensor(type, shape, rank, (size_t)count * TF_DataTypeSize(type));
  const char* at = text;
  for (int64_t i = 0; i < count; ++i) {
    char* end;
    const double number = strtod(at, &end);
    if (end == at || *end != (i + 1 < count ? ',' : '\0')) {
      fail("expected comma-separated numbers", text);
      TF_DeleteTensor(tensor);
      return NULL;
    }
    at = end + 1;
    if (type == TF_FLOAT) {
      ((float*)TF_TensorData(tensor))[i] = (float)number;
    } else {
      ((double*)TF_TensorData(tensor))[i] = number;
    }
  }
  return tensor;
}

static void print(const char* name, const TF_Tensor* tensor) {
  printf("%s:", name);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); ++i) {
    const void* data = TF_TensorData(tensor);
    printf(" %.17g", TF_TensorType(tensor) == TF_FLOAT ? ((const float*)data)[i] : ((const double*)data)[i]);
  }
  printf("\n");
}

/* Adds a placeholder to the graph, for an upstream gradient. */
static bool add_placeholder(const Program* program, const char* name, TF_DataType type, TF_Output* tensor) {
  TF_OperationDescription* description = TF_NewOperation(program->graph, "Placeholder", name);
  TF_SetAttrType(description, "dtype", type);
  tensor->oper = TF_FinishOperation(description, program->status);
  tensor->index = 0;
  return ok(program, name);
}

/* Feeds the numbers, fetches the tensors, and prints each with its name. */
static bool run(const Program* program, const TF_Output* fed, char* const* numbers, int num_fed,
                const TF_Output* fetched, const char* const* names, int num_fetched) {
  TF_Tensor *inputs[MAX_TENSORS] = {NULL}, *outputs[MAX_TENSORS] = {NULL};
  bool good = true;
  for (int i = 0; i < num_fed && good; ++i) {
    inputs[i] = parse(program, numbers[i], fed[i]);
    good = inputs[i] != NULL;
  }
  if (good) {
    TF_SessionRun(program->session, NULL, fed, inputs, num_fed, fetched, outputs, num_fetched, NULL, 0, NULL,
                  program->status);
    good = ok(program, "TF_SessionRun");
  }
  for (int i = 0; i < num_fetched && good; ++i) print(names[i], outputs[i]);
  for (int i = 0; i < MAX_TENSORS; ++i) {
    if (inputs[i] != NULL) TF_DeleteTensor(inputs[i]);
    if (outputs[i] != NULL) TF_DeleteTensor(outputs[i]);
  }
  return good;
}

/* Adds d(y * upstream)/dx to the graph, with a new placeholder for the upstream. */
static bool differentiate(const Program* program, TF_Output y, TF_Output x, const char* upstream_name,
                          TF_Output* upstream, TF_Output* gradient) {
  if (!add_placeholder(program, upstream_name, TF_OperationOutputType(y), upstream)) return false;
  TF_AddGradients(program->graph, &y, 1, &x, 1, upstream, program->status, gradient);
  if (!ok(program, "TF_AddGradients")) return false;
  /* The C API returns no operation if there is no path with gradients from x to y. */
  if (gradient->oper == NULL) return fail("expected an input with a gradient", TF_OperationName(x.oper));
  return true;
}

/* Runs a SavedModel as it is: arguments with "=" are fed, and the others fetched. */
static bool run_saved_model(Program* program, int argc, char** argv) {
  TF_Output fed[MAX_TENSORS], fetched[MAX_TENSORS];
  char* numbers[MAX_TENSORS];
  const char* names[MAX_TENSORS];
  int num_fed = 0, num_fetched = 0;

  if (!load_saved_model(program, argv[2])) return false;
  for (int i = 3; i < argc; ++i) {
    char* equals = strchr(argv[i], '=');
    if (equals != NULL) *equals = '\0';
    if (!find(program, argv[i], equals != NULL ? &fed[num_fed] : &fetched[num_fetched])) return false;
    if (equals != NULL) {
      numbers[num_fed++] = equals + 1;
    } else {
      names[num_fetched++] = argv[i];
    }
  }
  return run(program, fed, numbers, num_fed, fetched, names, num_fetched);
}

/* Runs a model, and differentiates it with TensorFlow's C++ code. */
static bool run_and_differentiate(Program* program, int argc, char** argv) {
  static const char* const kNames[] = {"value", "gradient", "second gradient"};
  const int orders = argc - 6; /* 1 or 2. */
  TF_Output fed[3], fetched[3];

  if (!load_libraries(program, argv[1]) || !load_model(program, argv[2])) return false;
  if (!find(program, argv[3], &fed[0]) || !find(program, argv[4], &fetched[0])) return false;
  if (!differentiate(program, fetched[0], fed[0], "upstream", &fed[1], &fetched[1])) return false;
  if (orders == 2 && !differentiate(program, fetched[1], fed[0], "second_upstream", &fed[2], &fetched[2])) return false;
  return run(program, fed, argv + 5, 1 + orders, fetched, kNames, 1 + orders);
}

int main(int argc, char** argv) {
  const bool as_it_is = argc > 3 && argc <= 3 + MAX_TENSORS && strcmp(argv[1], "run") == 0;
  if (!as_it_is && argc != 7 && argc != 8) {
    fprintf(stderr, "usage: gradient run MODEL INPUT=NUMBERS... OUTPUT...\n");
    fprintf(stderr, "       gradient LIBRARIES MODEL INPUT OUTPUT NUMBERS UPSTREAM [UPSTREAM_OF_THE_GRADIENT]\n");
    return 2;
  }
  Program program = {TF_NewStatus(), TF_NewGraph(), NULL};
  const bool good = (as_it_is ? run_saved_model : run_and_differentiate)(&program, argc, argv);
  if (program.session != NULL) {
    TF_CloseSession(program.session, program.status);
    TF_DeleteSession(program.session, program.status);
  }
  TF_DeleteGraph(program.graph);
  TF_DeleteStatus(program.status);
  return good ? 0 : 1;
}
