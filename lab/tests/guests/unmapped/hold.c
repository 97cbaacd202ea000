/*
 * hold MEANS CAP SECONDS [TARGET...]: every 20 ms reads the unmapped page cache, and brings it below CAP bytes:
 *   none      not at all;
 *   reclaim   TARGET is a memory.reclaim: at most 8 MiB at once, with swappiness=0;
 *   fadvise   POSIX_FADV_DONTNEED on the TARGETs in turn, until it is below;
 *   drop      /proc/sys/vm/drop_caches.
 * Prints the part of the samples within 16 MiB of the cap, the part above that, the mean, the most, and the longest action.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NEAR (16L << 20)
#define BATCH (8L << 20)

static long value(const char *text, const char *name)
{
	const char *line = strstr(text, name);

	return line ? atol(line + strlen(name)) : 0;
}

static long unmapped(int vmstat)
{
	static char text[1 << 15];
	ssize_t length = pread(vmstat, text, sizeof(text) - 1, 0);
	long pages;

	text[length > 0 ? length : 0] = 0;
	pages = value(text, "nr_inactive_file ") + value(text, "nr_active_file ") - value(text, "nr_mapped ");
	return pages > 0 ? pages * 4096 : 0;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void put(const char *file, const char *text)
{
	FILE *out = fopen(file, "w");

	if (out) {
		/* What the kernel could not free is no error here. */
		fputs(text, out);
		fclose(out);
	}
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	const char *means = argv[1];
	long cap = atol(argv[2]), samples = 0, within = 0, above = 0, most = 0;
	double end = now() + atof(argv[3]), sum = 0, longest = 0;
	int vmstat = open("/proc/vmstat", O_RDONLY), next = 4;
	char request[64];

	while (now() < end) {
		long held = unmapped(vmstat);
		double begin = now();

		samples++;
		sum += held;
		most = held > most ? held : most;
		within += labs(held - cap) <= NEAR;
		above += held > cap + NEAR;
		if (held > cap && !strcmp(means, "reclaim")) {
			snprintf(request, sizeof(request), "%ld swappiness=0", held - cap < BATCH ? held - cap : BATCH);
			put(argv[4], request);
		} else if (held > cap && !strcmp(means, "drop")) {
			put("/proc/sys/vm/drop_caches", "1");
		} else if (!strcmp(means, "fadvise")) {
			for (int tried = 4; tried < argc && unmapped(vmstat) > cap; tried++) {
				int fd = open(argv[next], O_RDONLY);

				posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
				close(fd);
				next = next + 1 < argc ? next + 1 : 4;
			}
		}
		longest = now() - begin > longest ? now() - begin : longest;
		usleep(20000);
	}
	printf("%s cap %ld MiB: within %.1f %%, above %.1f %% of %ld samples, mean %.0f MiB, most %ld MiB, longest %.3f s\n",
	       means, cap >> 20, 100.0 * within / samples, 100.0 * above / samples, samples, sum / samples / (1 << 20),
	       most >> 20, longest);
}
