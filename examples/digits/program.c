/*
 * Classify images on the tensor accelerator.
 *
 * The input is a TensorFlow Lite model followed by images, each as the model takes it. Argument 0 is
 * the length of the model, argument 1 that of an image, argument 2 how many images there are and
 * argument 3 how many classes. The model gives an int8 score for each class; the output is one byte
 * for each image, the class with the highest score, the first one of several.
 */
#include "potash.h"

enum { MOST_CLASSES = 256 };
enum { DONE = 0, WRONG_ARGUMENTS = 1, NO_ROOM = 2 };

static s8 scores[MOST_CLASSES];

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 model_len, image_len, count, classes;
	long model;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &model_len) || !argument_u32(ctx, 1, &image_len) ||
	    !argument_u32(ctx, 2, &count) || !argument_u32(ctx, 3, &classes) || !classes ||
	    classes > MOST_CLASSES || model_len + (u64)image_len * count > in_len) {
		print("digits: the arguments are the lengths of the model and of an image, the number "
		      "of images, and that of classes");
		return WRONG_ARGUMENTS;
	}
	if (count > out_len) {
		print("digits: there is not a byte of output for each image");
		return NO_ROOM;
	}
	model = tflite_open(in, model_len, ON_VTA);
	for (u64 i = 0; i < count; i++) {
		u32 best = 0;

		tflite_run(model, in + model_len + i * image_len, image_len, scores, classes);
		for (u32 j = 1; j < classes; j++)
			if (scores[j] > scores[best])
				best = j;
		out[i] = best;
	}
	tflite_close(model);
	set_output_length(count);
	print_number("digits: images classified: ", count);
	return DONE;
}
