// Run a saved executable from C++ with TVM's runtime library and tvm_ffi's headers alone:
//
//     run_cpp LIBRARY INPUTS OUTPUTS X_FILE Y_FILE
//
// X_FILE and Y_FILE hold raw little-endian float32 matrices of INPUTS and OUTPUTS columns, as
// written by export_model.py: an input and the output to expect.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

constexpr DLDevice kCpu{kDLCPU, 0};
constexpr int kPooledAllocator = 2;
constexpr float kTolerance = 1e-4f;

// Row-major float32 matrix.
struct Matrix {
  int64_t rows;
  int64_t columns;
  std::vector<float> values;
};

Matrix ReadMatrix(const std::string& path, int64_t columns) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot read " + path);
  const int64_t count = static_cast<int64_t>(file.tellg()) / static_cast<int64_t>(sizeof(float));
  if (columns <= 0 || count % columns != 0) {
    throw std::runtime_error(path + " does not hold rows of " + std::to_string(columns) +
                             " float32 values");
  }
  Matrix matrix{count / columns, columns, std::vector<float>(count)};
  file.seekg(0);
  file.read(reinterpret_cast<char*>(matrix.values.data()), count * sizeof(float));
  return matrix;
}

// TVM's own operators expect memory that starts at a multiple of 64 bytes.
struct AlignedAlloc {
  static constexpr std::align_val_t kAlignment{64};

  void AllocData(DLTensor* tensor) {
    tensor->data = ::operator new(ffi::GetDataSize(*tensor), kAlignment);
  }
  void FreeData(DLTensor* tensor) { ::operator delete(tensor->data, kAlignment); }
};

ffi::Tensor FirstRows(const Matrix& matrix, int64_t rows) {
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(AlignedAlloc(), ffi::Shape({rows, matrix.columns}),
                                                DLDataType{kDLFloat, 32, 1}, kCpu);
  std::copy_n(matrix.values.begin(), rows * matrix.columns,
              static_cast<float*>(tensor.data_ptr()));
  return tensor;
}

// The executable's function `main`, on a virtual machine of its own.
ffi::Function LoadMain(const std::string& library) {
  ffi::Module executable = ffi::Module::LoadFromFile(library);
  ffi::Module machine =
      executable->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooledAllocator);
  return machine->GetFunction("main").value();
}

// Largest absolute difference; infinite where the shape is wrong or a value is not a number.
float LargestError(const ffi::Tensor& result, const Matrix& expected, int64_t rows) {
  constexpr float kWrong = std::numeric_limits<float>::infinity();
  if (result.ndim() != 2 || result.size(0) != rows || result.size(1) != expected.columns) {
    return kWrong;
  }
  const float* values = static_cast<const float*>(result.data_ptr());
  float largest = 0.0f;
  for (int64_t i = 0; i < rows * expected.columns; ++i) {
    const float error = std::fabs(values[i] - expected.values[i]);
    if (!(error <= largest)) largest = std::isnan(error) ? kWrong : error;
  }
  return largest;
}

void Run(char** argv) {
  const Matrix x = ReadMatrix(argv[4], std::stoll(argv[2]));
  const Matrix y = ReadMatrix(argv[5], std::stoll(argv[3]));
  if (x.rows != y.rows) throw std::runtime_error("X_FILE and Y_FILE differ in their rows");
  ffi::Function run = LoadMain(argv[1]);
  for (int64_t size : {1, 2, 7, 64, 300, 33, 1}) {  // growing and shrinking
    const int64_t rows = std::min(size, x.rows);
    const float error = LargestError(run(FirstRows(x, rows)).cast<ffi::Tensor>(), y, rows);
    std::cout << "rows " << rows << ": largest error " << error << "\n";
    if (!(error <= kTolerance)) throw std::runtime_error("wrong result");
  }
  std::cout << "OK\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: run_cpp LIBRARY INPUTS OUTPUTS X_FILE Y_FILE\n";
    return EXIT_FAILURE;
  }
  try {
    Run(argv);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
