/*
 * Add two vectors on the tensor accelerator.
 *
 * The input is a TensorFlow Lite model followed by the model's inputs. Argument 0 is the length
 * of the model, argument 1 the length of the output, both in bytes.
 */
#include "potash.h"

enum { DONE = 0, NO_LENGTHS = 1, WRONG_LENGTHS = 2 };

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 model_len, result_len;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &model_len) || !argument_u32(ctx, 1, &result_len)) {
		print("add: the arguments are the lengths of the model and of the output");
		return NO_LENGTHS;
	}
	if (model_len > in_len || result_len > out_len) {
		print("add: the model or the output is longer than its buffer");
		return WRONG_LENGTHS;
	}
	print("add: running the model");
	tflite_vta(in, out, in_len - model_len, result_len, model_len);
	set_output_length(result_len);
	return DONE;
}
