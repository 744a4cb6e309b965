// The measured calls, to be run under callgrind by packed_calls.py:
//
//     driver LIBRARY LANES TABLE_ROWS JOB...
//
// A job is KIND:BATCH,M,N,K. KIND is a call to count up to the first micro-kernel:
//     linear  x (M, K) by a packed weight, its plans in a table of TABLE_ROWS + 1 entries
//     plain   a (M, K) by b (K, N)
//     scores  a stored (1, M, BATCH, K) by b stored (1, N, BATCH, K), transposed
//     values  a (1, BATCH, M, K) by b stored (1, K, BATCH, N), out stored (1, M, BATCH, N)
// or the planner alone, M, M - 1 rows of plans for b of the kind that is named after it:
//     plan_linear, plan_plain, plan_scores, plan_values
// Each call is counted twice. Profiles are dumped at table reads as `table` and at the end of what
// is counted as JOB; one line a dump of the second kind goes to the output: which memory ended it.

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

constexpr int kNoActivation = 0;
constexpr int kPrepacked = 0, kRows = 1, kColumns = 2;  // tvm_moonpoly.planner.plan.BMode
constexpr DLDataType kFloat{kDLFloat, 32, 1};
constexpr DLDataType kInt{kDLInt, 64, 1};

// Memory whose first access is to be seen.
struct Guarded {
  const char* name;
  char* start;
  size_t bytes;
};

std::vector<Guarded> guarded;
std::string job;
sigjmp_buf after_call;

void Protect(const Guarded& memory, int rights) {
  if (mprotect(memory.start, memory.bytes, rights) != 0) _exit(EXIT_FAILURE);
}

// The table counts as one access on the way; any other memory ends the call: what is left of it is
// not counted, and callgrind would take long for it.
void OnAccess(int, siginfo_t* info, void*) {
  const char* at = static_cast<char*>(info->si_addr);
  for (const Guarded& memory : guarded) {
    if (at < memory.start || at >= memory.start + memory.bytes) continue;
    if (std::string(memory.name) == "table") {
      CALLGRIND_DUMP_STATS_AT("table");
      Protect(memory, PROT_READ | PROT_WRITE);
      return;
    }
    CALLGRIND_DUMP_STATS_AT(job.c_str());
    std::printf("%s %s\n", job.c_str(), memory.name);
    siglongjmp(after_call, 1);
  }
  _exit(EXIT_FAILURE);  // a crash of the library
}

// The runtime's functions, as the library holds them.
using Alloc = void* (*)(int, int, uint64_t, int, int);
using Free = int (*)(int, int, void*);
Alloc runtime_alloc;
Free runtime_free;
std::vector<void*> workspace;

// Notes what the library allocates, since a call that ends early does not free it. Not counted.
void* NoteAlloc(int type, int id, uint64_t bytes, int code, int bits) {
  workspace.push_back(runtime_alloc(type, id, bytes, code, bits));
  return workspace.back();
}

void FreeWorkspace() {
  for (; !workspace.empty(); workspace.pop_back()) runtime_free(kDLCPU, 0, workspace.back());
}

template <typename Function>
Function* Slot(void* library, const char* name) {
  void* slot = dlsym(library, name);
  if (slot == nullptr) throw std::runtime_error(std::string("the library has no ") + name);
  return static_cast<Function*>(slot);
}

void WatchWorkspace(const std::string& library) {
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (loaded == nullptr) throw std::runtime_error("the library is not loaded");
  Alloc* alloc = Slot<Alloc>(loaded, "__TVMBackendAllocWorkspace");
  runtime_alloc = *alloc;
  *alloc = NoteAlloc;
  runtime_free = *Slot<Free>(loaded, "__TVMBackendFreeWorkspace");
}

// Zeroed pages of their own.
struct PageAlloc {
  const char* name;

  void AllocData(DLTensor* tensor) {
    const size_t page = sysconf(_SC_PAGESIZE);
    const size_t bytes = (ffi::GetDataSize(*tensor) / page + 1) * page;
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::runtime_error("no memory");
    guarded.push_back({name, static_cast<char*>(start), bytes});
    tensor->data = start;
  }
  void FreeData(DLTensor* tensor) {
    auto it = std::find_if(guarded.begin(), guarded.end(),
                           [&](const Guarded& each) { return each.start == tensor->data; });
    munmap(it->start, it->bytes);
    guarded.erase(it);
  }
};

ffi::Tensor Zeros(const char* name, ffi::Shape shape, DLDataType type = kFloat) {
  return ffi::Tensor::FromNDAlloc(PageAlloc{name}, shape, type, DLDevice{kDLCPU, 0});
}

// Axes as the packed functions take them: product dimension i is dimension axes[i] of the tensor.
int64_t Axes(const std::vector<int>& axes) {
  int64_t code = static_cast<int64_t>(axes.size()) << 32;
  for (size_t i = 0; i < axes.size(); ++i) code |= int64_t{axes[i]} << 4 * i;
  return code;
}

struct Size {
  int64_t batch, m, n, k;
};

class Calls {
 public:
  Calls(const std::string& library, int64_t lanes, int64_t table_rows)
      : library_(ffi::Module::LoadFromFile(library)), lanes_(lanes), table_rows_(table_rows) {
    WatchWorkspace(library);
  }

  void Run(const std::string& kind, const Size& size) {
    if (kind.rfind("plan_", 0) == 0) return Plan(kind.substr(5), size);
    if (kind == "linear") return Linear(size);
    Product(kind, size);
  }

 private:
  ffi::Function Get(const char* name) { return library_->GetFunction(name).value(); }

  template <typename Call>
  void CountUpToOperands(Call call) {
    for (int turn = 0; turn < 2; ++turn) {
      for (const Guarded& each : guarded) Protect(each, PROT_NONE);
      CALLGRIND_START_INSTRUMENTATION;
      if (sigsetjmp(after_call, 1) == 0) call();
      CALLGRIND_STOP_INSTRUMENTATION;
      for (const Guarded& each : guarded) Protect(each, PROT_READ | PROT_WRITE);
      FreeWorkspace();
    }
  }

  void Linear(const Size& s) {
    const int64_t panels = (s.n + lanes_ - 1) / lanes_;
    ffi::Tensor x = Zeros("x", {s.m, s.k}), packed = Zeros("packed", {panels, s.k, lanes_});
    ffi::Tensor bias = Zeros("bias", {panels * lanes_}), out = Zeros("out", {s.m, s.n});
    ffi::Tensor table = Zeros("table", {table_rows_ + 1}, kInt);
    Get("moonpoly_plan_rows")(s.n, s.k, 1, kPrepacked, table);
    ffi::Function linear = Get("moonpoly_linear_f32");
    CountUpToOperands([&] { linear(x, packed, bias, table, nullptr, kNoActivation, out); });
  }

  void Product(const std::string& kind, const Size& s) {
    const int64_t h = s.batch;
    const int64_t identity = Axes({0, 1, 2, 3}), swapped = Axes({0, 2, 1, 3});
    ffi::Function matmul = Get("moonpoly_matmul_f32");
    auto count = [&](ffi::Shape sa, ffi::Shape sb, ffi::Shape sc, int64_t pa, int64_t pb,
                     int64_t pc) {
      ffi::Tensor a = Zeros("a", sa), b = Zeros("b", sb), out = Zeros("out", sc);
      CountUpToOperands([&] { matmul(a, b, pa, pb, pc, nullptr, out); });
    };
    if (kind == "plain") {
      const int64_t plain = Axes({0, 1});
      count({s.m, s.k}, {s.k, s.n}, {s.m, s.n}, plain, plain, plain);
    } else if (kind == "scores") {
      count({1, s.m, h, s.k}, {1, s.n, h, s.k}, {1, h, s.m, s.n}, swapped,
            Axes({0, 2, 3, 1}), identity);
    } else if (kind == "values") {
      count({1, h, s.m, s.k}, {1, s.k, h, s.n}, {1, s.m, h, s.n}, identity, swapped, swapped);
    } else {
      throw std::runtime_error("unknown kind of call: " + kind);
    }
  }

  void Plan(const std::string& kind, const Size& s) {
    const std::map<std::string, int> modes{
        {"linear", kPrepacked}, {"plain", kRows}, {"scores", kColumns}, {"values", kRows}};
    ffi::Function plan = Get("moonpoly_plan_rows");
    for (int64_t rows : {s.m, s.m - 1}) {
      ffi::Tensor out = Zeros("plans", {rows + 1}, kInt);
      CALLGRIND_START_INSTRUMENTATION;
      plan(s.n, s.k, s.batch, modes.at(kind), out);
      CALLGRIND_DUMP_STATS_AT(job.c_str());
      CALLGRIND_STOP_INSTRUMENTATION;
      std::printf("%s end\n", job.c_str());
    }
  }

  ffi::Module library_;
  int64_t lanes_, table_rows_;
};

void RunAll(int argc, char** argv) {
  struct sigaction action {};
  action.sa_sigaction = OnAccess;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGSEGV, &action, nullptr) != 0) throw std::runtime_error("no signal handler");
  Calls calls(argv[1], std::stoll(argv[2]), std::stoll(argv[3]));
  for (int i = 4; i < argc; ++i) {
    job = argv[i];
    const size_t colon = job.find(':');
    Size size{};
    if (colon == std::string::npos ||
        std::sscanf(job.c_str() + colon, ":%ld,%ld,%ld,%ld", &size.batch, &size.m, &size.n,
                    &size.k) != 4) {
      throw std::runtime_error("malformed job: " + job);
    }
    calls.Run(job.substr(0, colon), size);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: driver LIBRARY LANES TABLE_ROWS JOB...\n");
    return EXIT_FAILURE;
  }
  try {
    RunAll(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
