// The scheduler of the fibers: each warp runs until its threads wait, then the block's barrier.
#include <sys/mman.h>

#include <algorithm>

#include "block.h"

#ifdef __x86_64__
__asm__(
    ".text\n.globl emu_switch_stacks\n.type emu_switch_stacks, @function\nemu_switch_stacks:\n"
    " pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    " movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
    " popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n"
    ".size emu_switch_stacks, .-emu_switch_stacks\n");
#endif

namespace emu {

Block block;

namespace {

constexpr int64_t kStatementsWithoutPause = 100'000'000;
constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kGuardBytes = 16 << 10;

Context scheduler;

// Mapped once, touched only as deep as kernels go; a stack that overflows meets its guard.
char* stack_of(int thread) {
  static char* stacks = [] {
    void* memory = mmap(nullptr, kMaxThreads * (kStackBytes + kGuardBytes), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
  }();
  static std::vector<bool> usable(kMaxThreads);
  if (stacks == nullptr) fault("no memory for the stacks of the threads");
  char* stack = stacks + thread * (kStackBytes + kGuardBytes) + kGuardBytes;
  if (!usable[thread]) {
    if (mprotect(stack, kStackBytes, PROT_READ | PROT_WRITE) != 0)
      fault("no memory for the stack of a thread");
    usable[thread] = true;
  }
  return stack;
}

void run_kernel() {
  block.kernel();
  suspend(State::ended);
  __builtin_unreachable();
}

void resume(Thread& thread) {
  block.running = &thread;
  now.thread = thread.index;
  now.line = thread.line;
  now.statements_left = kStatementsWithoutPause;
  switch_to(scheduler, thread.context);
  block.running = nullptr;
  if (block.failed) throw Failure{};
}

const char* waits_at(const Thread& thread) {
  switch (thread.state) {
    case State::ended: return "has ended";
    case State::barrier: return "waits at __syncthreads";
    default: break;
  }
  switch (thread.request.operation) {
    case Operation::load_matrices: return "waits at ldmatrix";
    case Operation::multiply_tiles: return "waits at mma.sync";
    case Operation::shuffle: return "waits at a shuffle";
    default: return "waits at __syncwarp";
  }
}

// Serves one collective of the warp, if a lane asks for one. True when it did.
bool serve_collective(Thread* warp, int lanes) {
  int first = 0;
  while (first < lanes && warp[first].state != State::collective) ++first;
  if (first == lanes) return false;
  Thread& asking = warp[first];
  block.subject = &asking;
  const uint32_t mask = asking.request.mask;
  if ((mask >> first & 1) == 0) fault("its own lane is not in the mask 0x%08x", mask);
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    if (lane >= lanes) fault("it %s for lane %d, which the block lacks", waits_at(asking), lane);
    const Thread& other = warp[lane];
    const bool same = other.state == State::collective && other.line == asking.line &&
                      other.request.operation == asking.request.operation &&
                      other.request.variant == asking.request.variant &&
                      other.request.mask == mask;
    if (!same)
      fault("the warp has diverged (deadlock): it %s, while lane %d %s, at line %d",
            waits_at(asking), lane, waits_at(other), other.line);
  }
  serve_warp(warp, mask);
  for (int lane = 0; lane < lanes; ++lane)
    if ((mask >> lane & 1) != 0) warp[lane].state = State::runnable;
  return true;
}

void run_warp(Thread* warp, int lanes) {
  do {
    for (int lane = 0; lane < lanes; ++lane)
      if (warp[lane].state == State::runnable) resume(warp[lane]);
    count_bank_conflicts(warp, lanes);
  } while (serve_collective(warp, lanes));
}

// All threads have ended or wait at a barrier: true when they have ended.
bool pass_barrier() {
  const Thread* waiting = nullptr;
  int ended = 0;
  for (const Thread& thread : block.threads) {
    if (thread.state == State::ended) {
      ++ended;
    } else if (waiting == nullptr) {
      waiting = &thread;
    } else if (thread.line != waiting->line) {
      block.subject = block.running = nullptr;
      now.line = waiting->line;
      fault("barrier divergence: thread %d waits at the __syncthreads of line %d, thread %d at the "
            "one of line %d", waiting->number, waiting->line, thread.number, thread.line);
    }
  }
  if (waiting == nullptr) return true;
  if (ended > 0) {
    block.subject = nullptr;
    now.line = waiting->line;
    fault("barrier divergence (deadlock): %d of %zu threads ended without the __syncthreads at "
          "which thread %d waits", ended, block.threads.size(), waiting->number);
  }
  ++counts.barriers;
  barrier_passed();
  for (Thread& thread : block.threads) thread.state = State::runnable;
  return false;
}

}  // namespace

void run_block(std::vector<int>& order) {
  const int count = static_cast<int>(block.threads.size());
  const Index size = now.block_size;
  reset_shared(count);
  for (int i = 0; i < count; ++i) {
    Thread& thread = block.threads[i];
    thread.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    thread.number = i;
    thread.line = 0;
    thread.state = State::runnable;
    thread.open_copies.clear();
    thread.groups.clear();
    thread.accesses.clear();
    prepare(thread.context, stack_of(i), kStackBytes, run_kernel);
  }
  do {
    shuffle_order(order);
    for (int warp : order)
      run_warp(&block.threads[warp * kWarp], std::min(kWarp, count - warp * kWarp));
  } while (!pass_barrier());
}

void suspend(State state) {
  Thread& thread = *block.running;
  thread.state = state;
  thread.line = now.line;
  switch_to(thread.context, scheduler);
}

void leave_fiber() {
  switch_to(block.running->context, scheduler);
  __builtin_unreachable();
}

void never_stops() {
  fault("%lld statements without a pause: it never ends (deadlock)",
        static_cast<long long>(kStatementsWithoutPause));
}

void barrier() { suspend(State::barrier); }

uint32_t active_mask() {
  const int first = block.running->warp() * kWarp;
  uint32_t mask = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    const size_t number = static_cast<size_t>(first + lane);
    if (number < block.threads.size() && block.threads[number].state != State::ended)
      mask |= 1u << lane;
  }
  return mask;
}

}  // namespace emu
