/* A signal handler that interrupts an allocation cannot allocate. The calls that it may make, and
 * the report at the end of the process, need no memory. */
#include "../c/check.h"
#include <sys/wait.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static volatile int is_allocating;

void *malloc(size_t size)
{
	if (is_allocating)
		abort();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	if (is_allocating)
		abort();
	return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
	if (is_allocating)
		abort();
	return __libc_realloc(old, size);
}

static int counter, others[2];

static void ends(int signal)
{
	uint64_t value = 2;
	struct pollfd entries[2];
	struct timeval soon = {0, 0};
	fd_set in;
	(void)signal;
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	entries[0].fd = counter, entries[0].events = POLLIN;
	entries[1].fd = others[0], entries[1].events = POLLIN;
	CHECK(poll(entries, 2, 0) == 1);
	FD_ZERO(&in);
	FD_SET(counter, &in), FD_SET(others[0], &in);
	CHECK(select(others[0] + 1, &in, NULL, NULL, &soon) == 1);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 2);
	_exit(7);
}

int main(void)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		counter = eventfd(0, 0);
		CHECK(counter >= 0 && pipe(others) == 0);
		CHECK(signal(SIGUSR1, ends) != SIG_ERR);
		is_allocating = 1;
		raise(SIGUSR1);
		_exit(8);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	return 0;
}
