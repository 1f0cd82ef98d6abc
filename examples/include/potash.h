/*
 * What a program on a Potash accelerator sees: its entry, its context and its helpers.
 *
 * A program is one C function,
 *
 *     int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx);
 *
 * built by `potash build program.c`. It stands alone: there is no C library, and what is below is
 * all there is to call. `in_len` counts the zeroes that fill the input up to a multiple of 4, with
 * local storage of 4096.
 *
 * Every pointer and length that a helper is given is checked against the program's memory before
 * anything is done. What is not wholly inside, and whatever else a helper cannot do, ends the
 * program with a fault: its job has failed, and the log says why. So a value that a
 * helper returns is never an error, but for `arg`.
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

/*
 * The same source runs both ways that a host can run a program. With the platform's commands (Start),
 * `in` and `out` are the accelerator's buffers, and the arguments are the list that came with Start.
 * With Execute of a compute namespace, `in` and `out` are the first and the second memory range of
 * the command, each with its length, or 0 where there is none; the arguments are the list that is the
 * command's data or, where it has none, CPARAM1 and CPARAM2 as four arguments of 32 bits. What `prog`
 * returns is the command's 64-bit result, so it may be declared to return u64.
 */

/* A memory range: its first byte and its length in bytes. */
struct memory_range {
	char *start;
	u64 length;
};

/* What r5 points at. */
struct context {
	u32 version; /* 2 */
	u32 argument_count;
	u64 list_length; /* bytes of the list that follows */
	char list[];     /* for each argument: u32 length, its own four bytes included; the value */
};

/* What is behind the list, at the next multiple of 8. */
struct execution {
	u64 parameters[2]; /* CPARAM1 and CPARAM2; 0 with Start */
	u64 range_count;
	struct memory_range ranges[]; /* with Start: the input and the output */
};

/* ---- Helpers: calls by number into the accelerator's firmware ---- */

/* Put a text of at most 1024 bytes into the accelerator's log; what is longer is cut. */
static long (*const print)(const char *text) = (void *)1;

/*
 * Run a TensorFlow Lite model: its `model_len` bytes are at `in`, followed by its inputs, which
 * have `input_len` bytes without the model; its outputs go to out[0] to out[out_len]. Returns how
 * many bytes were written; a model that cannot be run ends the program. The first computes on the
 * processor, the second gives to the tensor accelerator what that can do.
 */
static long (*const tflite_apu)(const void *in, void *out, u64 input_len, u64 out_len,
				u64 model_len) = (void *)2;
static long (*const tflite_vta)(const void *in, void *out, u64 input_len, u64 out_len,
				u64 model_len) = (void *)3;

/*
 * Say how much of the output buffer is the result; without it the whole buffer is. With Execute there
 * is nobody to be told: a host that needs the length gets it as the result, or in the memory.
 */
static long (*const set_output_length)(u64 length) = (void *)4;

/*
 * Put `length` bytes of text into the accelerator's log, at most 1024 of them, with no need for a
 * NUL at their end: as what the program prints, or as an error that it met.
 */
enum { LOG_INFO = 0, LOG_ERROR = 1 };
static long (*const log)(u32 level, const void *text, u64 length) = (void *)5;

/*
 * Copy argument `index` to `to`, as much of it as fits in `room` bytes. Returns its whole length,
 * or -1 where there is no such argument.
 */
static long (*const arg)(u32 index, void *to, u64 room) = (void *)6;

/*
 * The CRC-32C of `length` bytes. `crc` is 0, or what an earlier call gave, to go on from there.
 */
static u32 (*const crc32c)(u32 crc, const void *data, u64 length) = (void *)7;

/*
 * Read `count` blocks from `lba` on of namespace `nsid` to `to`, which has `room` bytes. The host
 * must have granted them. Returns how many bytes they have: reading one block tells how large a
 * block is, which is at most 4096 bytes here. What the job has written it reads back.
 */
static long (*const read_lba)(u32 nsid, u64 lba, u64 count, void *to, u64 room) = (void *)8;

/*
 * Have `count` blocks written; `length` is the bytes that they have. The host must have granted
 * them for writing, and they must not be blocks of the job's output. They reach the drive when the
 * program has returned, all of them, before the job is done; a program that ends any other way has
 * written nothing. A job can write 16 MiB of different blocks.
 */
static long (*const write_lba)(u32 nsid, u64 lba, u64 count, const void *from,
			       u64 length) = (void *)9;

/*
 * Load the TensorFlow Lite model of `length` bytes at `model`, which is then no longer needed
 * there, run it as often as there are inputs, and let it go. `tflite_open` returns a number from 1
 * to 8 for it, as so many can be open at a time, of 64 MiB together; `tflite_run` how many bytes of
 * `out` it wrote.
 */
enum { ON_APU = 0, ON_VTA = 1 };
static long (*const tflite_open)(const void *model, u64 length, u32 processor) = (void *)10;
static long (*const tflite_run)(long model, const void *in, u64 in_len, void *out,
				u64 out_len) = (void *)11;
static long (*const tflite_close)(long model) = (void *)12;

/* ---- Small functions that become a part of the program ---- */

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

/* The parameters and the ranges. */
static inline const struct execution *execution_of(const struct context *ctx)
{
	return (const struct execution *)(ctx->list + (ctx->list_length + 7) / 8 * 8);
}

/* CPARAM1 or CPARAM2, by its number 1 or 2. */
static inline u64 parameter(const struct context *ctx, u32 number)
{
	return execution_of(ctx)->parameters[number == 2];
}

static inline u64 memory_range_count(const struct context *ctx)
{
	return execution_of(ctx)->range_count;
}

/* Memory range `index`, from 0 on, or 0 where there is none such. */
static inline const struct memory_range *memory_range(const struct context *ctx, u64 index)
{
	return index < memory_range_count(ctx) ? &execution_of(ctx)->ranges[index] : 0;
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

/* The same for 64 bits. */
static inline int argument_u64(const struct context *ctx, u32 index, u64 *value)
{
	u32 length;
	const void *at = argument(ctx, index, &length);

	if (!at || length != sizeof(u64))
		return 0;
	*value = *(const u64 *)at;
	return 1;
}

/* As those of the C library. `-fno-builtin` keeps a compiler from calling that instead. */
static inline void *memcpy(void *to, const void *from, unsigned long length)
{
	for (unsigned long i = 0; i < length; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

static inline void *memmove(void *to, const void *from, unsigned long length)
{
	if ((unsigned long)to <= (unsigned long)from)
		return memcpy(to, from, length);
	while (length--)
		((char *)to)[length] = ((const char *)from)[length];
	return to;
}

static inline void *memset(void *to, int value, unsigned long length)
{
	for (unsigned long i = 0; i < length; i++)
		((char *)to)[i] = value;
	return to;
}

static inline int memcmp(const void *left, const void *right, unsigned long length)
{
	const u8 *a = left, *b = right;

	for (unsigned long i = 0; i < length; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

static inline void *memchr(const void *data, int value, unsigned long length)
{
	const u8 *at = data;

	for (unsigned long i = 0; i < length; i++)
		if (at[i] == (u8)value)
			return (void *)(at + i);
	return 0;
}

static inline unsigned long strlen(const char *text)
{
	unsigned long length = 0;

	while (text[length])
		length++;
	return length;
}

/* Where `part` lies in `data` first, or 0 where it does not. */
static inline const char *find(const char *data, u64 length, const char *part, u64 part_length)
{
	if (!part_length)
		return data;
	for (u64 i = 0; i + part_length <= length; i++)
		if (data[i] == part[0] && !memcmp(data + i, part, part_length))
			return data + i;
	return 0;
}

/* `value` in decimal to `to`, which has room for 20 digits; returns how many there are. */
static inline u32 decimal(char *to, u64 value)
{
	u32 length = 1;

	for (u64 rest = value; rest >= 10; rest /= 10)
		length++;
	for (u32 i = length; i--; value /= 10)
		to[i] = '0' + value % 10;
	return length;
}

/* Print a text with a number behind it; of the text, at most 100 bytes. */
static inline void print_number(const char *text, u64 value)
{
	char line[120];
	u32 length = 0;

	for (; length < 100 && text[length]; length++)
		line[length] = text[length];
	length += decimal(line + length, value);
	log(LOG_INFO, line, length);
}

#endif
