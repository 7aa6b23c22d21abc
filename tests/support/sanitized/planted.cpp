// Faults on purpose: where no sanitizer ends the process, none is at work.
extern "C" void write_behind(float* values, int count) { values[count] = 1.0f; }
extern "C" int overflow(int value) { return value + 0x7fffffff; }
