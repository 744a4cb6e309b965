// Little kernels for test_cuda_emulator.py: each shows one thing, right or wrong on purpose.
#include <cuda_fp16.h>
#include <cuda_bf16.h>

// Threads, blocks and plain accesses.

extern "C" __global__ void geometry(int* __restrict__ out) {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = block * 10000 + thread;
}

extern "C" __global__ void scalars(double* __restrict__ out, int a, int64_t b, float c, half d,
                                   bool e, uint8_t f) {
  out[0] = a;
  out[1] = b;
  out[2] = c;
  out[3] = (float)d;
  out[4] = e;
  out[5] = f;
}

extern "C" __global__ void copy_vectors(const half* __restrict__ in, half* __restrict__ out,
                                        int from, int to) {
  *(uint4*)(out + to + threadIdx.x * 8) = *(uint4*)(in + from + threadIdx.x * 8);
}

extern "C" __global__ void __launch_bounds__(64) bounded(float* __restrict__ out) {
  out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void local_array(float* __restrict__ out, int n) {
  alignas(64) float values[4];
  for (int i = 0; i < n; ++i) {
    values[i] = i;
  }
  out[threadIdx.x] = values[3];
}

extern "C" __global__ void tickets(int* __restrict__ next, int* __restrict__ order) {
  if (threadIdx.x % 32 == 0) {
    int warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    order[atomicAdd(next + 0, 1)] = warp;
  }
}

extern "C" __global__ void endless(int* __restrict__ out) {
  while (true) {
    out[0] = 1;
  }
}

// Barriers and shared memory.

extern "C" __global__ void reverse(float* __restrict__ data, int barrier) {
  __shared__ alignas(64) float first[64];
  __shared__ alignas(64) float second[64];
  extern __shared__ uchar dynamic[];
  first[threadIdx.x] = data[threadIdx.x];
  if (barrier) {
    __syncthreads();
  }
  second[threadIdx.x] = first[63 - threadIdx.x] + 1.0f;
  ((float*)dynamic)[threadIdx.x] = second[threadIdx.x] * 2.0f;
  data[threadIdx.x] = ((float*)dynamic)[threadIdx.x];
}

extern "C" __global__ void overwrite(float* __restrict__ data, int barrier) {
  __shared__ float values[64];
  values[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  float got = values[63 - threadIdx.x];
  if (barrier) {
    __syncthreads();
  }
  values[threadIdx.x] = got;
}

extern "C" __global__ void some_skip_barrier(int skipping) {
  if ((int)threadIdx.x >= skipping) {
    __syncthreads();
  }
}

extern "C" __global__ void two_barriers(int first) {
  if ((int)threadIdx.x < first) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

extern "C" __global__ void never_written(float* __restrict__ out) {
  extern __shared__ float values[];
  out[threadIdx.x] = values[threadIdx.x];
}

extern "C" __global__ void within_warp(float* __restrict__ data, int barrier) {
  __shared__ float values[64];
  values[threadIdx.x] = data[threadIdx.x];
  if (barrier) {
    __syncwarp();
  }
  data[threadIdx.x] = values[threadIdx.x ^ 1];
}

// Bank conflicts.

extern "C" __global__ void strided(float* __restrict__ out, int stride) {
  extern __shared__ float values[];
  values[threadIdx.x * stride] = 1.0f;
  out[threadIdx.x] = values[threadIdx.x * stride];
}

extern "C" __global__ void strided_vectors(float* __restrict__ out, int stride) {
  extern __shared__ float values[];
  *(float4*)(values + threadIdx.x * stride) = make_float4(1.0f, 2.0f, 3.0f, 4.0f);
  float4 got = *(float4*)(values + threadIdx.x * stride);
  out[threadIdx.x] = got.w;
}

extern "C" __global__ void broadcast(float* __restrict__ out) {
  __shared__ float values[1];
  if (threadIdx.x == 0) {
    values[0] = 5.0f;
  }
  __syncthreads();
  out[threadIdx.x] = values[0];
}

// ldmatrix: row `r` of the tile begins at `r * pitch` bytes.

__device__ void load_tile(void* shared, const half* in, int pitch) {
  for (int i = 0; i < 8; ++i) {
    int element = threadIdx.x * 8 + i;
    *(half*)((uchar*)shared + element / 8 * pitch + element % 8 * 2) = in[element];
  }
}

extern "C" __global__ void ldmatrix_x4(const half* __restrict__ in, unsigned int* __restrict__ out,
                                       int pitch, int transposed) {
  extern __shared__ __align__(128) uchar tile[];
  alignas(16) half got[8];
  load_tile(tile, in, pitch);
  __syncthreads();
  unsigned int address = __cvta_generic_to_shared(tile + threadIdx.x * pitch);
  if (transposed) {
    __asm__ __volatile__(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
        "{%0, %1, %2, %3}, [%4];\n"
        : "=r"(((unsigned *)(got + 0))[0]), "=r"(((unsigned *)(got + 0))[1]),
          "=r"(((unsigned *)(got + 0))[2]), "=r"(((unsigned *)(got + 0))[3])
        : "r"(address));
  } else {
    __asm__ __volatile__(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
        "{%0, %1, %2, %3}, [%4];\n"
        : "=r"(((unsigned *)(got + 0))[0]), "=r"(((unsigned *)(got + 0))[1]),
          "=r"(((unsigned *)(got + 0))[2]), "=r"(((unsigned *)(got + 0))[3])
        : "r"(address));
  }
  for (int i = 0; i < 4; ++i) {
    out[i * 32 + threadIdx.x] = ((unsigned *)(got + 0))[i];
  }
}

extern "C" __global__ void ldmatrix_x1_x2(const half* __restrict__ in,
                                          unsigned int* __restrict__ out) {
  extern __shared__ __align__(128) uchar tile[];
  load_tile(tile, in, 16);
  __syncthreads();
  unsigned int address;
  // The way that older sources take a shared address.
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
      : "=r"(address) : "l"((void*)(tile + threadIdx.x % 16 * 16)));
  unsigned int one, low, high;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(one) : "r"(address));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared::cta.b16 {%0, %1}, [%2 + 16];"
               : "=r"(low), "=r"(high) : "r"(address));
  out[threadIdx.x] = one;
  out[32 + threadIdx.x] = low;
  out[64 + threadIdx.x] = high;
}

extern "C" __global__ void ldmatrix_half_warp(unsigned int* __restrict__ out) {
  extern __shared__ __align__(128) uchar tile[];
  *(uint4*)(tile + threadIdx.x * 16) = make_uint4(1, 2, 3, 4);
  __syncthreads();
  unsigned int got = 0;
  if (threadIdx.x < 16) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(got) : "r"(__cvta_generic_to_shared(tile + threadIdx.x * 16)));
  }
  out[threadIdx.x] = got;
}

// mma: fragments as the PTX manual lays them out, A (16, 16) and B (16, 8) in rows.

extern "C" __global__ void mma_half(const half* __restrict__ a, const half* __restrict__ b,
                                    float* __restrict__ c) {
  int group = threadIdx.x / 4;
  int pair = threadIdx.x % 4 * 2;
  unsigned int fa[4];
  unsigned int fb[2];
  float fc[4];
  for (int i = 0; i < 4; ++i) {
    fa[i] = *(unsigned int*)(a + (group + i % 2 * 8) * 16 + pair + i / 2 * 8);
    fc[i] = c[(group + i / 2 * 8) * 8 + pair + i % 2];
  }
  for (int i = 0; i < 2; ++i) {
    half low = b[(pair + i * 8) * 8 + group];
    half high = b[(pair + i * 8 + 1) * 8 + group];
    fb[i] = *(unsigned short*)(&low) | *(unsigned short*)(&high) << 16;
  }
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\n"
      : "=f"(fc[0]), "=f"(fc[1]), "=f"(fc[2]), "=f"(fc[3])
      : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]),
        "f"(fc[0]), "f"(fc[1]), "f"(fc[2]), "f"(fc[3]));
  for (int i = 0; i < 4; ++i) {
    c[(group + i / 2 * 8) * 8 + pair + i % 2] = fc[i];
  }
}

// cp.async: two groups of 16 bytes a thread; `mode` says how the thread waits for them.

__forceinline__ __device__ void copy_16(void* to, const void* from) {
  unsigned int address = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(16));
}

extern "C" __global__ void two_groups(const float* __restrict__ in, float* __restrict__ out,
                                      int mode, int group, int neighbour) {
  extern __shared__ __align__(128) uchar shared[];
  copy_16(shared + threadIdx.x * 16, in + threadIdx.x * 4);
  asm volatile("cp.async.commit_group;" : :);
  copy_16(shared + (threadIdx.x + 32) * 16, in + (threadIdx.x + 32) * 4);
  if (mode != 4) {
    asm volatile("cp.async.commit_group;" ::);
  }
  if (mode == 0) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  if (mode == 1) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  }
  if (mode == 2) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  }
  if (mode == 3) {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  if (mode == 4) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  int from = (threadIdx.x ^ neighbour) + group * 32;
  *(float4*)(out + threadIdx.x * 4) = *(float4*)(shared + from * 16);
}

extern "C" __global__ void copy_sizes(const half* __restrict__ in, half* __restrict__ out,
                                      int from, int filled) {
  extern __shared__ __align__(128) uchar shared[];
  unsigned int to = __cvta_generic_to_shared(shared);
  int predicate = filled > 0;
  // The form that TVM prints: a predicate, zeros where it is false.
  __asm__ __volatile__(
    "{\n"
    " .reg .pred p;\n"
    " setp.eq.u32 p, %3, 1;\n"
    " @p cp.async.ca.shared.global [%0], [%1], %2;\n"
    " @!p st.shared.v2.u32 [%0], {%4, %4};\n"
    "}\n"
    :: "r"(to), "l"(in + from), "n"(8), "r"(predicate), "r"(0)
  );
  // The form that reads fewer bytes than it fills.
  asm volatile("cp.async.ca.shared::cta.global.L2::128B [%0 + 8], [%1], 8, %2;"
               ::"r"(to), "l"(in + from), "r"(filled));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"(to + 16), "l"(in + from), "r"(4 * filled));
  asm volatile("cp.async.wait_all;");
  for (int i = 0; i < 16; ++i) {
    out[i] = ((half*)shared)[i];
  }
}

extern "C" __global__ void copy_past_l1(const float* __restrict__ in) {
  extern __shared__ __align__(128) uchar shared[];
  asm volatile("cp.async.cg.shared.global [%0], [%1], 4;"
               ::"r"(__cvta_generic_to_shared(shared)), "l"(in));
}

extern "C" __global__ void copy_from(const float* __restrict__ in, int from, int to) {
  extern __shared__ __align__(128) uchar shared[];
  copy_16(shared + to, (uchar*)in + from);
  asm volatile("cp.async.wait_all;");
}

extern "C" __global__ void overwrite_copy(const float* __restrict__ in) {
  extern __shared__ __align__(128) uchar shared[];
  copy_16(shared, in);
  *(float*)shared = 1.0f;
}

// Shuffles.

extern "C" __global__ void shuffles(const float* __restrict__ in, float* __restrict__ out,
                                    int operand, int width) {
  float value = in[threadIdx.x];
  out[threadIdx.x] = __shfl_sync(0xffffffff, value, operand, width);
  out[32 + threadIdx.x] = __shfl_up_sync(0xffffffff, value, operand, width);
  out[64 + threadIdx.x] = __shfl_down_sync(__activemask(), value, operand, width);
  out[96 + threadIdx.x] = __shfl_xor_sync(0xffffffff, value, operand, width);
}

extern "C" __global__ void shuffle_some(float* __restrict__ out, int lanes) {
  if ((int)threadIdx.x < lanes) {
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffff, (float)threadIdx.x, 1, 32);
  }
}

// Numbers and functions of epilogues.

extern "C" __global__ void conversions(const float* __restrict__ in, half* __restrict__ halves,
                                       nv_bfloat16* __restrict__ bfloats, float* __restrict__ back) {
  int i = blockIdx.x * 32 + threadIdx.x;
  halves[i] = __float2half_rn(in[i]);
  bfloats[i] = ((nv_bfloat16)in[i]);
  back[2 * i] = ((float)halves[i]);
  back[2 * i + 1] = __bfloat162float(bfloats[i]);
}

extern "C" __global__ void functions(const float* __restrict__ in, float* __restrict__ out) {
  float x = in[threadIdx.x];
  out[threadIdx.x] = erff(x);
  out[32 + threadIdx.x] = expf(x);
  out[64 + threadIdx.x] = tanhf(x);
  out[96 + threadIdx.x] = sqrtf(fabsf(x));
  out[128 + threadIdx.x] = rsqrtf(fabsf(x));
  out[160 + threadIdx.x] = max(in[threadIdx.x], 0x0p+0f/*0.000000e+00*/);
  out[192 + threadIdx.x] = min(x, 0x1p+0f/*1.000000e+00*/);
  out[224 + threadIdx.x] = __expf(x) + logf(2.0f);
  out[256 + threadIdx.x] = (x < 0.0f) ? in[threadIdx.x] : in[threadIdx.x ^ 1];
}

extern "C" __global__ void half_functions(const half* __restrict__ in, half* __restrict__ out) {
  out[threadIdx.x] = hexp(in[threadIdx.x]);
  out[32 + threadIdx.x] = htanh(in[threadIdx.x]);
  out[64 + threadIdx.x] = (in[threadIdx.x] * in[threadIdx.x]) + __float2half_rn(0x1.8p+0f);
  out[96 + threadIdx.x] = (__float2half_rn(1.0f) / hsqrt(__habs(in[threadIdx.x])));
  half2 pair = *(half2*)(in + (threadIdx.x & 30));
  pair.x = (pair.x + pair.y);
  out[128 + threadIdx.x] = pair.x;
}

// Global memory that two blocks share.

extern "C" __global__ void overlapping(float* __restrict__ out, int step) {
  out[blockIdx.x * step + threadIdx.x] = 1.0f;
}

extern "C" __global__ void sums(const float* __restrict__ in, float* __restrict__ out) {
  atomicAdd(out + 0, in[blockIdx.x * 32 + threadIdx.x]);
}
