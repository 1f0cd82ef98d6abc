/*
 * Use a key value namespace by the standard's Key Value Command Set alone, through Linux's NVMe
 * driver. Needs nothing but this file and <linux/nvme_ioctl.h>.
 *
 *   kv /dev/ng0n2 put KEY < value
 *   kv /dev/ng0n2 get KEY > value
 *   kv /dev/ng0n2 delete KEY
 *   kv /dev/ng0n2 list [KEY]
 *   kv /dev/ng0n2 bench COUNT [DEPTH]
 *
 * A key is text of 1 to 16 bytes; keys are listed in the drive's order, from KEY on. The benchmark
 * stores, retrieves and deletes COUNT values of 4 KiB, with DEPTH commands in flight (default: 1).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/nvme_ioctl.h>

enum { STORE = 0x01, RETRIEVE = 0x02, LIST = 0x06, DELETE = 0x10 };
enum { MOST = 128 * 1024, KEY_MOST = 16, BENCH_SIZE = 4096 };

static int fd;
static char data[MOST];

/* Status and, in *result, dword 0 of a command; `size` bytes of `data` go out or come in. */
static int run(uint8_t opcode, const void *key, size_t length, uint32_t size, uint32_t *result)
{
	uint32_t words[KEY_MOST / 4] = { 0 };
	int status;

	memcpy(words, key, length);
	struct nvme_passthru_cmd command = {
		.opcode = opcode, .nsid = ioctl(fd, NVME_IOCTL_ID),
		.addr = opcode == DELETE ? 0 : (uintptr_t)data,
		.data_len = opcode == DELETE ? 0 : size,
		.cdw2 = words[0], .cdw3 = words[1], .cdw10 = size, .cdw11 = length,
		.cdw14 = words[2], .cdw15 = words[3],
	};
	status = ioctl(fd, NVME_IOCTL_IO_CMD, &command);
	if (status)
		fprintf(stderr, "command %02Xh: %s, status %xh\n", opcode,
			status < 0 ? strerror(errno) : "refused", status & 0x7FF);
	*result = command.result;
	return status;
}

/* The keys, list after list: the first key of the next one is the last of the one before. */
static int list(const char *first)
{
	uint32_t listed, result;
	uint16_t length = strlen(first);
	char key[KEY_MOST];

	memcpy(key, first, length);
	for (int more = 0;; more = 1) {
		size_t at = 4;
		uint32_t shown = 0;

		if (run(LIST, key, length, sizeof(data), &result))
			return 1;
		memcpy(&listed, data, sizeof(listed));
		for (uint32_t i = 0; i < listed; i++) {
			uint16_t last = length;
			int same;

			memcpy(&length, data + at, sizeof(length));
			if (length > KEY_MOST || at + 2 + length > sizeof(data))
				return 1;
			same = more && !i && length == last && !memcmp(key, data + at + 2, length);
			memcpy(key, data + at + 2, length);
			at += (2 + length + 3) / 4 * 4;
			if (!same)
				shown += printf("%.*s\n", length, key) > 0;
		}
		if (!shown)
			return 0;
	}
}

/* The time of `count` commands, of which as many processes as `depth` make one after another. */
static int bench(const char *verb, uint8_t opcode, unsigned count, unsigned depth)
{
	struct timespec began, ended;
	int status, failed = 0;
	double seconds;

	clock_gettime(CLOCK_MONOTONIC, &began);
	for (unsigned first = 0; first < depth; first++) {
		pid_t child = fork();

		if (child < 0)
			failed = 1;
		if (child)
			continue;
		for (unsigned i = first; i < count; i += depth) {
			char key[KEY_MOST];
			uint32_t result;
			int length = snprintf(key, sizeof(key), "b%u", i);

			if (run(opcode, key, length, BENCH_SIZE, &result))
				_exit(1);
		}
		_exit(0);
	}
	while (wait(&status) > 0)
		failed |= status;
	clock_gettime(CLOCK_MONOTONIC, &ended);
	seconds = ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) / 1e9;
	printf("%s: %.0f commands per second\n", verb, count / seconds);
	fflush(stdout);
	return failed != 0;
}

int main(int argc, char **argv)
{
	const char *verb = argc > 2 ? argv[2] : "", *key = argc > 3 ? argv[3] : "";
	uint32_t size, result;

	if (argc < 3 || argc > 5 || strlen(key) > KEY_MOST) {
		fprintf(stderr, "usage: %s DEVICE put|get|delete|list|bench [KEY|COUNT] [DEPTH]\n",
			argv[0]);
		return 2;
	}
	fd = open(argv[1], O_RDWR);
	if (fd < 0) {
		perror(argv[1]);
		return 1;
	}
	if (!strcmp(verb, "put")) {
		size = fread(data, 1, sizeof(data), stdin);
		return run(STORE, key, strlen(key), size, &result) != 0;
	}
	if (!strcmp(verb, "get")) {
		if (run(RETRIEVE, key, strlen(key), sizeof(data), &size))
			return 1;
		return fwrite(data, 1, size < MOST ? size : MOST, stdout) != size;
	}
	if (!strcmp(verb, "delete"))
		return run(DELETE, key, strlen(key), 0, &result) != 0;
	if (!strcmp(verb, "bench")) {
		unsigned count = atoi(key), depth = argc > 4 ? atoi(argv[4]) : 1;

		return bench("store", STORE, count, depth) ||
		       bench("retrieve", RETRIEVE, count, depth) ||
		       bench("delete", DELETE, count, depth);
	}
	return strcmp(verb, "list") ? 2 : list(key);
}
