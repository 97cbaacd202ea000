/*
 * mapped FILE MIB HOT RATE: maps MIB MiB of FILE as a program's text is mapped, touches each page, and then HOT per
 * cent of them at random, RATE a second. Prints each second how many pages of the hot part and of the rest are in
 * memory, and the faults since that waited for the disk.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

static volatile unsigned char *file;
static unsigned sum;

static size_t resident(unsigned char *in_core, size_t pages)
{
	size_t count = 0;

	for (size_t i = 0; i < pages; i++)
		count += in_core[i] & 1;
	return count;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	size_t pages = (atol(argv[2]) << 20) / PAGE, hot = pages * atol(argv[3]) / 100;
	long rate = atol(argv[4]);
	unsigned char *in_core = malloc(pages);
	unsigned long random = 88172645463325252UL;
	struct rusage before, now;
	time_t told = time(NULL);

	file = mmap(NULL, pages * PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, open(argv[1], O_RDONLY), 0);
	if (file == MAP_FAILED || !in_core || !hot)
		return 1;
	for (int twice = 0; twice < 2; twice++)
		for (size_t i = 0; i < pages; i++)
			sum += file[i * PAGE];
	getrusage(RUSAGE_SELF, &before);
	puts("ready");
	for (;;) {
		for (long i = 0; i < rate / 50; i++) {
			/* xorshift64 */
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			sum += file[random % hot * PAGE];
		}
		usleep(20000);
		if (time(NULL) == told)
			continue;
		told = time(NULL);
		getrusage(RUSAGE_SELF, &now);
		mincore((void *)file, pages * PAGE, in_core);
		printf("hot %zu/%zu cold %zu/%zu major %ld\n", resident(in_core, hot), hot,
		       resident(in_core + hot, pages - hot), pages - hot, now.ru_majflt - before.ru_majflt);
		fflush(stdout);
	}
}
