/* CUDA's runtime and driver as far as TVM and the bench call them, without a GPU: memory is the
 * host's, kernels do nothing. Launches are written to the file that FAKE_CUDA_LAUNCHES names.
 * Compiled twice: as libcuda.so.1 with -DDRIVER, else as libcudart.so.13. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef DRIVER

/* what begins an ELF file; cubins are such */
static const char kElf[4] = {0x7f, 'E', 'L', 'F'};

typedef struct {
  unsigned grid[3], block[3], shared;
} Config;

int cuModuleLoadData(void **module, const void *code) {
  if (memcmp(code, kElf, sizeof kElf)) return 200; /* CUDA_ERROR_INVALID_IMAGE */
  *module = (void *)code;
  return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = strdup(name);
  return 0;
}
int cuLaunchKernelEx(const Config *c, void *function, void **args, void **extra) {
  const char *path = getenv("FAKE_CUDA_LAUNCHES");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (file) {
    fprintf(file, "%s %u,%u,%u %u,%u,%u %u\n", (const char *)function, c->grid[0], c->grid[1],
            c->grid[2], c->block[0], c->block[1], c->block[2], c->shared);
    fclose(file);
  }
  return 0;
}
int cuModuleUnload(void *module) { return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuDeviceGetName(char *name, int size, int device) { return 0; }
int cuGetErrorName(int status, const char **text) { return *text = "a CUDA error", 0; }
int cuGetErrorString(int status, const char **text) { return *text = "a CUDA error", 0; }
int cuTensorMapEncodeTiled(void) { return 801; }

#else

static int count_of_devices(void) {
  const char *text = getenv("FAKE_CUDA_DEVICES");
  return text ? atoi(text) : 1;
}
static int arch(void) {
  const char *text = getenv("FAKE_CUDA_ARCH");
  return text ? atoi(text) : 90;
}
int cudaGetDeviceCount(int *count) { return (*count = count_of_devices()) ? 0 : 100; }
int cudaGetDevice(int *device) { return *device = 0; }
int cudaSetDevice(int device) { return 0; }
int cudaDriverGetVersion(int *version) { return *version = 13000, 0; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 13: *value = 1980000; break;
    case 16: *value = 4; break;
    case 38: *value = 1 << 20; break;
    case 75: *value = arch() / 10; break;
    case 76: *value = arch() % 10; break;
    default: *value = 0;
  }
  return 0;
}
int cudaGetDeviceProperties(char *properties, int device) {
  strcpy(properties, "A GPU that computes nothing");
  return 0;
}
int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  return *free_bytes = *total = (size_t)1 << 30, 0;
}
int cudaMalloc(void **p, size_t size) {
  return posix_memalign(p, 256, size ? size : 1) ? 2 : 0;
}
int cudaFree(void *p) { return free(p), 0; }
int cudaMallocHost(void **p, size_t size) { return cudaMalloc(p, size); }
int cudaFreeHost(void *p) { return cudaFree(p); }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  return memcpy(to, from, size), 0;
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  return cudaMemcpy(to, from, size, kind);
}
int cudaMemcpy2D(char *to, size_t pitch, const char *from, size_t from_pitch, size_t width,
                 size_t height, int kind) {
  for (size_t i = 0; i < height; i++) memcpy(to + i * pitch, from + i * from_pitch, width);
  return 0;
}
int cudaMemcpyPeerAsync(void) { return 801; }
int cudaMemsetAsync(void *p, int byte, size_t size, void *stream) {
  /* zeros are only written to pass the time */
  if (byte) memset(p, byte, size);
  return 0;
}
int cudaEventCreate(void **event) { return (*event = calloc(1, sizeof(struct timespec))) ? 0 : 2; }
int cudaEventDestroy(void *event) { return free(event), 0; }
int cudaEventRecord(void *event, void *stream) { return clock_gettime(CLOCK_MONOTONIC, event); }
int cudaEventSynchronize(void *event) { return 0; }
int cudaEventElapsedTime(float *ms, struct timespec *a, struct timespec *b) {
  *ms = (b->tv_sec - a->tv_sec) * 1e3 + (b->tv_nsec - a->tv_nsec) * 1e-6;
  return 0;
}
int cudaDeviceSynchronize(void) { return 0; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
const char *cudaGetErrorString(int status) {
  return status == 100 ? "no CUDA-capable device is detected" : "a CUDA error";
}
const char *cudaGetErrorName(int status) { return "cudaError"; }
int cudaStreamCreate(void **stream) { return *stream = NULL, 0; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return *stream = NULL, 0; }
int cudaStreamDestroy(void *stream) { return 0; }
int cudaStreamSynchronize(void *stream) { return 0; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int cudaStreamBeginCapture(void) { return 801; }
int cudaStreamEndCapture(void) { return 801; }
int cudaGraphDestroy(void) { return 801; }
int cudaGraphExecDestroy(void) { return 801; }
int cudaGraphInstantiate(void) { return 801; }
int cudaGraphLaunch(void) { return 801; }

#endif
