/*
 * Read the digits on pictures of a meter, as the second step of a chain.
 *
 * The input is records of 128 bytes, each with an image of 8x8 pixels from byte 64 on, as the model
 * takes it. The TensorFlow Lite model is on the drive: argument 0 is its first block in namespace 1,
 * argument 1 its number of blocks, and argument 2 its length in bytes. The output is one byte for
 * each record, the digit.
 */
#include "potash.h"

enum { RECORD = 128, IMAGE_AT = 64, IMAGE = 64, CLASSES = 10 };
enum { DONE = 0, WRONG_ARGUMENTS = 1 };

static u8 model[32 * 1024];
static s8 scores[CLASSES];

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 lba, blocks, length;
	long handle;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &lba) || !argument_u32(ctx, 1, &blocks) ||
	    !argument_u32(ctx, 2, &length) || length > sizeof(model) || in_len / RECORD > out_len) {
		print("infer: the arguments are the model's first block, its blocks, and its length");
		return WRONG_ARGUMENTS;
	}
	read_lba(1, lba, blocks, model, sizeof(model));
	handle = tflite_open(model, length, ON_VTA);
	for (u64 i = 0; i < in_len / RECORD; i++) {
		u32 best = 0;

		tflite_run(handle, in + i * RECORD + IMAGE_AT, IMAGE, scores, CLASSES);
		for (u32 j = 1; j < CLASSES; j++)
			if (scores[j] > scores[best])
				best = j;
		out[i] = best;
	}
	tflite_close(handle);
	set_output_length(in_len / RECORD);
	return DONE;
}
