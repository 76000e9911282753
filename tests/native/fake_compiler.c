/* An emulated run-time compiler: NVRTC by its own names, hipRTC by macros on the command line. Its image is the source
   with the options before it. FAKE_COMPILER_LOG names a file that gets one line a compilation. The architecture sm_0 is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef NAME
#define NAME(rest) nvrtc##rest
#define CODE(rest) nvrtcGetCUBIN##rest
#endif

struct program {
  char* source;
  char image[1 << 16];
  size_t nbytes;
  int refused;
};

int NAME(Version)(int* major, int* minor) {
  *major = 12;
  *minor = 8;
  return 0;
}

int NAME(CreateProgram)(struct program** made, const char* source, const char* name, int headers, const char** texts,
                        const char** names) {
  if (headers != 0 || texts != NULL || names != NULL || name == NULL) return 3;
  *made = calloc(1, sizeof **made);
  (*made)->source = strdup(source);
  return 0;
}

int NAME(CompileProgram)(struct program* program, int count, const char** options) {
  char line[512] = "";
  for (int i = 0; i < count; ++i) {
    strcat(line, options[i]);
    strcat(line, " ");
  }
  program->refused = strstr(line, "sm_0") != NULL;
  if (program->refused) return 6;
  program->nbytes = (size_t)snprintf(program->image, sizeof program->image, "%s\n%s", line, program->source) + 1;
  const char* log = getenv("FAKE_COMPILER_LOG");
  FILE* file = log == NULL ? NULL : fopen(log, "a");
  if (file != NULL) {
    fprintf(file, "%s\n", line);
    fclose(file);
  }
  return 0;
}

int CODE(Size)(struct program* program, size_t* nbytes) {
  *nbytes = program->nbytes;
  return 0;
}

int CODE()(struct program* program, char* image) {
  memcpy(image, program->image, program->nbytes);
  return 0;
}

int NAME(GetProgramLogSize)(struct program* program, size_t* nbytes) {
  (void)program;
  *nbytes = sizeof "no such architecture";
  return 0;
}

int NAME(GetProgramLog)(struct program* program, char* text) {
  (void)program;
  strcpy(text, "no such architecture");
  return 0;
}

int NAME(DestroyProgram)(struct program** program) {
  free((*program)->source);
  free(*program);
  *program = NULL;
  return 0;
}
