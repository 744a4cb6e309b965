// Compiled CUDA kernels as a module that an executable can be exported with.
//
// TVM has such a module in its CUDA runtime, which does not load where there is no CUDA driver, and
// what stands for it there holds source. This one has the bytes that the runtime writes and reads.
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

namespace {

namespace ffi = tvm::ffi;

class CompiledKernels : public ffi::ModuleObj {
 public:
  CompiledKernels(ffi::Bytes bytes, ffi::String source)
      : bytes_(std::move(bytes)), source_(std::move(source)) {}

  // By this name the loader is found.
  const char* kind() const final { return "cuda"; }

  int GetPropertyMask() const final { return ffi::Module::kBinarySerializable; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    TVM_FFI_THROW(RuntimeError) << name << ": no CUDA runtime was found when this was compiled; "
                                << "export the executable and load it where there is a GPU";
    TVM_FFI_UNREACHABLE();
  }

  ffi::Bytes SaveToBytes() const final { return bytes_; }

  ffi::String InspectSource(const ffi::String& format) const final {
    return format.empty() || format == "cuda" ? source_ : ffi::String();
  }

 private:
  ffi::Bytes bytes_;
  ffi::String source_;
};

ffi::Module Create(ffi::Bytes bytes, ffi::String source) {
  return ffi::Module(ffi::make_object<CompiledKernels>(std::move(bytes), std::move(source)));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(moonpoly_compiled_kernels, Create)
