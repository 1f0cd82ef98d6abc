/*
 * The interface of native programs for compute namespaces (potash serve --native FILE.so:FUNCTION):
 *
 *     uint64_t FUNCTION(const struct potash_range *ranges, uint32_t count, const uint64_t parameters[2],
 *                       const void *data, uint64_t length);
 *
 * The ranges are those of Execute Program, the parameters its CPARAM1 and CPARAM2, and `data` the
 * command's data, or 0. The return value is the command's 64-bit result. The function runs in a
 * confined process: it has its ranges, memory and the C library, but no files and no network.
 */
#ifndef POTASH_NATIVE_H
#define POTASH_NATIVE_H

#include <stdint.h>

/* A memory range: its first byte and its length in bytes. */
struct potash_range {
	void *start;
	uint64_t length;
};

#endif
