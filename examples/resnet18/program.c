/*
 * Classify one picture on the tensor accelerator.
 *
 * The input is a TensorFlow Lite model followed by the picture as the model takes it. Argument 0 is
 * the length of the model, argument 1 the number of classes. The output is the model's: an int8 score
 * for each class. The five classes with the highest scores are printed, of equal ones the first.
 */
#include "potash.h"

enum { PLACES = 5 };
enum { DONE = 0, WRONG_ARGUMENTS = 1 };

/* Print "resnet18: class 123 has 45". */
static void show(u32 class, s32 score)
{
	static const char name[] = "resnet18: class ", has[] = " has ";
	char line[64];
	u32 length = sizeof(name) - 1;

	memcpy(line, name, length);
	length += decimal(line + length, class);
	memcpy(line + length, has, sizeof(has) - 1);
	length += sizeof(has) - 1;
	if (score < 0)
		line[length++] = '-';
	length += decimal(line + length, score < 0 ? -score : score);
	log(LOG_INFO, line, length);
}

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	const s8 *scores = (const s8 *)out;
	u32 model_len, classes, best[PLACES], found = 0;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &model_len) || !argument_u32(ctx, 1, &classes) || !classes ||
	    model_len > in_len || classes > out_len) {
		print("resnet18: the arguments are the length of the model, and the number of classes");
		return WRONG_ARGUMENTS;
	}
	tflite_vta(in, out, in_len - model_len, classes, model_len);
	for (u32 i = 0; i < classes; i++) {
		u32 place = found;

		while (place && scores[i] > scores[best[place - 1]])
			place--;
		if (place == PLACES)
			continue;
		if (found < PLACES)
			found++;
		for (u32 j = found - 1; j > place; j--)
			best[j] = best[j - 1];
		best[place] = i;
	}
	for (u32 i = 0; i < found; i++)
		show(best[i], scores[best[i]]);
	set_output_length(classes);
	return DONE;
}
