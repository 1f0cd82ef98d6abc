/*
 * Find the lines that contain a text.
 *
 * Argument 0 is the length of the input in bytes, argument 1 the text. The output is the number of
 * lines, in 64 bits, and then the lines themselves, each with its newline: as many as there is
 * room for.
 */
#include "potash.h"

enum { DONE = 0, WRONG_ARGUMENTS = 1 };

/* How far to go on where the last byte under the text is this one (Horspool's search). */
static u32 skip[256];

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 length, text_len = 0;
	const char *text = argument(ctx, 1, &text_len);
	u64 at = 0, used = sizeof(u64), count = 0, kept = 0;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &length) || length > in_len || out_len < sizeof(u64) ||
	    !text_len || memchr(text, '\n', text_len)) {
		print("grep: the arguments are the length of the input and a text to find in a line");
		return WRONG_ARGUMENTS;
	}
	for (u32 i = 0; i < 256; i++)
		skip[i] = text_len;
	for (u32 i = 0; i + 1 < text_len; i++)
		skip[(u8)text[i]] = text_len - 1 - i;

	while (at + text_len <= length) {
		u64 start = at, end = at + text_len;

		if (memcmp(in + at, text, text_len)) {
			at += skip[(u8)in[end - 1]];
			continue;
		}
		while (start > 0 && in[start - 1] != '\n')
			start--;
		while (end < length && in[end] != '\n')
			end++;
		at = end + 1;
		count++;
		if (kept + 1 == count && used + end - start < out_len) {
			memcpy(out + used, in + start, end - start);
			used += end - start;
			out[used++] = '\n';
			kept++;
		}
	}
	*(u64 *)out = count;
	set_output_length(used);
	print_number("grep: lines found: ", count);
	if (kept < count)
		print_number("grep: lines that the output has room for: ", kept);
	return DONE;
}
