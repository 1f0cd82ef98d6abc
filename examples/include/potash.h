/*
 * The interface of programs for Potash: entry point, context and helpers.
 *
 * A program is one C function,
 *
 *     int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx);
 *
 * compiled by `potash build program.c`. There is no C library; a program can call only what this
 * file declares. `in_len` includes the zeroes that pad the input to a multiple of 4, with local
 * storage of 4096.
 *
 * Pointers and lengths are checked against the program's memory before a helper does anything. If
 * they are not entirely inside it, or the helper fails for another reason, the program ends with a
 * fault: its job fails, and the log gives the reason. So no helpers but `arg`, `kv_retrieve` and
 * `kv_list` return an error.
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
 * The same source runs on accelerators and in compute namespaces. With the platform's commands
 * (Start), `in` and `out` are the accelerator's buffers, and the arguments are the list of Start.
 * With Execute of a compute namespace, `in` and `out` are the first and the second memory range of
 * the command with their lengths, or 0 if there is none; the arguments are the list in the command's
 * data or, without data, CPARAM1 and CPARAM2 as four arguments of 32 bits. The return value of `prog`
 * is the command's 64-bit result, so it may be declared to return u64.
 */

/*
 * The time that the program takes on a modelled drive, in place of what its processor would take,
 * and its priority: POTASH_RUN_TIME("fixed=20us,per_byte=0.25ns,priority=2");
 */
#define POTASH_RUN_TIME(text) \
	__attribute__((section(".potash"), used)) static const char potash_run_time[] = text

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

/* Follows the list, at the next multiple of 8. */
struct execution {
	u64 parameters[2]; /* CPARAM1 and CPARAM2; 0 with Start */
	u64 range_count;
	struct memory_range ranges[]; /* with Start: the input and the output */
};

/* ---- Helpers: calls by number into the accelerator's firmware ---- */

/* Add a text to the accelerator's log, truncated to 1024 bytes. */
static long (*const print)(const char *text) = (void *)1;

/*
 * Run a TensorFlow Lite model: `model_len` bytes at `in`, followed by its inputs, which have
 * `input_len` bytes without the model. The outputs are written to `out`, which has `out_len` bytes.
 * Returns the number of bytes written; a model that cannot run ends the program. The first helper
 * uses the processor, the second one the tensor accelerator for the operators that it supports.
 */
static long (*const tflite_apu)(const void *in, void *out, u64 input_len, u64 out_len,
				u64 model_len) = (void *)2;
static long (*const tflite_vta)(const void *in, void *out, u64 input_len, u64 out_len,
				u64 model_len) = (void *)3;

/*
 * Set the length of the output; the default is the whole buffer. Has no effect with Execute: return
 * the length, or store it in a memory range.
 */
static long (*const set_output_length)(u64 length) = (void *)4;

/*
 * Add `length` bytes of text to the accelerator's log, truncated to 1024 and without a NUL: as
 * output of the program, or as an error.
 */
enum { LOG_INFO = 0, LOG_ERROR = 1 };
static long (*const log)(u32 level, const void *text, u64 length) = (void *)5;

/*
 * Copy argument `index` to `to`, at most `room` bytes. Returns its whole length, or -1 if there is
 * no such argument.
 */
static long (*const arg)(u32 index, void *to, u64 room) = (void *)6;

/*
 * The CRC-32C of `length` bytes. `crc` is 0, or the result of an earlier call to continue.
 */
static u32 (*const crc32c)(u32 crc, const void *data, u64 length) = (void *)7;

/*
 * Read `count` blocks of namespace `nsid`, from `lba` on, to `to`, which has `room` bytes. The host
 * must have granted them. Returns their length in bytes, so reading one block gives the block size,
 * which is at most 4096. A job reads back its own writes.
 */
static long (*const read_lba)(u32 nsid, u64 lba, u64 count, void *to, u64 room) = (void *)8;

/*
 * Write `count` blocks, which have `length` bytes. The host must have granted them for writing, and
 * they must not be blocks of the job's output. They are written after the program has returned and
 * before the job is done; a program that ends in another way writes nothing. A job can write 16 MiB
 * of different blocks.
 */
static long (*const write_lba)(u32 nsid, u64 lba, u64 count, const void *from,
			       u64 length) = (void *)9;

/*
 * Load the TensorFlow Lite model of `length` bytes at `model`, run it any number of times, and close
 * it. The bytes at `model` are not needed after `tflite_open`, which returns a handle from 1 to 8; at
 * most 8 models of 64 MiB in total can be open. `tflite_run` returns the number of bytes written.
 */
enum { ON_APU = 0, ON_VTA = 1 };
static long (*const tflite_open)(const void *model, u64 length, u32 processor) = (void *)10;
static long (*const tflite_run)(long model, const void *in, u64 in_len, void *out,
				u64 out_len) = (void *)11;
static long (*const tflite_close)(long model) = (void *)12;

/*
 * Read the value of a key in key value namespace `nsid` to `to`, at most `room` bytes. Returns the
 * size of the whole value, or a negative error. With Execute, `to` is in one memory range if `room`
 * exceeds 4096.
 */
enum {
	KV_NO_KEY = -2,        /* the key does not exist */
	KV_UNREADABLE = -5,    /* reading has failed */
	KV_UNREACHABLE = -13,  /* the namespace cannot be reached or accessed, or is reserved */
	KV_BUSY = -16,         /* it is being formatted, erased or deleted */
	KV_NO_NAMESPACE = -19, /* no such key value namespace is attached */
	KV_INVALID = -22,      /* a key without 1 to 16 bytes; a list in less than 4 */
};
static long (*const kv_retrieve)(u32 nsid, const void *key, u64 key_length, void *to,
				 u64 room) = (void *)13;

/*
 * List keys in ascending order of their bytes, from the first one that is not before the key `first`,
 * or from the very first if `first_length` is 0. Returns how many keys fit in `room` bytes at `to`, or
 * an error as above. `kv_first` and `kv_next` read the list. To continue after a key, list from the
 * key with a zero byte appended, which may have 17 bytes.
 */
static long (*const kv_list)(u32 nsid, const void *first, u64 first_length, void *to,
			     u64 room) = (void *)14;

/* ---- Functions that are compiled into the program ---- */

/* The value of argument `index`, and its length; 0 if there is no such argument. */
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

/* Memory range `index`, counted from 0; 0 if there is no such range. */
static inline const struct memory_range *memory_range(const struct context *ctx, u64 index)
{
	return index < memory_range_count(ctx) ? &execution_of(ctx)->ranges[index] : 0;
}

/* Store argument `index` in `value`; returns 0 if there is no argument of that size. */
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

/* A key in a list of `kv_list`. */
struct kv_key {
	u16 length;
	u8 bytes[];
};

/* The first key in a list that has one, and the key that follows `key`. */
static inline const struct kv_key *kv_first(const void *list)
{
	return (const struct kv_key *)((const char *)list + 4);
}

static inline const struct kv_key *kv_next(const struct kv_key *key)
{
	return (const struct kv_key *)((const char *)key + (2 + key->length + 3) / 4 * 4);
}

/* As in the C library. `-fno-builtin` keeps compilers from replacing their loops with calls. */
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

/* The first occurrence of `part` in `data`, or 0. */
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
