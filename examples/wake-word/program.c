/*
 * Find a wake word in a recording, with a network that keeps its state from one call to the next.
 *
 * The input is a TensorFlow Lite model, tables of 32-bit integers, and a WAV file: 16 bits, one
 * channel, 16 kHz. Argument 0 is the length of the model, argument 1 that of the WAV file, argument 2
 * how many spectra the model takes at a time. The output is two 32-bit integers for each time that the
 * word was found: the millisecond of its end, and the sum of the last five probabilities of 8 bits.
 */
#include "potash.h"

enum { RATE = 16000, WINDOW = 480, STEP = 160, POINTS = 512, HALF = POINTS / 2, BITS = 9 };
enum { CHANNELS = 40, CURVE = 305, MOST_SPECTRA = 16 };
enum { CUTOFF = 1088, AVERAGED = 5, PAUSE = 33 };
enum { DONE = 0, WRONG_INPUT = 1, NO_ROOM = 2 };

/* As example.py makes them. */
struct tables {
	s32 window[WINDOW], cosine[HALF], sine[HALF], channel[HALF], weight[HALF];
	s32 gain[CURVE], logarithm[CURVE];
};

struct word {
	u32 milliseconds, score;
};

static s64 real[POINTS], imaginary[POINTS];
static s64 sums[CHANNELS + 2], level[CHANNELS];
static s8 spectra[MOST_SPECTRA * CHANNELS];
static u32 scores[AVERAGED];

/* A curve has eight values for each octave; between two of them it is a straight line. */
static s64 value(const s32 *curve, u64 at)
{
	u32 octave = 3, shift;
	u64 place;

	if (at < 8)
		return curve[at];
	while (at >> octave >> 1)
		octave++;
	shift = octave - 3;
	place = (octave - 2) * 8 + (at >> shift & 7);
	return curve[place] +
	       (((s64)curve[place + 1] - curve[place]) * (s64)(at & ((1ull << shift) - 1)) >> shift);
}

static u64 square_root(u64 of)
{
	u64 root = 0;

	for (u64 bit = 1ull << 31; bit; bit >>= 1)
		if ((root + bit) * (root + bit) <= of)
			root += bit;
	return root;
}

/* The discrete Fourier transform of `real` and `imaginary`, in place; their order is that of reversed
 * bits before it. */
static void transform(const struct tables *tables)
{
	for (u32 half = 1; half < POINTS; half *= 2)
		for (u32 first = 0; first < POINTS; first += 2 * half)
			for (u32 i = 0; i < half; i++) {
				u32 a = first + i, b = a + half, turn = i * (HALF / half);
				s64 c = tables->cosine[turn], s = tables->sine[turn];
				s64 r = (real[b] * c - imaginary[b] * s) >> 15;
				s64 j = (real[b] * s + imaginary[b] * c) >> 15;

				real[b] = real[a] - r;
				imaginary[b] = imaginary[a] - j;
				real[a] += r;
				imaginary[a] += j;
			}
}

/* The spectrum of a window of samples, as the network takes it. */
static void analyse(const struct tables *tables, const s16 *samples, s8 *spectrum)
{
	for (u32 i = 0; i < POINTS; i++) {
		u32 from = 0;

		for (u32 bit = 0; bit < BITS; bit++)
			from |= (i >> bit & 1) << (BITS - 1 - bit);
		real[i] = from < WINDOW ? (s64)samples[from] * tables->window[from] >> 12 : 0;
		imaginary[i] = 0;
	}
	transform(tables);
	for (u32 i = 0; i < CHANNELS + 2; i++)
		sums[i] = 0;
	for (u32 i = 0; i < HALF; i++) {
		s64 energy = real[i] * real[i] + imaginary[i] * imaginary[i];
		u32 channel = tables->channel[i];

		if (channel > CHANNELS)
			continue;
		sums[channel] += energy * ((1 << 12) - tables->weight[i]);
		sums[channel + 1] += energy * tables->weight[i];
	}
	for (u32 i = 0; i < CHANNELS; i++) {
		s64 signal = square_root(sums[i + 1]) >> 9, smooth = i % 2 ? 983 : 410;
		s64 clean, rest = signal * 819 >> 14, ratio;
		u64 feature;

		/* What is there all the time is background, and is taken away. */
		level[i] = ((signal << 10) * smooth + level[i] * ((1 << 14) - smooth)) >> 14;
		clean = (signal << 10) > level[i] ? ((signal << 10) - level[i]) >> 10 : 0;
		clean = clean > rest ? clean : rest;
		ratio = clean * value(tables->gain, level[i]) >> 6;
		ratio = ratio < 1 << 13 ? ratio * ratio >> 20 : (ratio >> 6) - 64;
		feature = ((u64)value(tables->logarithm, ratio) * 256 + 333) / 666;
		spectrum[i] = (s64)(feature < 255 ? feature : 255) - 128;
	}
}

/* The samples of a WAV file, and how many there are; 0 if it is not what the network takes. */
static const s16 *samples_of(const char *wav, u64 length, u64 *count)
{
	const u32 *at = (const u32 *)wav;

	/* "RIFF", "WAVE", "fmt ", PCM, one channel; then "data". */
	if (length < 44 || at[0] != 0x46464952 || at[2] != 0x45564157 || at[3] != 0x20746d66 ||
	    at[4] != 16 || at[5] != 0x00010001 || at[6] != RATE || at[8] >> 16 != 16 ||
	    at[9] != 0x61746164 || at[10] > length - 44)
		return 0;
	*count = at[10] / sizeof(s16);
	return (const s16 *)(wav + 44);
}

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	const struct tables *tables;
	const s16 *samples;
	u32 model_len, wav_len, taken, held = 0, ignored = 0;
	u64 count, found = 0;
	long model;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &model_len) || !argument_u32(ctx, 1, &wav_len) ||
	    !argument_u32(ctx, 2, &taken) || model_len % 4 || !taken || taken > MOST_SPECTRA ||
	    model_len + sizeof(struct tables) + wav_len > in_len) {
		print("wake-word: the arguments are the lengths of the model and of the recording, and "
		      "the number of spectra that the model takes");
		return WRONG_INPUT;
	}
	tables = (const struct tables *)(in + model_len);
	samples = samples_of((const char *)(tables + 1), wav_len, &count);
	if (!samples) {
		print("wake-word: the recording is not a WAV file of 16 bits, one channel and 16 kHz");
		return WRONG_INPUT;
	}
	model = tflite_open(in, model_len, ON_VTA);
	for (u64 at = 0; at + WINDOW <= count; at += STEP) {
		u32 score = 0;
		u8 probability = 0;

		analyse(tables, samples + at, spectra + held++ * CHANNELS);
		if (held < taken)
			continue;
		held = 0;
		tflite_run(model, spectra, taken * CHANNELS, &probability, 1);
		for (u32 i = 0; i < AVERAGED; i++) {
			scores[i] = i + 1 < AVERAGED ? scores[i + 1] : probability;
			score += scores[i];
		}
		ignored -= ignored > 0;
		if (score < CUTOFF || ignored)
			continue;
		if ((found + 1) * sizeof(struct word) > out_len) {
			print("wake-word: there is no room for another word");
			return NO_ROOM;
		}
		((struct word *)out)[found++] =
			(struct word){ (at + WINDOW) * 1000 / RATE, score };
		ignored = PAUSE;
	}
	tflite_close(model);
	set_output_length(found * sizeof(struct word));
	print_number("wake-word: words found: ", found);
	return DONE;
}
