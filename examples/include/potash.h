/*
 * What a program on a Potash accelerator sees: its entry, its context and its helpers.
 *
 * A program is one C function,
 *
 *     int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx);
 *
 * built by `potash build program.c`. It stands alone: there is no C library, and the helpers below
 * are all there is to call. `in_len` counts the zeroes that fill the input up to a multiple of 4,
 * with local storage of 4096.
 */
#ifndef POTASH_H
#define POTASH_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;

/* What r5 points at: the arguments that the host gave with Start. */
struct context {
	u32 version;
	u32 argument_count;
	u64 list_length; /* bytes of the list that follows */
	char list[];     /* for each argument: u32 length, its own four bytes included; the value */
};

/* Put a text of at most 1024 bytes into the accelerator's log. */
static long (*const print)(const char *text) = (void *)1;

/*
 * Run a TensorFlow Lite model: it lies at in[0] to in[model_len], its inputs follow up to
 * in[in_len], its outputs go to out[0] to out[out_len]. Returns how many bytes were written; a
 * model that cannot be run ends the program. The first computes on the processor, the second
 * gives to the tensor accelerator what that can do.
 */
static long (*const tflite_apu)(const void *in, void *out, u64 in_len, u64 out_len,
				u64 model_len) = (void *)2;
static long (*const tflite_vta)(const void *in, void *out, u64 in_len, u64 out_len,
				u64 model_len) = (void *)3;

/* Say how much of the output buffer is the result; without it the whole buffer is. */
static long (*const set_output_length)(u64 length) = (void *)4;

/* The value of argument `index` and its length, or 0 where there is no such argument. */
static inline const void *argument(const struct context *ctx, u32 index, u32 *length)
{
	const char *at = ctx->list;

	if (index >= ctx->argument_count)
		return 0;
	while (index--)
		at += *(const u32 *)at;
	*length = *(const u32 *)at - sizeof(u32);
	return at + sizeof(u32);
}

/* Argument `index` as a number into `value`; 0 where there is none of that size. */
static inline int argument_u32(const struct context *ctx, u32 index, u32 *value)
{
	u32 length;
	const void *at = argument(ctx, index, &length);

	if (!at || length != sizeof(u32))
		return 0;
	*value = *(const u32 *)at;
	return 1;
}

#endif
