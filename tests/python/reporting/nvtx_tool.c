// A tool as Nsight Systems is one: NVTX loads it into the process, and it
// counts the ranges of the domain "chameleon" by name. At the end it writes
// them to the file that NVTX_TOOL_OUTPUT names.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

enum { kMost = 64 };
static struct {
  char name[64];
  long begun;
} ranges[kMost];
static int count;
static long unbalanced;
static __thread int depth;
static char ours; // its address is the domain
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static nvtxDomainHandle_t create(const char* name) {
  return strcmp(name, "chameleon") ? NULL : (nvtxDomainHandle_t)&ours;
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (domain != (nvtxDomainHandle_t)&ours) return -1;
  pthread_mutex_lock(&mutex);
  int i = 0;
  while (i < count && strcmp(ranges[i].name, event->message.ascii)) ++i;
  if (i == count && count < kMost) {
    snprintf(ranges[count++].name, sizeof ranges[i].name, "%s",
             event->message.ascii);
  }
  ++ranges[i].begun;
  ++unbalanced;
  pthread_mutex_unlock(&mutex);
  return depth++;
}

static int pop(nvtxDomainHandle_t domain) {
  if (domain != (nvtxDomainHandle_t)&ours || depth == 0) abort();
  pthread_mutex_lock(&mutex);
  --unbalanced;
  pthread_mutex_unlock(&mutex);
  return --depth;
}

static void report(void) {
  FILE* file = fopen(getenv("NVTX_TOOL_OUTPUT"), "w");
  for (int i = 0; i < count; ++i) {
    fprintf(file, "%s: %ld\n", ranges[i].name, ranges[i].begun);
  }
  fprintf(file, "open: %ld\n", unbalanced);
  fclose(file);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const NvtxExportTableCallbacks* callbacks = get(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  atexit(report);
  return 1;
}
